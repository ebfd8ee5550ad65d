"""Why a job waits: every true reason in order of precedence, the binding one first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headway.core.diagnostics import (
    AHEAD_COUNTED,
    LANES_COUNTED,
    JobDiagnostics,
    LimitView,
    QueueDiagnostics,
    RunningJob,
)
from headway.core.job import ClassKey, JobRecord, State
from headway.core.policy.document import TENANT, Policy
from headway.core.policy.enforced import PAUSE, SECOND_US, parameter_value
from headway.core.policy.lanes import LaneView, lane_of, service_order
from headway.core.policy.units import plural
from headway.core.snapshot import Snapshot
from headway.core.timestamps import write_moment
from headway.core.worker import TASK, WorkerInfo, capabilities_in, serves, tasks_in
from headway.core.workflow import SourceStatus, Upstream, is_batch

SOURCES_SHOWN = 20  # Sources that the facts of a reason name.

CODES = (
    "depends", "scheduled", "paused", "unroutable", "unservable", "no_worker", "rate", "limit", "ladder", "slots_full",
    "reserved", "lane", "lane_share", "tenant_share", "ahead", "stopping",
)  # fmt: skip

# The first reasons of jobs that are due and not held: of whole classes, and of blocked queues.
CLASS_CODES = (
    "paused", "unroutable", "unservable", "no_worker", "rate", "limit", "ladder", "slots_full", "reserved", "lane",
    "lane_share", "ahead",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a job waits: a stable ``code``, a ``text`` for people, and the numbers behind it."""

    code: str
    text: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    def as_values(self) -> dict[str, Any]:
        """Return the reason as other programs read it: moments are texts."""
        facts = {
            name: write_moment(fact) if name.endswith("_at") and isinstance(fact, int) else fact
            for name, fact in self.facts.items()
        }
        return {**facts, "code": self.code, "text": self.text}


def why(diagnosis: JobDiagnostics, policy: Policy) -> list[Reason]:
    """Return why a job waits. The list is empty once it runs, or if the next claim of a worker will start it."""
    job = diagnosis.job
    if job.state is not State.QUEUED:
        return []
    if job.held:  # Other reasons count once it is released, and may be others then.
        return [*_held_back(diagnosis), *_unserved(job, diagnosis.queue)]
    reasons = [*_held_back(diagnosis), *_unserved(job, diagnosis.queue), *_limited(diagnosis)]
    able = _able(job, diagnosis.queue)
    reasons += _on_the_ladder(job, diagnosis.queue)
    if able:
        contended = list(_without_slot(job.lane, diagnosis.queue, able, policy))
        reasons += contended
        if contended:
            reasons += _behind(diagnosis, able, policy)
    return reasons


class ReasonIndex:
    """The first reason why each job of a queue waits, computed once for all jobs that share it.

    ``opens_at``: when the rate of a counter allows the next start, by the counter's key.
    """

    def __init__(self, queue: QueueDiagnostics, policy: Policy, opens_at: Mapping[str, int | None] = {}) -> None:
        self._queue = queue
        self._policy = policy
        self._opens_at = opens_at
        self._held = Counter(key for job in queue.executing for key in job.held)
        self._known: dict[tuple[Any, ...], Reason | None] = {}

    def of(self, job: JobRecord) -> Reason | None:
        """Return the first reason. None: the job does not wait, or the next claim of a worker will start it."""
        if job.state is not State.QUEUED:
            return None
        if job.held or (job.due_at is not None and job.due_at > self._queue.now_at):
            return next(_held_back(JobDiagnostics(job, self._queue)))
        tenant = job.tenant if job.tenant in self._queue.rules.paused.tenants else None
        shared = (job.lane, job.needs, job.rung, job.task, tenant, job.blocked_by)
        if shared not in self._known:
            diagnosis = JobDiagnostics(job, self._queue, limits=self.limits(job))
            self._known[shared] = next(iter(why(diagnosis, self._policy)), None)
        return self._known[shared]

    def code_of(self, job: JobRecord) -> str | None:
        """Return the code of the first reason."""
        reason = self.of(job)
        return None if reason is None else reason.code

    def limits(self, job: JobRecord) -> tuple[LimitView, ...]:
        """Return the limit in whose blocked queue a job waits."""
        key = job.blocked_by
        rule = None if key is None else self._queue.rules.limits.get(key.partition("=")[0])
        if key is None or rule is None:
            return ()
        opens_at = self._opens_at.get(key) if rule.count is not None else None
        return (LimitView(key, rule, self._held[key], opens_at),)


