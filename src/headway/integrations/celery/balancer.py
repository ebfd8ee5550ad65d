"""The balancer that ``install`` adds to an app: its queues, its ledger and its functions."""

from __future__ import annotations

import getpass
import logging
import socket
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from celery import Celery, signals  # type: ignore[import-untyped]

from headway.core.errors import ConfigError
from headway.core.log_event import LogEvent
from headway.integrations.celery.broker_push import BrokerPush
from headway.integrations.celery.lease_thread import LeaseThread
from headway.integrations.celery.ledger import Ledger
from headway.integrations.celery.ledger_location import LedgerLocation, find_ledger
from headway.integrations.celery.options import BalancerOptions
from headway.integrations.celery.reconcile import DepthScanner, Reconciler, ReconcileReport, RedisScanner
from headway.integrations.celery.routing_marker import make_queue
from headway.integrations.celery.send_hook import Router, SendHook
from headway.integrations.celery.senders import TaskSenders
from headway.integrations.celery.sharding import queue_of
from headway.integrations.celery.worker_signals import WorkerSignals

MANUAL_RUN_MS = 3_600_000  # Milliseconds; a run that was counted by hand expires after an hour.
MANUAL_WAIT_MS = 60_000  # Milliseconds; an announced task that was not sent by then expires.
ATTRIBUTE = "headway_balancer"
log = logging.getLogger("headway.celery")


