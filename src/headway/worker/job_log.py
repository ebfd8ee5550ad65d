"""Logs the start and the end of each attempt. Lines of completed jobs skip ``logging`` where no handler needs them."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii as quote
from operator import itemgetter
from typing import Any

from headway.client.context import trace_of
from headway.core.lease import Lease
from headway.core.policy.retry import Crashed, Raised, Returned, TimedOut, Unknown, judge
from headway.core.worker import WorkerInfo
from headway.dispatch.job_source import FinishedRun
from headway.observability.log_writer import LogWriter
from headway.observability.logs import direct_writer, json_time
from headway.observability.traces import shown_trace
from headway.policy_store.current import CurrentPolicy

job_log = logging.getLogger("headway.jobs")

CLASSES_MAX = 1_000  # Combinations of task, lane, tenant and attempt whose text is kept; tenants may be many.
_SHOWN = itemgetter(
    *map(Lease._fields.index, ("job_id", "trace_id", "started_at", "eligible_at", "task", "lane", "tenant", "attempts"))
)


class JobLog:
    """Logs the attempts of one runner. ``logs_starts`` and ``logs_ends`` are false where no line would be written."""

    def __init__(self, in_force: CurrentPolicy, start_level: int) -> None:
        self.logs_starts = self.logs_ends = False
        self._in_force = in_force
        self._start_level = start_level
        self._worker_id, self._slots = "", 0
        self._writer: LogWriter | None = None
        self._classes: dict[tuple[str, str, str | None, int], str] = {}

    def refresh(self, worker: WorkerInfo) -> None:
        """Read how loggers are configured. The runner calls this once for each batch of jobs that it starts."""
        self.logs_starts = job_log.isEnabledFor(self._start_level)
        self.logs_ends = job_log.isEnabledFor(logging.INFO)
        self._writer = direct_writer(job_log, logging.INFO) if self.logs_ends else None
        self._slots = worker.slots
        if self._worker_id != worker.worker_id:
            self._worker_id = worker.worker_id
            self._classes.clear()

    def started(self, lease: Lease, running: int, args: Any) -> None:
        self._log(self._start_level, "job.started", lease, running, args=args)

    def downgraded(self, lease: Lease, running: int) -> None:
        budget = None if lease.budget_ms is None else lease.budget_ms / 1_000
        self._log(logging.INFO, "job.downgraded", lease, running, duration=lease.assigned, budget=budget)

    def lost(self, lease: Lease, running: int, seconds: float) -> None:
        self._log(logging.INFO, "job.lost", lease, running, seconds=round(seconds, 3))

    def ended(self, runs: Sequence[FinishedRun], running: int) -> None:
        """Log runs whose end the store has accepted."""
        writer = self._writer
        completed = [] if writer is None else [ran for ran in runs if type(ran.ending) is Returned]
        if len(completed) < len(runs):
            for ran in runs:
                if writer is None or type(ran.ending) is not Returned:
                    self._log_end(ran, running)
        if writer is not None and completed:
            writer.put(self._completed_lines(completed, running), len(completed))

    def _log_end(self, ran: FinishedRun, running: int) -> None:
        lease, ending, seconds = ran
        if isinstance(ending, Unknown):  # The runner has warned of the task, once.
            return
        report = judge(ending, lease, self._in_force.policy)
        event = report.state.value
        if event == "queued":
            event = "retried" if isinstance(ending, (Raised, TimedOut, Crashed)) else "released"
        error = None
        if isinstance(ending, Crashed):
            error = ending.cause
        elif isinstance(ending, (Raised, TimedOut)):
            kind, message = ending.error.type, ending.error.message
            error = f"{kind}: {message.splitlines()[0][:200]}" if message else kind
        facts = {"seconds": round(seconds, 3), "reason": report.reason, "error": error}
        self._log(logging.INFO, f"job.{event}", lease, running, **facts)

    def _log(self, level: int, event: str, lease: Lease, running: int, **facts: Any) -> None:
        line = {
            "job": lease.job_id,
            "task": lease.task,
            "worker": self._worker_id,
            "lane": lease.lane,
            "tenant": lease.tenant,
            "attempt": lease.attempts,
            "trace_id": trace_of(lease),
            "wait": (lease.started_at - lease.eligible_at) / 1_000 if lease.eligible_at else None,
            **facts,
            "running": f"{running}/{self._slots}",
        }
        job_log.log(level, event, extra={"headway": line})

    def _completed_lines(self, runs: Sequence[FinishedRun], running: int) -> str:
        """Return the lines that ``_log`` and ``JsonFormatter`` would write, at a tenth of their cost."""
        at = json_time(int(time.time() * 1_000))
        head = f'{{"at": "{at}", "level": "info", "event": "job.completed", "logger": "{job_log.name}", "job": '
        tail = f', "running": "{running}/{self._slots}"}}'
        classes, lines = self._classes, []
        # Of the last job: jobs that were submitted and claimed together are alike, and have waited as long.
        last_task, last_lane, last_attempt = "", "", 0
        last_tenant: str | None = None
        waited: int | None = None
        middle = wait = ""
        for lease, _, seconds in runs:
            job_id, trace_id, started_at, eligible_at, task, lane, tenant, attempt = _SHOWN(lease)
            if task != last_task or tenant != last_tenant or lane != last_lane or attempt != last_attempt:
                last_task, last_lane, last_tenant, last_attempt = task, lane, tenant, attempt
                middle = classes.get((task, lane, tenant, attempt)) or self._add_class(task, lane, tenant, attempt)
            job = quote(job_id)
            trace = job.replace("-", "") if trace_id is None else quote(shown_trace(trace_id, job_id))
            if not eligible_at:
                waited, wait = None, ""
            elif (wait_ms := started_at - eligible_at) != waited:
                waited, wait = wait_ms, f', "wait": {wait_ms / 1_000:.3f}'
            lines.append(f'{head}{job}{middle}{trace}{wait}, "seconds": {seconds:.3f}{tail}')
        return "\n".join(lines)

    def _add_class(self, task: str, lane: str, tenant: str | None, attempt: int) -> str:
        if len(self._classes) >= CLASSES_MAX:
            self._classes.clear()
        where = f'"task": {quote(task)}, "worker": {quote(self._worker_id)}, "lane": {quote(lane)}'
        if tenant is not None:
            where += f', "tenant": {quote(tenant)}'
        self._classes[task, lane, tenant, attempt] = middle = f', {where}, "attempt": {attempt}, "trace_id": '
        return middle
