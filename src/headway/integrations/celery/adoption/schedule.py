"""Celery's periodic tasks as crons of Headway: each tick is sent once, by any number of workers, without beat."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from celery.beat import ScheduleEntry  # type: ignore[import-untyped]
from celery.schedules import crontab, maybe_schedule, schedule, solar  # type: ignore[import-untyped]

from headway.client.context import Context
from headway.core.errors import ConfigError
from headway.integrations.celery.adoption.features import FeatureKind, find_feature

if TYPE_CHECKING:
    from headway.integrations.celery.adoption.adoption import Adoption

PREFIX = "celery.beat."  # Before the name of an entry: the name of the task that sends it.


def declare_crons(adoption: Adoption) -> None:
    """Declare a cron for each entry of the schedule whose task is adopted. Raises ``ConfigError``."""
    for name, fields in (adoption.app.conf.beat_schedule or {}).items():
        entry: Any = ScheduleEntry(**dict[str, Any](fields, name=name, app=adoption.app))
        if adoption.adopts(entry.task):
            expression, tz = cron_of(adoption.app, name, entry.schedule)
            declare = adoption.headway.cron(
                expression, tz=tz, overlap="allow", name=f"{PREFIX}{name}", context=True, executor="thread"
            )
            declare(_send(adoption, entry, tz))


def setting_crons(adoption: Adoption) -> set[str]:
    """Return the names of the entries in the settings that are crons."""
    entries = adoption.app.conf.beat_schedule or {}
    return {name for name, entry in entries.items() if adoption.adopts(entry["task"])}


def cron_of(app: Any, name: str, when: Any) -> tuple[str, str]:
    """Return the cron expression of a schedule and its time zone. Raises ``ConfigError`` for a solar event."""
    when = maybe_schedule(when, app=app)
    tz = str(app.conf.timezone or "UTC")
    if isinstance(when, crontab):
        return _expression(when), tz
    if type(when) is schedule:
        return f"@every {max(1, round(when.run_every.total_seconds()))}s", "UTC"
    if isinstance(when, solar):
        feature = find_feature(FeatureKind.SCHEDULE, "solar")
        raise ConfigError(f"the beat entry {name!r} is refused: {'' if feature is None else feature.note}")
    raise ConfigError(
        f"the beat entry {name!r} has a schedule of class {type(when).__name__}, which is neither a crontab nor an "
        "interval; keep its task on Celery, or use crontab"
    )


def _expression(when: crontab) -> str:
    """Return a crontab in five fields. If both days are restricted, the task checks the weekday itself."""
    weekdays = set(range(7)) if _checks_weekday(when) else when.day_of_week
    fields = (
        (when.minute, range(60)),
        (when.hour, range(24)),
        (when.day_of_month, range(1, 32)),
        (when.month_of_year, range(1, 13)),
        (weekdays, range(7)),
    )
    return " ".join(
        "*" if set(chosen) >= set(allowed) else ",".join(map(str, sorted(chosen))) for chosen, allowed in fields
    )


def _checks_weekday(when: crontab) -> bool:
    """Return whether date and weekday are both restricted. Celery wants both to match, and cron either."""
    return len(when.day_of_month) < 31 and len(when.day_of_week) < 7


def checked_weekdays(when: Any) -> list[int] | None:
    """Return the weekdays that the task itself must check, or None if the cron expression says everything."""
    return sorted(when.day_of_week) if isinstance(when, crontab) and _checks_weekday(when) else None


def is_day(context: Context, weekdays: list[int] | None, tz: str) -> bool:
    """Return whether the job of a tick was submitted on one of these weekdays. None means any."""
    day = datetime.fromtimestamp(context.submitted_at / 1_000, ZoneInfo(tz))
    return weekdays is None or day.isoweekday() % 7 in weekdays


def _send(adoption: Adoption, entry: Any, tz: str) -> Callable[[Context], str | None]:
    weekdays = checked_weekdays(entry.schedule)

    def send(context: Context) -> str | None:
        """Send a periodic task of Celery."""
        if not is_day(context, weekdays, tz):
            return None
        return send_once(adoption, context, entry.task, entry.args, entry.kwargs, entry.options)

    return send


def send_once(adoption: Adoption, context: Context, name: str, args: Any, kwargs: Any, options: dict[str, Any]) -> str:
    """Send a task from the job of a cron, and return its id.

    The id depends on the job alone, so that a job that runs again after a crash sends nothing twice.
    """
    options = {"task_id": str(uuid.uuid5(uuid.NAMESPACE_OID, context.job_id)), **options}
    task = adoption.app.tasks.get(name)
    if task is not None:
        sent = task.apply_async(args, kwargs, **options)
    else:
        sent = adoption.app.send_task(name, args, kwargs, **options)
    return str(sent.id)
