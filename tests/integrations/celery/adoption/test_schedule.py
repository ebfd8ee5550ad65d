"""Periodic tasks of Celery become crons of Headway."""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, signals  # type: ignore[import-untyped]
from celery.beat import Scheduler, Service  # type: ignore[import-untyped]
from celery.schedules import crontab, schedule, solar  # type: ignore[import-untyped]

from headway.client.context import Context, current, inline_lease
from headway.core.errors import ConfigError
from headway.integrations.celery import adopt, adoption_of
from headway.integrations.celery.adoption.adoption import Adoption
from headway.integrations.celery.adoption.schedule import cron_of, declare_crons
from tests.integrations.celery.adoption.conftest import start_worker
from tests.integrations.celery.adoption.project import make_app
from tests.integrations.celery.workers import eventually


@pytest.fixture
def adoption(tmp_path: Path) -> Adoption:
    app = Celery("beat", broker="redis://127.0.0.1:1/0", set_as_current=False)
    app.conf.update(timezone="Europe/Paris")
    made = adopt(app, store=f"sqlite:///{tmp_path}/jobs.db", only=["work.*"])

    @app.task(name="work.tick", shared=False)
    def tick(*args: Any) -> None: ...

    @app.task(name="other.tick", shared=False)
    def other() -> None: ...

    return made


@pytest.mark.parametrize(
    "when, expression",
    [
        (crontab(), "* * * * *"),
        (crontab(minute="*/15"), "0,15,30,45 * * * *"),
        (crontab(minute=0, hour="8-10", day_of_week="mon-fri"), "0 8,9,10 * * 1,2,3,4,5"),
        (crontab(minute=30, hour=7, day_of_month="1,15", month_of_year="1-3"), "30 7 1,15 1,2,3 *"),
        (crontab(minute=0, hour=0, day_of_month="1-7", day_of_week="mon"), "0 0 1,2,3,4,5,6,7 * *"),
        (crontab(minute=0, hour=12, day_of_week="sun"), "0 12 * * 0"),
    ],
)
def test_a_crontab_is_a_cron_in_the_zone_of_the_app(adoption: Adoption, when: Any, expression: str) -> None:
    assert cron_of(adoption.app, "entry", when) == (expression, "Europe/Paris")


@pytest.mark.parametrize("when", [timedelta(seconds=90), 90, 90.0, schedule(timedelta(seconds=90))])
def test_an_interval_is_a_cron_with_every(adoption: Adoption, when: Any) -> None:
    assert cron_of(adoption.app, "entry", when) == ("@every 90s", "UTC")


def test_a_solar_event_is_refused_by_the_name_of_its_entry(adoption: Adoption) -> None:
    with pytest.raises(ConfigError, match="'at dawn' is refused: Headway has no solar events"):
        cron_of(adoption.app, "at dawn", solar.__new__(solar))  # Its constructor needs the package ephem.


def test_entries_of_adopted_tasks_are_crons_and_others_are_not(adoption: Adoption) -> None:
    adoption.app.conf.beat_schedule = {
        "ours": {"task": "work.tick", "schedule": crontab(hour=3, minute=0), "args": (1,)},
        "theirs": {"task": "other.tick", "schedule": 30},
    }
    adoption.app.add_periodic_task(45, adoption.app.tasks["work.tick"].s(2), name="added")
    declare_crons(adoption)
    assert {name: cron.expression for name, cron in adoption.headway.crons.items()} == {
        "celery.beat.ours": "0 3 * * *",
        "celery.beat.added": "@every 45s",
    }


def test_a_tick_sends_the_task_once_even_if_its_job_runs_again(adoption: Adoption) -> None:
    adoption.app.conf.beat_schedule = {
        "ours": {"task": "work.tick", "schedule": 30, "args": (7,), "options": {"countdown": 60}}
    }
    declare_crons(adoption)
    send = adoption.headway.tasks["celery.beat.ours"].fn
    first = inline_lease("celery.beat.ours")
    sent = []
    for lease in (first, first._replace(attempts=2, crashes=1)):
        token = current.set(context := Context(lease))
        sent.append(send(context))
        current.reset(token)
    assert sent[0] == sent[1]
    jobs = adoption.headway.jobs(task="work.tick")
    assert len(jobs) == 1
    adoption.headway.close()


def test_a_date_and_a_weekday_must_both_match(adoption: Adoption) -> None:
    when = crontab(minute=0, hour=0, day_of_month="1-7", day_of_week="mon")
    adoption.app.conf.beat_schedule = {"first monday": {"task": "work.tick", "schedule": when}}
    declare_crons(adoption)
    send = adoption.headway.tasks["celery.beat.first monday"].fn

    def at(day: int) -> str | None:
        moment = datetime(2026, 6, day, 12, tzinfo=UTC)
        lease = inline_lease("x")._replace(submitted_at=round(moment.timestamp() * 1_000))
        sent: str | None = send(Context(lease))
        return sent

    assert at(2) is None  # A Tuesday.
    assert at(1) is not None  # A Monday.
    adoption.headway.close()


class Tables(Scheduler):  # type: ignore[misc]
    """A scheduler with an entry that is not in the settings, such as one of ``django_celery_beat``."""

    def setup_schedule(self) -> None:
        super().setup_schedule()
        self.data["in a table"] = self.Entry(name="in a table", task="work.tick", schedule=schedule(30), app=self.app)


def test_celery_beat_leaves_out_what_headway_sends(adoption: Adoption) -> None:
    adoption.app.conf.beat_schedule = {
        "ours": {"task": "work.tick", "schedule": 30},
        "theirs": {"task": "other.tick", "schedule": 30},
    }
    service = Service(adoption.app, scheduler_cls=Tables)
    scheduler, sent = service.scheduler, []
    scheduler.apply_async = lambda entry, **_: sent.append(entry.name)
    signals.beat_init.send(sender=service)
    for entry in scheduler.schedule.values():
        scheduler.apply_entry(entry)
    assert sorted(sent) == ["in a table", "theirs"]


def test_two_workers_send_each_tick_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marked = tmp_path / "marked"
    monkeypatch.setenv("ADOPTED_TICK", str(marked))
    store = f"sqlite:///{tmp_path}/jobs.db"
    workers = [start_worker(tmp_path, store, "thread") for _ in range(2)]
    app = make_app(store, "thread")
    headway = adoption_of(app).headway
    try:
        eventually(lambda: marked.exists() and len(marked.read_text()) >= 3, "the cron ticks three times")
        sent = headway.jobs(task="celery.beat.each second", limit=1_000)
        ticks = {(job.record().idempotency_key or "") for job in sent}
        assert len(ticks) == len(sent) >= 3
        assert len(headway.jobs(task="work.mark", limit=1_000)) <= len(sent)
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait(30)
        headway.close()