class Balancer:
    """The balancer of one app. ``headway.integrations.celery`` has a function of the same name for most methods."""

    def __init__(self, app: Celery, rules: BalancerOptions, store: str | None) -> None:
        self.app = app
        self.rules = rules
        self.store = store
        self._keeper: LeaseThread | None = None

    @cached_property
    def location(self) -> LedgerLocation:
        return find_ledger(self.app, self.store)

    @cached_property
    def ledger(self) -> Ledger:
        return Ledger(self.location.place, self.rules.prefix, key_prefix=self.location.key_prefix)

    @cached_property
    def post(self) -> BrokerPush | None:
        return BrokerPush(self.ledger, self.rules, self.location.key_prefix) if self.location.with_broker else None

    @cached_property
    def runs(self) -> WorkerSignals:
        return WorkerSignals(self.app, self.rules, self.ledger)

    @cached_property
    def sources(self) -> TaskSenders:
        return TaskSenders(self.app, self.rules)

    def set_up(self, **_: Any) -> None:
        """Declare the queues, route tasks to them, and count the tasks. The app's settings must be final."""
        conf, names = self.app.conf, self.rules.names
        ours = [make_queue(name) for name in names]
        before = conf.task_queues
        if isinstance(before, Mapping):
            conf.task_queues = {**before, **{queue.name: {"routing_key": queue.name} for queue in ours}}
        else:
            default = conf.task_default_queue
            kept = list(before) if before else [] if default in names else [make_queue(default)]
            conf.task_queues = [*(queue for queue in kept if queue.name not in names), *ours]
        routes = conf.task_routes
        earlier = [] if routes is None else list(routes) if isinstance(routes, (list, tuple)) else [routes]
        conf.task_routes = [*earlier, Router(self.rules)]
        self.app.amqp.send_task_message = SendHook(self.app, self.rules, self.ledger, self.sources, self.post)
        self.runs.connect()
        signals.celeryd_init.connect(self._worker_named, weak=False)
        signals.celeryd_after_setup.connect(self._worker_set_up, weak=False)
        signals.worker_ready.connect(self._worker_ready, weak=False)
        signals.worker_shutdown.connect(self._worker_gone, weak=False)

    def _worker_named(self, sender: Any = None, instance: Any = None, **_: Any) -> None:
        if instance is not None and instance.app is self.app:
            self.runs.name_node(str(sender))

    def _worker_set_up(self, instance: Any = None, **_: Any) -> None:
        """Make a worker that reads all queues also drain queues beyond the present ``queues`` setting."""
        if instance is None or instance.app is not self.app:
            return
        queues = self.app.amqp.queues
        if not set(self.rules.names) <= set(queues.consume_from):
            return
        for load in self.ledger.loads(self.rules.names):
            if load.queue not in self.rules.names and load.pending:
                log.warning(LogEvent("celery.draining", queue=load.queue, tasks=load.pending))
                queues.select_add(load.queue, routing_key=load.queue)

    def _worker_ready(self, sender: Any = None, **_: Any) -> None:
        if sender is None or sender.app is not self.app:
            return
        if self._keeper is None:
            self._keeper = LeaseThread(
                self.ledger, self.rules, self.runs, self.reconcile, reports_held=not self.location.with_broker
            )
            self.runs.ended_oddly = self._keeper.wake
        self._keeper.start(sender)

    def _worker_gone(self, sender: Any = None, **_: Any) -> None:
        if sender is not None and sender.app is self.app and self._keeper is not None:
            self._keeper.stop()

    def select_best_queue(self, *, reserve: int = 0) -> str:
        """Return the least loaded queue that a worker reads. Ties go to the lowest number.

        ``reserve`` counts this many tasks in the queue in the same step. The caller must send them within a minute.
        """
        if not reserve:
            return self.ledger.choose(queues=self.rules.queues, measure=self.rules.load)
        return self.ledger.reserve(reserve, queues=self.rules.queues, measure=self.rules.load, lease_ms=MANUAL_WAIT_MS)

    def get_all_queue_loads(self) -> dict[str, tuple[int, int]]:
        """Return the numbers of waiting and running tasks of each queue, all at one moment."""
        names = self.rules.names
        found = {load.queue: (load.pending, load.running) for load in self.ledger.loads(names)}
        return {queue: load for queue, load in found.items() if queue in names or any(load)}

    def get_queue_load(self, queue_name: str) -> tuple[int, int]:
        """Return the numbers of waiting and running tasks of one queue."""
        return self.get_all_queue_loads().get(self._check_queue(queue_name), (0, 0))

    def increment_pending(self, queue_name: str, count: int = 1) -> int:
        """Announce tasks that the caller will send to a queue within a minute. Return how many tasks wait there.

        A task that is sent to the queue uses up one announcement, so it is counted once. Announcements are optional.
        """
        return self.ledger.add_counts(self._check_queue(queue_name), waiting=count, lease_ms=MANUAL_WAIT_MS)[0]

    def decrement_pending(self, queue_name: str, count: int = 1) -> int:
        """Withdraw announcements, at most those that exist. Return how many tasks wait in the queue."""
        return self.ledger.add_counts(self._check_queue(queue_name), waiting=-count)[0]

    def increment_running(self, queue_name: str, count: int = 1, *, seconds: float = MANUAL_RUN_MS / 1_000) -> int:
        """Count work that is not a Celery task, for at most ``seconds``. Return how many tasks run in the queue."""
        return self.ledger.add_counts(self._check_queue(queue_name), running=count, lease_ms=int(seconds * 1_000))[1]

    def decrement_running(self, queue_name: str, count: int = 1) -> int:
        """Withdraw counts of ``increment_running``, at most those that exist. Return how many tasks run there."""
        return self.ledger.add_counts(self._check_queue(queue_name), running=-count)[1]

    def reset_queue_counters(self, queue_name: str | None = None) -> None:
        """Remove all counts by hand, and compute the loads again from the tasks in the ledger.

        Tasks that wait or run stay counted, so this is safe at any time. The log names the user and the host.
        """
        queues = [load.queue for load in self.ledger.loads(self.rules.names)]
        if queue_name is not None:
            queues = [self._check_queue(queue_name)]
        forgotten = self.ledger.reset(queues)
        who = {"user": getpass.getuser(), "host": socket.gethostname()}
        log.warning(LogEvent("celery.reset", **who, queue=queue_name or "all", forgotten=forgotten))

    def queue_of_user(self, user_id: object) -> str:
        """Return the one queue that a user hashes to. Without a user it is the first queue."""
        return f"{self.rules.prefix}{queue_of(user_id, queues=self.rules.queues)}"

    def unread_queues(self) -> list[str]:
        """Return the queues that no live worker reads. The list is empty if no worker is known."""
        return [load.queue for load in self.ledger.loads(self.rules.names) if load.read is False]

    def reconcile(self) -> ReconcileReport:
        """Compare the ledger with the broker and repair the ledger. Workers call this periodically."""
        kind = RedisScanner if self.location.with_broker else DepthScanner
        return Reconciler(self.ledger, self.rules, kind(self.app, self.ledger, self.rules)).run()

    def _check_queue(self, queue_name: str) -> str:
        if not self.rules.is_ours(queue_name):
            raise ConfigError(f"{queue_name!r} is not counted; queues are {self.rules.names[0]}, …")
        return queue_name


def balancer_of(app: Celery) -> Balancer:
    """Return the balancer of an app. Raises ``ConfigError`` if the app has none."""
    found = vars(app).get(ATTRIBUTE)
    if not isinstance(found, Balancer):
        raise ConfigError(f"the Celery app {app.main!r} has no load-based queues; call install(app) first")
    return found
