"""The rows of ``django_celery_beat`` as crons of Headway, so that they need no beat process.

Each worker reads the tables now and then, and writes the crons that differ from them. A cron holds its whole message,
so the worker that runs a tick need not know the row.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from kombu.utils import json

from headway.client.context import Context
from headway.client.task import Task
from headway.core.cron import parse_cron
from headway.core.errors import HeadwayError
from headway.core.log_event import LogEvent
from headway.integrations.celery.adoption.schedule import (
    PREFIX,
    checked_weekdays,
    cron_of,
    is_day,
    send_once,
    setting_crons,
)
from headway.maintenance.loop import every
from headway.observability.outage import Outage
from headway.policy_store.catalogue import CRONS, JOB_FIELDS, CronDocument, CronReader, publish_crons
from headway.runtime.bounded_wait import wait_until_set

if TYPE_CHECKING:
    from headway.integrations.celery.adoption.adoption import Adoption

log = logging.getLogger("headway.celery")

TABLES = "django_celery_beat"
loads: Any = json.loads  # As celery beat reads the columns: dates and the like have a notation of their own.
SENDER = PREFIX.rstrip(".")  # The task whose jobs send what the rows name.
SYNC_EVERY = 30.0  # Seconds between reads of the tables.
FIRST_SYNC = 5.0  # Maximum seconds for which a worker's start waits for the first read.


class RowCron(NamedTuple):
    """A row that Headway sends. ``message``: what the sender needs to send the row's task."""

    name: str
    expression: str
    tz: str
    message: dict[str, Any]


class TableRows(NamedTuple):
    """The enabled rows of adopted tasks."""

    crons: list[RowCron]
    left: dict[str, str]  # Why celery beat still has to send a row, by the row's name.


def tables_installed() -> bool:
    """Return whether the tables are among Django's installed apps. This imports nothing."""
    registry = sys.modules.get("django.apps")
    return registry is not None and registry.apps.apps_ready and registry.apps.is_installed(TABLES)


# ---------------------------------------------------------------------- rows


def row_cron(app: Any, row: Any) -> RowCron | str:
    """Return the cron of a row, or the reason why celery beat has to send it."""
    if row.solar_id is not None:
        return "Headway has no solar events"
    if row.clocked_id is not None or row.one_off:
        return "it runs only once"
    if row.crontab_id is None and row.interval_id is None:
        return "it has no schedule"
    try:
        when = row.schedule
        expression, tz = cron_of(app, row.name, when)
        if row.crontab_id is not None and _keeps_zone(when):
            tz = str(when.tz)
        parse_cron(expression, tz)
        for column in (row.args, row.kwargs):
            loads(column or "null")
        return RowCron(row.name, expression, tz, _message(row, checked_weekdays(when)))
    except (ValueError, TypeError) as problem:  # Such as arguments that are not JSON, and Celery's ParseException.
        return str(problem)


def _keeps_zone(when: Any) -> bool:
    """Return whether a crontab has the time zone of its row. A setting of Django may switch this off."""
    from django_celery_beat.tzcrontab import TzAwareCrontab

    return isinstance(when, TzAwareCrontab)


def _message(row: Any, weekdays: list[int] | None) -> dict[str, Any]:
    options = {name: getattr(row, name) for name in ("queue", "exchange", "routing_key", "priority")}
    options["expires"] = row.expire_seconds
    options["headers"] = {**loads(row.headers or "{}"), "periodic_task_name": row.name}
    return {
        "task": row.task,
        "args": row.args or "[]",
        "kwargs": row.kwargs or "{}",
        "options": {name: value for name, value in options.items() if value is not None},
        "weekdays": weekdays,
        "start_at": _moment(row.start_time),
        "expires_at": _moment(row.expires),
    }


def _moment(time: datetime | None) -> int | None:
    from django_celery_beat.utils import make_aware

    return None if time is None else round(make_aware(time).timestamp() * 1_000)


def plan_rows(adoption: Adoption, rows: Iterable[Any]) -> TableRows:
    """Sort the rows of adopted tasks into crons and others. An entry of the settings is a cron already."""
    found, in_settings = TableRows([], {}), setting_crons(adoption)
    for row in rows:
        if not adoption.adopts(row.task) or row.name in in_settings:
            continue
        planned = row_cron(adoption.app, row)
        if isinstance(planned, str):
            found.left[row.name] = planned
        else:
            found.crons.append(planned)
    return found


