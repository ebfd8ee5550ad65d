"""Ends the leases of workers that have died or left. Reapers and parent processes use it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence

from headway.core.job import State
from headway.core.lease import Lease, Report
from headway.core.log_event import LogEvent
from headway.core.policy.document import Policy
from headway.core.policy.retry import Crashed, Ending, judge
from headway.metrics.recorder import RETRY_REASONS, MetricsRecorder
from headway.observability.traces import shown_trace
from headway.stores.base import Exchange, Store

job_log = logging.getLogger("headway.jobs")

BATCH = 500


async def end_leases(
    store: Store,
    leases: Sequence[Lease],
    policy: Policy,
    ending: Callable[[Lease], Ending],
    *,
    expired_only: bool,
    recorder: MetricsRecorder | None = None,
) -> int:
    """End leases on behalf of a worker that cannot. Return how many leases this call ended."""
    if not leases:
        return 0
    reports = [
        judge(ending(lease), lease, policy, chance=int.from_bytes(os.urandom(2)) / 65_536)._replace(
            expired_only=expired_only
        )
        for lease in leases
    ]
    answer = await store.exchange(Exchange(None, finished=reports))
    refused = {job_id for job_id, _ in answer.refused}
    for lease, report in zip(leases, reports, strict=True):
        if report.job_id not in refused:
            seconds = max(0, answer.now_at - lease.started_at) / 1_000
            _log_end(lease, report, seconds)
            if recorder is not None:
                recorder.ended(lease, report, seconds)
                if recorder.on_recorded is not None:
                    recorder.on_recorded(lease, report)
    return len(reports) - len(answer.refused)


def _log_end(lease: Lease, report: Report, seconds: float) -> None:
    event = report.state.value
    if report.state is State.QUEUED:
        event = "retried" if report.reason in RETRY_REASONS else "released"
    job_log.info(
        LogEvent(
            f"job.{event}",
            job=lease.job_id,
            task=lease.task,
            worker=lease.worker_id,
            lane=lease.lane,
            attempt=lease.attempts,
            trace_id=shown_trace(lease.trace_id, lease.job_id),
            seconds=round(seconds, 3),
            reason=report.reason,
            error=None if report.error is None else f"{report.error.type}: {report.error.message}",
        )
    )


async def overdue(store: Store) -> list[Lease]:
    """Read a bounded batch of the leases whose deadline has passed."""
    return await store.leases(limit=BATCH, payloads=False)


async def reap(
    store: Store, leases: Sequence[Lease], policy: Policy, *, recorder: MetricsRecorder | None = None
) -> int:
    """End overdue leases, unless their workers have renewed meanwhile. A repeated call is safe."""
    return await end_leases(
        store,
        leases,
        policy,
        lambda lease: Crashed(f"worker {lease.worker_id} stopped renewing its leases"),
        expired_only=True,
        recorder=recorder,
    )


async def end_worker(
    store: Store,
    worker_id: str,
    policy: Policy,
    ending: Callable[[Lease], Ending],
    *,
    recorder: MetricsRecorder | None = None,
    left: bool = False,
) -> int:
    """End all leases of a worker that is known to be gone. Mark the worker dead, or remove it if it has ``left``."""
    await store.mark_dead(worker_id)
    ended = 0
    while leases := await store.leases(worker_id=worker_id, limit=BATCH, payloads=False):
        done = await end_leases(store, leases, policy, ending, expired_only=False, recorder=recorder)
        ended += done
        if not done:
            break
    if left:
        await store.mark_dead(worker_id, left=True)
    return ended