def class_reasons(queue: QueueDiagnostics, policy: Policy) -> dict[ClassKey, str]:
    """Return the reason code of each class with waiting jobs: one sample for ``wait_reasons``."""
    found: dict[ClassKey, str] = {}
    for view in queue.snapshot.classes:
        if view.waiting:
            found[view.key] = view.blocked or _class_reason(view.key, queue, policy)
    return found


def unknown_tasks(queue: QueueDiagnostics) -> list[str]:
    """Return the tasks of waiting jobs that some worker did not know and that no live worker knows."""
    offers = [frozenset(worker.offers) for worker in queue.active_workers]
    needs = {need for view in queue.snapshot.classes if view.waiting for need in view.key.needs}
    unknown = [need for need in needs if need.startswith(TASK) and not any(serves((need,), one) for one in offers)]
    return sorted(tasks_in(unknown))


def _class_reason(key: ClassKey, queue: QueueDiagnostics, policy: Policy) -> str:
    live = queue.active_workers
    able = [worker for worker in live if serves(key.needs, frozenset(worker.offers))]
    if not able:
        routed = not tasks_in(key.needs)
        return "no_worker" if not live else "unservable" if routed else "unroutable"
    before, beside = _competing_lanes(key.lane, queue.snapshot, able, policy)
    if before:
        return "lane"
    if beside:
        return "lane_share"
    blocked = next(_without_slot(key.lane, queue, able, policy), None)
    return blocked.code if blocked is not None else "ahead"


def _held_back(diagnosis: JobDiagnostics) -> Iterator[Reason]:
    job, queue = diagnosis.job, diagnosis.queue
    if job.held:
        yield _depends(diagnosis.upstreams)
    if job.due_at is not None and job.due_at > queue.now_at:
        seconds = (job.due_at - queue.now_at) / 1_000
        yield Reason("scheduled", f"not due for {length(seconds)}", {"due_at": job.due_at, "in_s": seconds})
    for name in queue.rules.paused.holding(job.lane, job.task, job.tenant):
        yield Reason("paused", f"{name} is paused", {"paused": name})


def _depends(upstreams: Sequence[Upstream]) -> Reason:
    """Return the reason of a held job, with the sources that have not ended as it needs.

    A held job has at least one source, so without ``upstreams`` the caller has not read them.
    """
    if not upstreams:
        return Reason("depends", "waits for other jobs")
    left = [upstream for upstream in upstreams if not upstream.satisfied]
    facts = {"sources": [upstream.source for upstream in left[:SOURCES_SHOWN]], "left": len(left), "of": len(upstreams)}
    first = left[0] if left else None
    if first is None:
        text = "waits for nothing any more; the next exchange of a worker releases it"
    elif len(left) > 1:
        text = f"waits for {len(left):,} of {len(upstreams):,} sources, first {first.name or first.source}"
    elif is_batch(first.source):
        live = f"{first.live:,} of {first.total:,} jobs of" if first.live else "the end of"
        text = f"waits for {live} {first.name or first.source}"
        facts |= {"live": first.live, "total": first.total, "name": first.name}
    elif first.status is SourceStatus.FAILED:
        text = f"waits until job {first.source} is retried and completes; it ended as {first.state}"
    else:
        text = f"waits for job {first.source}, which is {first.state}"
    return Reason("depends", text, facts)


