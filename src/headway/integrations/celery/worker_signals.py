"""Record the start and end of tasks in a worker, as reported by Celery's signals."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from secrets import token_hex
from typing import Any

from celery import Celery, signals  # type: ignore[import-untyped]
from celery.exceptions import Reject, TimeLimitExceeded, WorkerLostError  # type: ignore[import-untyped]

from headway.integrations.celery.ledger import Ledger, TaskRun, lease_of, member_of
from headway.integrations.celery.messages import USER_HEADER, read_delivered, read_request
from headway.integrations.celery.options import BalancerOptions

SUCCESS = "SUCCESS"
SAMPLE = 16
RETRIES = 10  # Highest retry number that is uncounted when a process died, to bound the command.


class WorkerSignals:
    """Records in the ledger when tasks start and end. Every process of a worker has one."""

    def __init__(self, app: Celery, rules: BalancerOptions, ledger: Ledger) -> None:
        self._app = app
        self._rules = rules
        self._ledger = ledger
        self.node = ""  # The unique name of this worker. A restarted worker has another one.
        self._begun: dict[str, tuple[TaskRun, float]] = {}  # By task id: its run, and when it started.
        self._ends = 0
        self.ended_oddly: Callable[[], None] = lambda: None

    def connect(self) -> None:
        """Connect to Celery's signals."""
        signals.task_prerun.connect(self._began, weak=False)
        signals.task_postrun.connect(self._ended, weak=False)
        signals.task_revoked.connect(self._revoked, weak=False)
        signals.task_unknown.connect(self._discarded, weak=False)
        signals.task_rejected.connect(self._discarded, weak=False)
        signals.task_failure.connect(self._failed, weak=False)
        # Ends of runs that still wait for their batch are sent when the process ends.
        signals.worker_process_shutdown.connect(lambda **_: self._ledger.close(), weak=False)

    def connected(self) -> bool:
        """Return whether the signals are still connected. Some test helpers remove all receivers."""
        return any(receiver == self._began for _, receiver in signals.task_prerun.receivers or ())

    def name_node(self, hostname: str) -> None:
        """Name this worker. Children that it forks later have the same name."""
        self.node = f"{hostname}#{os.getpid()}-{token_hex(4)}"

    # ------------------------------------------------------------------ in the process that runs the task

    def _began(self, task: Any = None, **_: Any) -> None:
        if task is None or task.app is not self._app or task.request.is_eager:
            return
        request = task.request
        run = self._run(task)
        self._begun[request.id] = run, time.monotonic()
        self._ledger.start(run)

    def _ended(self, task: Any = None, state: str | None = None, retval: Any = None, **_: Any) -> None:
        if task is None or task.app is not self._app or task.request.is_eager:
            return
        run, began = self._begun.pop(task.request.id, None) or (self._run(task), None)
        learn = began is not None and state == SUCCESS and self._is_sample()
        self._ledger.finish(
            run,
            took_ms=int((time.monotonic() - (began or 0.0)) * 1_000) if learn else None,
            again=isinstance(retval, Reject) and bool(retval.requeue),
        )

    def _run(self, task: Any) -> TaskRun:
        request = task.request
        member, queue = read_request(request)
        return TaskRun(
            lease_of(member, self._name(request)),
            queue if self._rules.is_ours(queue) else "",
            task.name,
            str(request.get(USER_HEADER) or ""),
        )

    def _is_sample(self) -> bool:
        """Return whether to learn from a run: all runs if tasks are weighed by run time, else one in ``SAMPLE``."""
        self._ends += 1
        return self._rules.load == "work" or self._ends % SAMPLE == 1

    def _name(self, request: Any) -> str:
        if not self.node:
            self.name_node(str(request.hostname))
        return self.node

    # ------------------------------------------------------------------ in the worker's main process

    def _revoked(self, request: Any = None, terminated: bool = False, sender: Any = None, **_: Any) -> None:
        """Uncount a task that was revoked or has expired. A ``terminated`` one was killed while it ran."""
        if request is None or getattr(sender, "app", None) is not self._app:
            return
        member, _queue = read_request(request)
        if terminated:
            self._ledger.finish(TaskRun(lease_of(member, self.node)))
        self._ledger.uncount_soon([member], "revoked")

    def _discarded(self, message: Any = None, **_: Any) -> None:
        member = None if message is None else read_delivered(message)
        if member is not None:
            self._ledger.uncount_soon([member], "discarded")

    def _failed(self, sender: Any = None, task_id: str = "", exception: Any = None, **_: Any) -> None:
        """Wake the lease thread, since a process may have died. Uncount a task that may have died before its start."""
        if getattr(sender, "app", None) is not self._app:
            return
        if isinstance(exception, (WorkerLostError, TimeLimitExceeded)):
            retries = range(min(RETRIES, sender.max_retries or RETRIES) + 1)  # No signal names the retry.
            self._ledger.uncount_soon([member_of(task_id, number) for number in retries], "lost")
        self.ended_oddly()
