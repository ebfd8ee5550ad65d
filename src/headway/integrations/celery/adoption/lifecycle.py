"""The signals of a Celery worker, sent at the same moments in the life of a Headway worker."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from celery import _state, signals  # type: ignore[import-untyped]
from celery.app import trace  # type: ignore[import-untyped]

from headway.core.log_event import LogEvent
from headway.integrations.celery.adoption.beat_tables import sends_row, tables_in_step, tables_installed
from headway.integrations.celery.adoption.features import FeatureKind, FeatureStatus, find_feature
from headway.integrations.celery.adoption.schedule import setting_crons

if TYPE_CHECKING:
    from headway.integrations.celery.adoption.adoption import Adoption

log = logging.getLogger("headway.celery")
_lock = threading.Lock()
_begun: set[int] = set()  # The processes, by pid, in which the signals of a start were sent.
_runners: set[int] = set()  # Those of them that are runners, whose lifespan sends the signals.


class WorkerStandIn:
    """Stands for Celery's worker as the sender of signals."""

    def __init__(self, adoption: Adoption) -> None:
        self.app = adoption.app
        self.hostname = hostname()
        self.pid = os.getpid()
        self.controller = self
        self.pool_cls = "prefork" if adoption.executor == "process" else "threads"  # Celery's Django fixup reads it.

    def __repr__(self) -> str:
        return f"<Headway worker {self.hostname}>"


class ReceivedRequest(trace.Context):  # type: ignore[misc]
    """A request with the names that receivers of ``task_received`` know from Celery's worker."""

    task: Any

    @property
    def name(self) -> Any:
        return self.task

    @property
    def task_id(self) -> Any:
        return self.id

    task_name = type = name


def hostname() -> str:
    """Return the name of this worker as Celery writes it."""
    return f"headway@{socket.gethostname()}"


def begin_process(adoption: Adoption) -> None:
    """Prepare this process for its first task: make the app current, and send the signals of a start."""
    if os.getpid() in _begun:
        return
    with _lock:
        if os.getpid() in _begun:
            return
        _start(adoption)
        if os.getpid() not in _runners:
            signals.worker_process_init.send(sender=None)
        _begun.add(os.getpid())


def _start(adoption: Adoption) -> None:
    app = adoption.app
    worker = WorkerStandIn(adoption)
    trace.setup_worker_optimizations(app, hostname())
    _state._set_task_join_will_block(True)
    app.set_current()
    _send_logging_signals(app)
    signals.celeryd_init.send(sender=hostname(), instance=worker, conf=app.conf, options={})
    signals.celeryd_after_setup.send(sender=hostname(), instance=worker, conf=app.conf)
    app.loader.init_worker()
    signals.worker_init.send(sender=worker)


def _send_logging_signals(app: Any) -> None:
    """Send the signals of Celery's logging. As on Celery, a receiver of ``setup_logging`` replaces the others.

    Headway has set up the loggers. Receivers may add handlers of their own.
    """
    common = {"loglevel": logging.INFO, "logfile": None, "colorize": False}
    if not signals.setup_logging.send(sender=None, format=app.conf.worker_log_format, **common):
        root, tasks = logging.getLogger(), logging.getLogger("celery.task")
        signals.after_setup_logger.send(sender=None, logger=root, format=app.conf.worker_log_format, **common)
        signals.after_setup_task_logger.send(
            sender=None, logger=tasks, format=app.conf.worker_task_log_format, **common
        )


@asynccontextmanager
async def worker_lifespan(adoption: Adoption) -> AsyncIterator[None]:
    """Send the signals of a runner's start and stop, log how the app maps to Headway, and follow the beat tables.

    Receivers may block and use Django's database, so they run in a thread beside the event loop.
    """
    _runners.add(os.getpid())
    await asyncio.to_thread(begin_process, adoption)
    worker = WorkerStandIn(adoption)
    log_map(adoption)
    await asyncio.to_thread(signals.worker_ready.send, sender=worker)
    async with tables_in_step(adoption):
        yield
    await asyncio.to_thread(_stop, worker)


def _stop(worker: WorkerStandIn) -> None:
    signals.worker_shutting_down.send(sender=hostname(), sig="SIGTERM", how="warm", exitcode=0)
    signals.worker_shutdown.send(sender=worker)


def log_map(adoption: Adoption) -> None:
    """Log the lane of each queue, and the settings that have no effect."""
    app, policy = adoption.app, adoption.headway.policy
    from headway.integrations.celery.adoption.queues import NEED, routed_queue

    tasks = {name: routed_queue(app, name) for name in adoption.registered()}
    for line in adoption.queue_map.lines(tasks, policy, adoption.queues()):
        log.info(
            LogEvent("celery.queue", queue=line.queue, lane=line.lane, needs=f"{NEED}{line.queue}", tasks=line.tasks)
        )
    ignored = sorted(name for name in _changed(app) if _is_ignored(name))
    if ignored:
        log.info(LogEvent("celery.settings_ignored", settings=", ".join(ignored), hint="headway celery check says why"))


def _changed(app: Any) -> set[str]:
    """Return the settings that the app itself has set."""
    return {name for name in app.conf.changes if isinstance(name, str)}


def _is_ignored(name: str) -> bool:
    feature = find_feature(FeatureKind.SETTING, name)
    return feature is not None and feature.status is FeatureStatus.DIFFERS and feature.note.startswith("has no effect")


def send_received(adoption: Adoption, task: Any, request: dict[str, Any]) -> None:
    """Send ``task_received`` if any code listens."""
    if signals.task_received.receivers:
        signals.task_received.send(sender=WorkerStandIn(adoption), request=ReceivedRequest(request), task=task)


def connect(adoption: Adoption) -> None:
    """Keep celery beat from sending what Headway's crons send."""

    def leave_adopted(sender: Any = None, **_: Any) -> None:
        scheduler = getattr(sender, "scheduler", None)
        if scheduler is None or scheduler.app is not adoption.app:
            return
        if tables_installed() or setting_crons(adoption):
            _leave(scheduler, adoption)

    signals.beat_init.connect(leave_adopted, weak=False)


def _leave(scheduler: Any, adoption: Adoption) -> None:
    """Make a scheduler of celery beat skip the entries that are crons, from the settings and from its tables."""
    apply_entry, in_settings = scheduler.apply_entry, setting_crons(adoption)

    def is_cron(entry: Any) -> bool:
        return entry.name in in_settings or sends_row(adoption, getattr(entry, "model", None))

    def apply_others(entry: Any, producer: Any = None) -> None:
        if not is_cron(entry):
            apply_entry(entry, producer)

    scheduler.apply_entry = apply_others
    crons = in_settings | {name for name, entry in scheduler.schedule.items() if is_cron(entry)}
    if crons:
        log.info(LogEvent("celery.beat_left", entries=", ".join(sorted(crons)), hint="Headway's workers send them"))
