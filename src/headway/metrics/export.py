"""The metrics of a whole store, for a monitoring system. Every process exports the same numbers.

The store's own counts are read at the time of the export. Counts that only processes have are summed from their
documents. A monitoring system that scrapes several servers and workers must take the maximum, never the sum.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from headway.core.job import ENDED_STATES, RETRYABLE_STATES, State
from headway.core.policy.document import HALTED, Policy
from headway.core.policy.guarantees import guaranteed_slots
from headway.core.worker import WorkerInfo, WorkerState
from headway.core.workflow import BatchQuery, BatchRecord
from headway.metrics import recorder
from headway.metrics.documents import OTHER, TASK_RUNS, MetricRow, MetricsDocument, read_documents
from headway.metrics.text_format import (
    Labels,
    MetricFamily,
    Sample,
    by_label,
    content_type_for,
    counters,
    gauges,
    write_text,
)
from headway.metrics.waiting import waiting_families
from headway.policy_store.catalogue import TASKS
from headway.stores.base import LaneStats, Stats, Store

PROMOTED = "promoted."
LOWERED = "lowered."
BATCHES_READ = 100  # The newest batches, so that an export stays cheap however many the store keeps.


async def collect(store: Store, policy: Policy) -> list[MetricFamily]:
    """Read all metrics of the store."""
    tasks = {document.name for document in await store.read(TASKS)}
    batches = await store.find_batches(BatchQuery(limit=BATCHES_READ))
    stats, queue, blocked = await store.stats(), await store.diagnose(), (await store.breakdown()).blocked
    return [
        *store_families(stats, policy),
        *waiting_families(stats, queue, policy, blocked),
        _batch_durations(batches),
        *counted_families(await read_documents(store), policy, tasks),
    ]


async def render(store: Store, policy: Policy, accept: str = "") -> tuple[bytes, str]:
    """Read the metrics of the store. Return them with their content type, which ``accept`` chooses."""
    content_type = content_type_for(accept)
    return write_text(await collect(store, policy), content_type).encode(), content_type


def store_families(stats: Stats, policy: Policy) -> Iterator[MetricFamily]:
    """Yield the metrics that one read of the store contains."""
    lanes = _lanes(stats, policy)
    waiting = by_label("priority", {name: lane.waiting for name, lane in lanes.items()})
    delayed = by_label("priority", {name: lane.delayed for name, lane in lanes.items()})
    held = by_label("priority", {name: lane.held for name, lane in lanes.items()})
    executing = by_label("priority", {name: lane.executing for name, lane in lanes.items()})
    since_at = {name: stats.now_at if lane.oldest_at is None else lane.oldest_at for name, lane in lanes.items()}
    ages = {name: max(0, stats.now_at - at) / 1_000 for name, at in since_at.items()}
    oldest = "How long the longest-waiting task of a lane has waited, without blocked tasks."
    yield gauges("queue_depth", "Tasks waiting: neither delayed nor executing.", waiting)
    yield gauges("headway_queue_delayed", "Tasks not due yet.", delayed)
    yield gauges("headway_queue_held", "Tasks that wait for other tasks.", held)
    yield gauges("headway_queue_executing", "Tasks executing.", executing)
    yield gauges("headway_queue_oldest_age_seconds", oldest, by_label("priority", ages))
    yield counters("tasks_promoted", "Claims decided by a promotion.", _promotions(stats.totals, policy))
    lowered = _downgrades(stats.totals, policy)
    yield counters("headway_tasks_downgraded", "Running tasks that were lowered to a duration.", lowered)
    halted = stats.totals.get(f"{LOWERED}{HALTED}", 0)
    yield _counter("headway_sessions_halted", "Interactive sessions ended to make room.", halted)
    yield gauges(
        "task_state_total",
        "Tasks by status now; of completed ones, all there ever were, since they are kept for a while only.",
        by_label("status", _states(stats, lanes)),
    )
    totals = stats.totals
    yield _counter("headway_tasks_submitted", "Tasks submitted.", totals.get("submitted", 0))
    yield _counter("headway_tasks_claimed", "Tasks claimed, each attempt by itself.", totals.get("claimed", 0))
    unheld = "Tasks that had waited for other tasks until these had ended."
    yield _counter("headway_tasks_unheld", unheld, totals.get("unheld", 0))
    ended = {end.value: totals.get(end, 0) + totals.get(f"transient_{end}", 0) for end in ENDED_STATES}
    yield counters("headway_tasks_finished", "Tasks ended, by how; transient ones too.", by_label("status", ended))
    yield _counter("tasks_dlq", "Tasks that became dead letters.", totals.get(State.DEAD_LETTER, 0))
    yield _gauge("headway_dead_letters", "Dead letters that are kept.", stats.kept.get(State.DEAD_LETTER, 0))
    yield from _workers(stats, lanes, policy)
    yield gauges(
        "headway_count_drift",
        "By how much a number that is kept differs from what counting again gives. Anything but 0 is a bug.",
        by_label("counter", {"running": abs(_running(stats.workers) - sum(lane.executing for lane in lanes.values()))}),
    )


def _lanes(stats: Stats, policy: Policy) -> dict[str, LaneStats]:
    """Return the lanes of the policy, and all other lanes together as one more."""
    lanes = {name: stats.lanes.get(name, LaneStats()) for name in policy.lanes}
    rest = [lane for name, lane in stats.lanes.items() if name not in lanes and any(lane)]
    if rest:
        oldest_at = min((lane.oldest_at for lane in rest if lane.oldest_at is not None), default=None)
        waiting, delayed, executing = (sum(lane[at] or 0 for lane in rest) for at in range(3))
        lanes[OTHER] = LaneStats(waiting, delayed, executing, oldest_at, sum(lane.held for lane in rest))
    return lanes


def _promotions(totals: Mapping[str, int], policy: Policy) -> list[tuple[Labels, float]]:
    lanes = policy.lanes
    pairs: dict[str, Labels] = {
        f"{PROMOTED}{low}.{high}": (("from", low), ("to", high))
        for low in lanes
        for high in lanes
        if lanes[high].level < lanes[low].level
    }
    found: list[tuple[Labels, float]] = [(labels, totals.get(key, 0)) for key, labels in pairs.items()]
    others = sum(count for key, count in totals.items() if key.startswith(PROMOTED) and key not in pairs)
    if others:
        found.append(((("from", OTHER), ("to", OTHER)), others))
    return found


def _downgrades(totals: Mapping[str, int], policy: Policy) -> list[tuple[Labels, float]]:
    names = [rung.name for rung in policy.ladder.rungs]
    found: list[tuple[Labels, float]] = [((("duration", name),), totals.get(LOWERED + name, 0)) for name in names[:-1]]
    known = {LOWERED + name for name in (*names[:-1], HALTED)}
    others = sum(count for key, count in totals.items() if key.startswith(LOWERED) and key not in known)
    return [*found, ((("duration", OTHER),), others)] if others else found


def _states(stats: Stats, lanes: Mapping[str, LaneStats]) -> dict[str, int]:
    return {
        State.QUEUED.value: sum(lane.waiting + lane.delayed + lane.held for lane in lanes.values()),
        State.EXECUTING.value: sum(lane.executing for lane in lanes.values()),
        State.COMPLETED.value: stats.totals.get(State.COMPLETED, 0),
        **{state.value: stats.kept.get(state, 0) for state in RETRYABLE_STATES},
    }


def _batch_durations(batches: Iterable[BatchRecord]) -> MetricFamily:
    """Return how long batches took that have ended. No process sees every batch end, so there is no histogram."""
    took = sorted((batch.finished_at - batch.created_at) / 1_000 for batch in batches if batch.finished_at is not None)
    samples = [
        Sample("", (("quantile", str(part)),), took[min(len(took) - 1, int(part * len(took)))])
        for part in (0.5, 0.9)
        if took
    ]
    text = f"From creation to the end, of those of the newest {BATCHES_READ} batches that have ended."
    return MetricFamily("headway_batch_duration_seconds", "summary", text, samples)


def _workers(stats: Stats, lanes: Mapping[str, LaneStats], policy: Policy) -> Iterator[MetricFamily]:
    live = stats.live_workers
    states = {state.value: sum(worker.state is state for worker in stats.workers) for state in WorkerState}
    yield gauges("workers_total", "Workers by state; dead ones are remembered for an hour.", by_label("status", states))
    slots, used = sum(worker.slots for worker in live), _running(live)
    filled = used / slots if slots else 0
    pool = policy.reserve.scope == "pool"
    reserved = policy.reserve.slots if pool else sum(worker.reserved for worker in live)
    yield _gauge("worker_capacity_used_ratio", "The part of all slots of live workers that is filled.", filled)
    yield gauges(
        "headway_slots",
        "Slots of live workers: all, those filled, and those kept for lanes of the reserve.",
        by_label("kind", {"total": slots, "used": used, "reserved": reserved}),
    )
    sure = guaranteed_slots(policy, slots, len(live))
    yield gauges(
        "headway_guaranteed_slots",
        "Slots of live workers that a lane gets, however much work the other lanes have.",
        by_label("priority", {lane: sure.get(lane, 0.0) for lane in policy.lanes}),
    )
    yield _gauge(
        "headway_reserved_idle_slots",
        "Slots idle for lanes of the reserve while tasks of other lanes wait.",
        idle_reserve(live, lanes, policy),
    )


def idle_reserve(live: Sequence[WorkerInfo], lanes: Mapping[str, LaneStats], policy: Policy) -> int:
    """Return how many slots are idle only because they are reserved."""
    reserve = policy.reserve
    if not any(lane.waiting for name, lane in lanes.items() if name not in reserve.lanes):
        return 0
    active = [worker for worker in live if worker.state is WorkerState.ACTIVE]
    if reserve.scope == "pool":
        free = sum(worker.slots for worker in active) - _running(active)
        return free if free <= reserve.slots else 0
    # A worker with more free slots than it reserves is about to claim such a task.
    free_slots = [(worker.slots - worker.running, worker.reserved) for worker in active]
    return sum(free for free, reserved in free_slots if free <= reserved)


def _running(workers: Iterable[WorkerInfo]) -> int:
    return sum(worker.running for worker in workers)


def counted_families(document: MetricsDocument, policy: Policy, tasks: Collection[str] = ()) -> Iterator[MetricFamily]:
    """Yield the counts of all processes, up to a few seconds ago. ``tasks``: the names in the catalogue."""
    lanes = [*policy.lanes]
    for what, (name, text, labels) in _HISTOGRAMS.items():
        yield _histograms(name, text, document, what, labels, lanes)
    for what in _BY_REASON:
        yield _by_reason(document, what, lanes)
    yield _by_task(document, tasks)
    yield from _estimates(document, lanes)
    for what, (name, text, unit) in _COUNTERS.items():
        yield _counter(name, text, document.counters.get(what, 0) / unit)


_HISTOGRAMS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    recorder.QUEUE_WAIT: ("queue_age_seconds", "How long tasks had waited when they were claimed.", ("priority",)),
    recorder.TOTAL_TIME: (
        "task_duration_seconds",
        "From submission to the end, of tasks that ended after a run.",
        ("status", "priority"),
    ),
    recorder.RUN_TIME: ("headway_run_seconds", "How long attempts ran.", ("outcome", "priority")),
    recorder.ERRORS: (
        "headway_estimate_error_ratio",
        "By which part of the wait p50 was off, of tasks that waited over 5 s.",
        ("priority",),
    ),
    recorder.STARTS: ("headway_start_delay_seconds", "From a claim's answer until its tasks had begun.", ()),
    recorder.EXCHANGES: (
        "headway_exchange_seconds",
        "One exchange of a worker with its store, by what it brought.",
        ("result",),
    ),
}

_BY_REASON: dict[str, tuple[str, str, tuple[str, ...]]] = {
    recorder.RETRIES: ("task_retries", "Attempts after which a task goes again.", recorder.RETRY_REASONS),
    recorder.FAILURES: (
        "tasks_failed",
        "Tasks that ended as failed or dead_letter.",
        (*recorder.FAILURE_REASONS, OTHER),
    ),
    recorder.RELEASES: (
        "headway_tasks_released",
        "Tasks given back with no attempt used.",
        (*recorder.RELEASE_REASONS, OTHER),
    ),
}
_COUNTERS = {  # With the number of recorded units in one of the metric.
    recorder.HEARTBEAT_FAILURES: (
        "worker_heartbeat_failures",
        "Renewals that a store did not take, and workers that sent none until their leases ran out.",
        1,
    ),
    recorder.STORE_ERRORS: ("headway_exchange_failures", "Exchanges that a store did not take.", 1),
    recorder.LOG_DROPPED: (
        "headway_log_lines_dropped",
        "Log lines that a blocked or failing standard error has lost.",
        1,
    ),
    recorder.RESERVED_IDLE: (
        "headway_reserved_idle_seconds",
        "Slot-seconds idle for lanes of the reserve while tasks of other lanes waited.",
        1_000,
    ),
}


def _estimates(document: MetricsDocument, lanes: Sequence[str]) -> Iterator[MetricFamily]:
    """Yield the accuracy of estimates."""
    scored, held = _by_lane(document, recorder.SCORED, lanes), _by_lane(document, recorder.WITHIN_ESTIMATE, lanes)
    compared = by_label("priority", {lane: scored.get(("", lane), 0) for lane in lanes})
    yield counters("headway_estimates_scored", "Estimates that were compared with what happened.", compared)
    coverage: list[tuple[Labels, float]] = [
        ((("estimate", name), ("priority", lane)), held.get((name, lane), 0) / count)
        for (_, lane), count in scored.items()
        for name in ("p50", "p90")
        if count
    ]
    yield gauges("headway_estimate_coverage", "The part of tasks that began within p50, and within p90.", coverage)
    given: list[tuple[Labels, float]] = [
        ((("basis", basis), ("priority", lane)), count)
        for (basis, lane), count in _by_lane(document, recorder.ESTIMATES_GIVEN, lanes).items()
    ]
    yield counters("headway_estimates", "Estimates that were given, by what they rest on.", given)


def _by_lane(document: MetricsDocument, what: str, lanes: Sequence[str]) -> dict[tuple[str, str], float]:
    """Sum counters by a label, if they have one, and by lane."""
    counts: dict[tuple[str, str], float] = {}
    for key, count in document.counters.items():
        kind, *given = key.split("|", 1)
        if kind == what and given:
            label, _, lane = ("", "", given[0]) if what == recorder.SCORED else given[0].partition("|")
            at = (label, lane if lane in lanes else OTHER)
            counts[at] = counts.get(at, 0) + count
    return counts


def _by_reason(document: MetricsDocument, what: str, lanes: Sequence[str]) -> MetricFamily:
    """Return counters by reason, and by lane for retries. Known reasons start at 0, so that no increase is missed."""
    by_lane = what == recorder.RETRIES
    name, text, reasons = _BY_REASON[what]
    counts: dict[Labels, float] = {
        ((("priority", lane),) if by_lane else ()) + (("reason", reason),): 0
        for reason in reasons
        for lane in (lanes if by_lane else ("",))
    }
    for key, count in document.counters.items():
        kind, _, rest = key.partition("|")
        if kind == what:
            reason, _, lane = rest.partition("|")
            labels: Labels = (("reason", reason if reason in reasons else OTHER),)
            if by_lane:
                labels = (("priority", lane if lane in lanes else OTHER), *labels)
            counts[labels] = counts.get(labels, 0) + count
    return counters(name, text, list(counts.items()))


def _histograms(
    name: str, text: str, document: MetricsDocument, what: str, labels: tuple[str, ...], lanes: Sequence[str]
) -> MetricFamily:
    rows: dict[Labels, MetricRow] = {}
    if labels == ("priority",):
        rows = {(("priority", lane),): [0] * (len(recorder.BOUNDS[what]) + 2) for lane in lanes}
    if not labels:
        rows = {(): [0] * (len(recorder.BOUNDS[what]) + 2)}
    for key, row in document.rows.items():
        kind, *given = key.split("|", len(labels))
        if kind != what or len(row) != len(recorder.BOUNDS[what]) + 2:
            continue
        if labels and labels[-1] == "priority" and given[-1] not in lanes:
            given[-1] = OTHER
        at = tuple(sorted(zip(labels, given, strict=True)))
        known = rows.get(at)
        rows[at] = row if known is None else [known[i] + row[i] for i in range(len(row))]
    bounds = [*(f"{bound / 1_000:g}" for bound in recorder.BOUNDS[what]), "+Inf"]
    samples: list[Sample] = []
    for at, row in rows.items():
        count = 0.0
        for bound, more in zip(bounds, row, strict=False):
            count += more
            samples.append(Sample("_bucket", (*at, ("le", bound)), count))
        samples += [Sample("_count", at, count), Sample("_sum", at, row[-1] / 1_000)]
    return MetricFamily(name, "histogram", text, samples)


def _by_task(document: MetricsDocument, tasks: Collection[str]) -> MetricFamily:
    """Return attempts by task: the busiest tasks of the catalogue, and all others as one."""
    rows: dict[tuple[str, str], MetricRow] = {}
    counts: dict[str, float] = {}
    for key, row in document.rows.items():
        kind, *given = key.split("|", 2)
        if kind == TASK_RUNS and len(given) == 2 and len(row) == 2:
            outcome, task = given
            rows[task, outcome] = row
            counts[task] = counts.get(task, 0) + row[0]
    known = sorted((task for task in counts if task in tasks), key=lambda task: counts[task], reverse=True)
    shown = set(known[: recorder.TASKS_MAX])
    summed: dict[Labels, MetricRow] = {}
    for (task, outcome), row in rows.items():
        labels = (("outcome", outcome), ("task", task if task in shown else OTHER))
        before = summed.get(labels, [0, 0])
        summed[labels] = [before[0] + row[0], before[1] + row[1]]
    samples = [
        sample
        for labels, (count, sum_ms) in summed.items()
        for sample in (Sample("_count", labels, float(count)), Sample("_sum", labels, sum_ms / 1_000))
    ]
    return MetricFamily(
        "headway_task_run_seconds", "summary", "Attempts by task: how many, and how long they ran.", samples
    )


def _gauge(name: str, text: str, value: float) -> MetricFamily:
    return gauges(name, text, [((), value)])


def _counter(name: str, text: str, value: float) -> MetricFamily:
    return counters(name, text, [((), value)])