def _unserved(job: JobRecord, queue: QueueDiagnostics) -> Iterator[Reason]:
    live = queue.active_workers
    if not live:
        yield Reason("no_worker", "no worker is running", {"workers": 0})
        return
    if _able(job, queue):
        return
    knowing = [worker for worker in live if serves((f"{TASK}{job.task}",), frozenset(worker.offers))]
    if not knowing:
        text = f"no live worker knows the task {job.task} ({plural(len(live), 'worker')} asked)"
        yield Reason("unroutable", text, {"task": job.task, "workers": len(live)})
    needs = capabilities_in(job.needs)
    if not any(serves(tuple(needs), frozenset(worker.offers)) for worker in live):
        missing = [need for need in needs if not any(need in worker.offers for worker in live)] or needs
        text = f"no live worker offers {', '.join(missing)} ({plural(len(live), 'worker')} asked)"
        yield Reason("unservable", text, {"needs": needs, "missing": missing, "workers": len(live)})
    elif knowing:
        text = f"no live worker both knows {job.task} and offers {', '.join(needs)}"
        yield Reason("unservable", text, {"needs": needs, "workers": len(live)})


def _able(job: JobRecord, queue: QueueDiagnostics) -> list[WorkerInfo]:
    needs = (*capabilities_in(job.needs), f"{TASK}{job.task}")
    return [worker for worker in queue.active_workers if serves(needs, frozenset(worker.offers))]


def _limited(diagnosis: JobDiagnostics) -> Iterator[Reason]:
    now_at = diagnosis.queue.now_at
    views = [view for view in diagnosis.limits if not view.key.startswith(PAUSE)]
    for view in views:
        if view.conforms_at is not None and view.conforms_at > now_at:
            seconds = (view.conforms_at - now_at) / 1_000
            text = f"{_subject(view)} starts {view.rule.count} in {length(view.rule.period_ms / 1_000)}"
            facts = {"limit": view.key, "until_at": view.conforms_at, "in_s": seconds}
            yield Reason("rate", f"{text}; the next may start in {length(seconds)}", facts)
    for view in views:
        most = view.rule.concurrency
        if most is not None and view.used >= most:
            holders = [job for job in diagnosis.queue.executing if view.key in job.held]
            frees = _frees_s(holders, diagnosis.queue)
            facts = {"limit": view.key, "used": view.used, "most": most, "next_frees_s": frees}
            yield Reason("limit", f"{_subject(view)} runs {view.used} of {most}{_soon(frees)}", facts)


def _subject(view: LimitView) -> str:
    """Return what a limit counts: "account_id 7" of some task, "tenant acme", or the limit itself."""
    name, is_bound, value = view.key.partition("=")
    if not is_bound:
        return name
    if view.rule.by == TENANT:
        return f"tenant {value or '(none)'}"
    return f"{view.rule.by} {parameter_value(view.key)}"


def _on_the_ladder(job: JobRecord, queue: QueueDiagnostics) -> Iterator[Reason]:
    running_jobs = queue.snapshot.running_jobs
    if running_jobs is None or job.rung is None:
        return
    own = ClassKey(job.lane, job.needs, job.rung)
    if any(view.key == own and view.blocked == "ladder" for view in queue.snapshot.classes):
        counts = {rung.name: count for rung, count in zip(queue.rules.rungs, running_jobs.counts, strict=True)}
        limits = {rung.name: rung.most(running_jobs.slots) for rung in queue.rules.rungs}
        running = ", ".join(f"{count} {name}" for name, count in counts.items())
        text = f"no room for another {job.rung} job ({running} run)"
        yield Reason("ladder", text, {"running": counts, "most": limits})


