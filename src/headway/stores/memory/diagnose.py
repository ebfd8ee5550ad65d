"""Diagnostics: the input of ``why`` and of estimates, and the samples of what classes wait for."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from operator import itemgetter

from headway.core.diagnostics import AHEAD_COUNTED, JobDiagnostics, LimitView, QueueDiagnostics, RunningJob
from headway.core.job import ClassKey, JobId, NewJob, State
from headway.core.policy.document import LimitRule
from headway.core.policy.order import order_key
from headway.core.policy.wait_reasons import append_sample, waited_ms
from headway.core.preview import Place, SubmitPreview, due_at_of, preview_new
from headway.stores.base import WAIT_SAMPLE_INTERVAL_MS
from headway.stores.memory.limits import keys_of, next_start_at
from headway.stores.memory.query import snapshot, workers
from headway.stores.memory.record import job_of
from headway.stores.memory.state import MemoryState
from headway.stores.memory.submit import check_known
from headway.stores.memory.workflow import read_upstreams


def diagnose(state: MemoryState) -> QueueDiagnostics:
    executing = tuple(
        RunningJob(r.new.task, r.new.lane, r.worker_id or "", r.started_at or 0, r.limits_held)
        for _, r in sorted(state.executing.items())
    )
    in_order = tuple(sorted(workers(state), key=lambda worker: worker.worker_id))
    return QueueDiagnostics(snapshot(state), in_order, executing, state.rule_index.rules)


def diagnose_job(state: MemoryState, job_id: JobId) -> JobDiagnostics | None:
    record = state.jobs.get(job_id)
    if record is None:
        return None
    queue = state.queue(record.class_key)
    job, diagnostics = job_of(record, state.now_at), diagnose(state)
    if record.state is not State.QUEUED or record.due_at is not None:
        intervals = [interval for interval in state.wait_intervals if interval.key == record.class_key]
        upstreams = tuple(read_upstreams(state, record, results=False)) if record.held else ()
        return JobDiagnostics(
            job, diagnostics, queue.fair, upstreams=upstreams, waited_ms=waited_ms(job, intervals)
        )  # fmt: skip
    places = queue.blocked[record.blocked_by] if record.blocked_by else queue.front
    ahead = [state.by_seq[seq] for _, seq in places[: bisect_left(places, record.place)]]
    own = [other for other in ahead if queue.fair and other.tenant == record.tenant]
    counted, counted_own = min(len(ahead), AHEAD_COUNTED), min(len(own), AHEAD_COUNTED)
    limits = tuple(_limit_view(state, key, rule) for key, rule in keys_of(state, record))
    return JobDiagnostics(job, diagnostics, queue.fair, counted, counted_own, limits)


def preview(state: MemoryState, job: NewJob) -> SubmitPreview:
    [reply] = check_known(state, [job])
    if reply.deduplicated or reply.job_id in state.jobs:
        return SubmitPreview(reply.job_id, None)
    limits = [_limit_view(state, *pair) for pair in state.rule_index.keys(job.task, job.tenant, job.limits)]
    return preview_new(job, diagnose(state), _new_place(state, job), limits)


def _new_place(state: MemoryState, job: NewJob) -> Place:
    queue, tenant = state.queues.get(job.class_key), job.tenant or ""
    fair = queue is not None and queue.fair
    if due_at_of(job, state.now_at) is not None:
        return Place(fair)
    if queue is None or not queue.fair:
        waiting = 0 if queue is None else len(queue.front)
        # A class that becomes fair starts its clock at the first waiting job, which keeps its place.
        return Place(False, min(waiting, AHEAD_COUNTED)) if job.tenant is None else Place(True, min(waiting, 1))
    key = order_key(queue.clock, queue.last(tenant), state.rule_index.step_us(job.task, tenant))
    ahead = queue.front[: bisect_right(queue.front, key, key=itemgetter(0))]
    own = sum(state.by_seq[seq].tenant == tenant for _, seq in ahead)
    return Place(True, min(len(ahead), AHEAD_COUNTED), min(own, AHEAD_COUNTED))


def _limit_view(state: MemoryState, key: str, rule: LimitRule) -> LimitView:
    used = len(state.holders.get(key, ())) if rule.concurrency is not None else 0
    return LimitView(key, rule, used, next_start_at(state, key, rule))


def record_wait_reasons(state: MemoryState, reasons: Mapping[ClassKey, str]) -> None:
    if any(interval.until_at > state.now_at - WAIT_SAMPLE_INTERVAL_MS for interval in state.wait_intervals):
        return
    for key, reason in reasons.items():
        last = max((i for i in state.wait_intervals if i.key == key), key=lambda i: i.until_at, default=None)
        interval = append_sample(last, key, reason, state.now_at)
        if last is not None and interval.from_at == last.from_at:
            state.wait_intervals.remove(last)
        state.wait_intervals.append(interval)
