"""A thread in a worker's main process that renews the worker's leases and ends those of runs that are over."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from celery.worker import state  # type: ignore[import-untyped]

from headway.core.errors import StoreError
from headway.core.log_event import LogEvent
from headway.integrations.celery.ledger import Ledger, TaskRun, lease_of, member_in
from headway.integrations.celery.messages import read_request
from headway.integrations.celery.options import BalancerOptions
from headway.integrations.celery.worker_signals import WorkerSignals

TICK = 2.0  # Maximum seconds between renewals. A short lease is renewed every third of its time.
COPY_ATTEMPTS = 5  # Attempts to copy a set that another thread changes meanwhile.
log = logging.getLogger("headway.celery")


class LeaseThread:
    """Renews periodically, and at once after a task has failed. ``stop`` ends the thread."""

    def __init__(
        self,
        ledger: Ledger,
        rules: BalancerOptions,
        runs: WorkerSignals,
        reconcile: Callable[[], object],
        *,
        reports_held: bool,
    ) -> None:
        self._ledger = ledger
        self._rules = rules
        self._runs = runs
        self._reconcile = reconcile
        self._reports_held = reports_held
        self._consumer: Any = None
        self._woken = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._reconciling: threading.Thread | None = None
        self._unleased: set[str] = set()

    def start(self, consumer: Any) -> None:
        self._consumer = consumer
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="headway-celery-leases", daemon=True)
            self._thread.start()

    def wake(self) -> None:
        """Renew and check the leases at once."""
        self._woken.set()

    def stop(self) -> None:
        """Stop the thread, and remove this worker from the ledger."""
        self._stopping = True
        self._woken.set()
        if self._thread is not None:
            self._thread.join(TICK)
        try:
            self._ledger.leave(self._runs.node)
        except StoreError as problem:
            log.warning(LogEvent("celery.leases_left", error=str(problem)))

    def _run(self) -> None:
        pause = min(TICK, self._rules.lease / 3)
        trouble = False
        while not self._stopping:
            try:
                self.tick()
                trouble = False
            except StoreError as problem:
                self._ledger.errors += 1
                if not trouble:
                    log.error(LogEvent("celery.ledger_lost", error=str(problem)))  # noqa: TRY400
                trouble = True
            except Exception:
                log.exception(LogEvent("celery.keeper_failed"))
            self._woken.wait(pause)
            self._woken.clear()

    def tick(self) -> None:
        """Renew, end leases of runs that are over, lease runs without one, and reconcile if this worker is due."""
        if not self._runs.connected():
            self._ledger.errors += 1
            log.error(LogEvent("celery.signals_lost", hint="they are connected again"))
            self._runs.connect()
        held = sorted(_members(_held())) if self._reports_held else ()
        due, leases = self._ledger.renew(
            self._runs.node,
            self._reads(),
            lease_ms=int(self._rules.lease * 1_000),
            reconcile_ms=int(self._rules.reconcile * 1_000),
            held=held,
        )
        # The worker received a task before it had a lease. If the worker no longer holds the task, its process died.
        holding = _members(_held())
        for lease in leases:
            if member_in(lease) not in holding:
                self._ledger.finish(TaskRun(lease))
        self._take_leases(set(leases))
        if due and (self._reconciling is None or not self._reconciling.is_alive()):
            # Reconciling is slow, and leases must be renewed meanwhile.
            self._reconciling = threading.Thread(target=self._run_reconcile, name="headway-reconciler", daemon=True)
            self._reconciling.start()

    def _run_reconcile(self) -> None:
        try:
            self._reconcile()
        except Exception:
            self._ledger.errors += 1
            log.exception(LogEvent("celery.reconciling_failed"))

    def _take_leases(self, leases: set[str]) -> None:
        """Lease runs that had no lease in two ticks in a row. The ledger does not know them after a loss of data."""
        unleased = set()
        for request in _copy(state.active_requests):
            member, queue = read_request(request._context)
            lease = lease_of(member, self._runs.node)
            if not self._rules.is_ours(queue) or lease in leases:
                continue
            unleased.add(member)
            if member in self._unleased:
                self._ledger.start(TaskRun(lease, queue, str(request.name)))
        self._unleased = unleased

    def _reads(self) -> list[str]:
        consumer = getattr(self._consumer, "task_consumer", None)
        queues = [] if consumer is None else [queue.name for queue in list(consumer.queues)]
        return [queue for queue in queues if self._rules.is_ours(queue)]


def _held() -> list[Any]:
    return [*list(state.requests.values()), *_copy(state.reserved_requests), *_copy(state.active_requests)]


def _members(requests: list[Any]) -> set[str]:
    return {read_request(request._context)[0] for request in requests}


def _copy(requests: Any) -> list[Any]:
    """Copy a set that the worker's main thread changes meanwhile."""
    for _ in range(COPY_ATTEMPTS):
        try:
            return list(requests)
        except RuntimeError:
            continue
    return list(state.requests.values())