def _without_slot(lane: str, queue: QueueDiagnostics, able: Sequence[WorkerInfo], policy: Policy) -> Iterator[Reason]:
    slots = sum(worker.slots for worker in able)
    names = {worker.worker_id for worker in able}
    busy = [job for job in queue.executing if job.worker_id in names]
    if all(worker.running >= worker.slots for worker in able):
        frees = _frees_s(busy, queue)
        used = {"used": len(busy), "slots": slots, "workers": len(able), "next_frees_s": frees}
        yield Reason("slots_full", f"all {slots} slots are busy{_soon(frees)}", used)
    elif lane not in policy.reserve.lanes and not any(_room_below(worker, queue, policy) for worker in able):
        reserved = policy.reserve.slots if policy.reserve.scope == "pool" else sum(w.reserved for w in able)
        kept = " and ".join(sorted(policy.reserve.lanes)) or "no lane"
        facts: dict[str, Any] = {"free": slots - len(busy), "reserved": reserved, "for": sorted(policy.reserve.lanes)}
        yield Reason("reserved", f"{plural(slots - len(busy), 'free slot')} kept for {kept}", facts)


def _room_below(worker: WorkerInfo, queue: QueueDiagnostics, policy: Policy) -> bool:
    """Return whether a worker may start a job of a lane outside the reserve."""
    reserve = policy.reserve
    pool = reserve.scope == "pool"
    mine = [job.lane for job in queue.executing if pool or job.worker_id == worker.worker_id]
    slots = sum(other.slots for other in queue.active_workers) if pool else worker.slots
    kept = reserve.slots if pool else worker.reserved
    return worker.running < worker.slots and slots - kept - reserve.outside(mine) > 0


def _behind(diagnosis: JobDiagnostics, able: Sequence[WorkerInfo], policy: Policy) -> Iterator[Reason]:
    job = diagnosis.job
    before, beside = _competing_lanes(job.lane, diagnosis.queue.snapshot, able, policy)
    if before:
        waiting = {line.name: line.waiting for line in before}
        text = ", ".join(f"{_count(count, LANES_COUNTED)} in {name}" for name, count in waiting.items())
        yield Reason("lane", f"better lanes go first: {text}", {"waiting": waiting})
    if beside:
        weight = lane_of(policy, job.lane).weight
        share = weight / (weight + sum(line.lane.weight for line in beside))
        with_names = ", ".join(line.name for line in beside)
        text = f"shares the next slots with {with_names}: {share:.0%} are {job.lane}'s"
        yield Reason("lane_share", text, {"with": [line.name for line in beside], "share": share})
    others = diagnosis.ahead - diagnosis.ahead_own
    if diagnosis.fair and others:
        text = f"{_count(others)} of other tenants go first by their share"
        yield Reason("tenant_share", text, {"ahead": others, "tenant": job.tenant})
    own = diagnosis.ahead_own if diagnosis.fair else diagnosis.ahead
    if own:
        whose = " of its tenant" if diagnosis.fair and job.tenant is not None else ""
        yield Reason("ahead", f"{_count(own)}{whose} came before it", {"ahead": own})


def _competing_lanes(
    lane: str, snapshot: Snapshot, able: Sequence[WorkerInfo], policy: Policy
) -> tuple[list[LaneView], list[LaneView]]:  # fmt: skip
    """Return the lanes with work that are served before this one, and those that share its turn."""
    offers = frozenset(offer for worker in able for offer in worker.offers)
    before: list[LaneView] = []
    for group in service_order(snapshot, offers, policy):
        if any(line.name == lane for line in group):
            return before, [line for line in group if line.name != lane and line.waiting]
        before += [line for line in group if line.waiting]
    return before, []


def _frees_s(holders: Iterable[RunningJob], queue: QueueDiagnostics) -> float | None:
    """Return the seconds until the first of these jobs is expected to end, or None if no run time is known."""
    costs = queue.rules.costs_us
    left = [
        job.started_at / 1_000 + costs[job.task] / SECOND_US - queue.now_at / 1_000
        for job in holders
        if job.task in costs
    ]
    return round(max(0.0, min(left)), 1) if left else None


def _soon(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"; next frees in about {length(seconds)}" if seconds >= 0.1 else "; next should free any moment"


def length(seconds: float) -> str:
    """Return a length of time for people."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"


def _count(jobs: int, exactly: int = AHEAD_COUNTED) -> str:
    more = "+" if jobs >= exactly else ""
    return f"{jobs:,}{more} job{'s' if jobs != 1 else ''}"