def read_rows() -> list[Any]:
    """Read the enabled rows. Raises ``django.db.Error``."""
    from django.db import connections
    from django_celery_beat.models import PeriodicTask

    try:
        return list(PeriodicTask.objects.filter(enabled=True).select_related("crontab", "interval"))
    finally:
        connections.close_all()


def sends_row(adoption: Adoption, row: Any) -> bool:
    """Return whether Headway sends a row, given as the model of an entry of celery beat."""
    if row is None or not tables_installed():
        return False
    return bool(plan_rows(adoption, [row]).crons)


# ---------------------------------------------------------------------- crons


def declare_sender(adoption: Adoption) -> Task[Any, Any, Any]:
    """Declare the task that sends the rows."""

    def send(context: Context, message: dict[str, Any], tz: str) -> str | None:
        """Send a periodic task of django_celery_beat."""
        start_at, expires_at = message["start_at"], message["expires_at"]
        tick_at = context.submitted_at
        if (start_at is not None and tick_at < start_at) or (expires_at is not None and tick_at >= expires_at):
            return None
        if not is_day(context, message["weekdays"], tz):
            return None
        options = dict(message["options"])
        if expires_at is not None:
            options["expires"] = datetime.fromtimestamp(expires_at / 1_000, UTC)
        args, kwargs = loads(message["args"]), loads(message["kwargs"])
        return send_once(adoption, context, message["task"], args, kwargs, options)

    declared: Task[Any, Any, Any] = adoption.headway.task(name=SENDER, context=True, executor="thread")(send)
    return declared


class TableSync:
    """Keeps the crons of a store as the tables want them.

    Workers that sync at the same time do not undo each other: each reads the crons first, then the tables, and writes
    only crons that have not changed since.
    """

    def __init__(self, adoption: Adoption) -> None:
        self._adoption = adoption
        self._reader = CronReader()
        self._left: dict[str, str] = {}
        self._readable: bool | None = None
        self.began = asyncio.Event()  # Set after the first try.

    async def __call__(self) -> None:
        try:
            await self._sync()
        finally:
            self.began.set()

    async def _sync(self) -> None:
        headway = self._adoption.headway
        store = await headway.client.store()
        await headway.follow_policy()
        found = await store.read(CRONS)
        rows = await self._read()
        if rows is None:
            return
        read = [self._reader.read(document.name, document.body) for document in found]
        known = {cron.name for cron in read if cron is not None and cron.task == SENDER and cron.entry is not None}
        now_at = (await store.snapshot()).now_at
        wanted = [cron for row in rows.crons if (cron := self._document(row)) is not None]
        await publish_crons(store, wanted, known, now_at, found=found)

    async def _read(self) -> TableRows | None:
        """Read the tables in a thread, because Django's database blocks. Return None while it is away."""
        from django.db import Error

        try:
            rows = plan_rows(self._adoption, await asyncio.to_thread(read_rows))
        except Error as problem:
            if self._readable is not False:
                log.warning(LogEvent("celery.tables_unreadable", retry_in=SYNC_EVERY, error=str(problem).strip()))
            self._readable = False
            return None
        if not self._readable:
            log.info(LogEvent("celery.tables_read", crons=len(rows.crons), every=SYNC_EVERY))
        self._readable = True
        for name in sorted(rows.left.keys() - self._left.keys()):
            log.warning(LogEvent("celery.row_left", entry=name, reason=rows.left[name], hint="celery beat sends it"))
        self._left = rows.left
        return rows

    def _document(self, row: RowCron) -> CronDocument | None:
        """Return the cron of a row, or None if its message is too large for a job."""
        try:
            new = self._adoption.headway.tasks[SENDER].call_named({"message": row.message, "tz": row.tz}).new
        except HeadwayError as problem:  # One row must not hold up the others.
            log.warning(LogEvent("celery.row_refused", entry=row.name, error=str(problem)))
            return None
        job: dict[str, Any] = {name: getattr(new, name) for name in JOB_FIELDS}
        return CronDocument(
            task=SENDER,
            entry=row.name,
            expression=row.expression,
            tz=row.tz,
            catch_up="skip",
            overlap="allow",
            **job,
        )


@asynccontextmanager
async def tables_in_step(adoption: Adoption) -> AsyncIterator[None]:
    """Sync the crons with the tables, at the start and every 30 s, if Django has these tables."""
    if not tables_installed():
        yield
        return
    sync = TableSync(adoption)
    syncing = asyncio.create_task(every(SYNC_EVERY, sync, name="celery_tables", outage=Outage(log)))
    try:
        await wait_until_set(sync.began, FIRST_SYNC)
        yield
    finally:
        syncing.cancel()
