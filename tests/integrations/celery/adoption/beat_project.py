"""A Django project whose periodic tasks are in the tables of django_celery_beat.

Run as a program, it reads calls of its functions from its input, a line of JSON each, and writes what they return.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import json
import os
import sys
from typing import Any

import django
from celery import Celery, signals  # type: ignore[import-untyped]
from django.apps import apps
from django.conf import settings

from headway.integrations.celery import adopt
from headway.integrations.celery.adoption import beat_tables

BEAT = "django_celery_beat"

if "BEAT_FOLDER" in os.environ:
    folder = os.environ["BEAT_FOLDER"]
    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{folder}/django.db"}},
        INSTALLED_APPS=[BEAT],
        MIGRATION_MODULES={BEAT: None},
        DEFAULT_AUTO_FIELD="django.db.models.AutoField",
        USE_TZ=True,
        TIME_ZONE="UTC",
    )
    django.setup()
    beat_tables.SYNC_EVERY = 0.3
    app = Celery("rows", broker="redis://127.0.0.1:1/0")
    app.conf.beat_schedule = {"in settings": {"task": "work.mark", "schedule": 3_600.0, "args": ("", "")}}
    adopt(app, store=f"sqlite:///{folder}/jobs.db", only=["work.*"], executor="thread")

    @app.task(name="work.mark", shared=False)
    def mark(path: str, text: str) -> None:
        with open(path, "a") as file:
            file.write(text)

    @app.task(name="work.request", shared=False, bind=True)
    def request(self: Any, path: str) -> None:
        with open(path, "w") as file:
            json.dump([self.request.delivery_info["routing_key"], self.request.periodic_task_name], file)

    @app.task(name="other.mark", shared=False)
    def other() -> None: ...


def make_tables() -> None:
    from django.core.management import call_command

    call_command("migrate", run_syncdb=True, verbosity=0)


def write_rows(rows: dict[str, dict[str, Any]]) -> None:
    """Write rows by their names. ``every``: the seconds of an interval. ``crontab``: the fields of a crontab."""
    models = apps.get_app_config(BEAT).models_module
    for name, fields in rows.items():
        if (seconds := fields.pop("every", None)) is not None:
            fields["interval"] = models.IntervalSchedule.objects.get_or_create(every=seconds, period="seconds")[0]
        if (crontab := fields.pop("crontab", None)) is not None:
            fields["crontab"] = models.CrontabSchedule.objects.get_or_create(**crontab)[0]
        row = models.PeriodicTask.objects.filter(name=name).first() or models.PeriodicTask(name=name)
        for field, value in fields.items():
            setattr(row, field, value)
        row.save()


def delete_rows(names: list[str]) -> None:
    apps.get_app_config(BEAT).models_module.PeriodicTask.objects.filter(name__in=names).delete()


def rename_table(old: str, new: str) -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {old} RENAME TO {new}")


def beat_sends() -> list[str]:
    """Return the entries that celery beat sends itself."""
    from celery.beat import Service  # type: ignore[import-untyped]
    from django_celery_beat.schedulers import DatabaseScheduler

    service, sent = Service(app, scheduler_cls=DatabaseScheduler), []
    scheduler = service.scheduler
    scheduler.apply_async = lambda entry, **_: sent.append(entry.name)
    signals.beat_init.send(sender=service)
    for entry in scheduler.schedule.values():
        scheduler.apply_entry(entry)
    return sorted(sent)


if __name__ == "__main__":
    calls = {
        function.__name__: function for function in (make_tables, write_rows, delete_rows, rename_table, beat_sends)
    }
    for line in sys.stdin:
        verb, *given = json.loads(line)
        print(json.dumps(calls[verb](*given)), flush=True)
