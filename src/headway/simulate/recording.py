"""A trace from the records of jobs that have ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from headway.core.job import JobRecord, State
from headway.core.policy.document import INTERACTIVE, LimitRule, Policy, reserved_slots
from headway.core.policy.lanes import lane_of
from headway.core.worker import ANY_TASK, WorkerInfo, WorkerState, capabilities_in
from headway.simulate.capacity import SlotStep, WorkerPlan
from headway.simulate.job import CANCELLED, COMPLETED, DEAD_LETTER, EXPIRED, FAILED, SimulatedJob
from headway.simulate.trace import Trace, in_order

_OUTCOMES = {
    State.COMPLETED: COMPLETED,
    State.FAILED: FAILED,
    State.DEAD_LETTER: DEAD_LETTER,
    State.CANCELLED: CANCELLED,
}


class Recording:
    """Collects records, which need not be in order, and makes a trace of them."""

    def __init__(self, source: str, policy: Policy, version: int | None = None) -> None:
        self._source = source
        self._policy = policy
        self._version = version
        self._records: list[tuple[JobRecord, tuple[str, ...]]] = []
        self.left_out: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: JobRecord, after: tuple[str, ...] = ()) -> None:
        """Add a job. ``after``: the jobs and batches that it waited for."""
        if not record.state.ended:
            self.left_out["had not ended"] += 1
        elif record.rung == INTERACTIVE:
            self.left_out["interactive sessions"] += 1
        elif record.started_at is None and record.reason != EXPIRED:
            self.left_out["cancelled while queued"] += 1
        elif record.lane not in self._policy.lanes:
            self.left_out[f"in lane {record.lane}, which the policy no longer has"] += 1
        else:
            self._records.append((record, after))

    def trace(self, workers: Sequence[WorkerInfo], declared: Mapping[str, LimitRule] = {}) -> Trace:
        """Return the trace. ``workers`` are those that the store knows now."""
        self._records.sort(key=lambda pair: pair[0].seq)
        records = [record for record, _ in self._records]
        begin_at = min((record.submitted_at for record in records), default=0)
        lengths = _mean_lengths(records)
        jobs = [self._job(record, after, begin_at, lengths) for record, after in self._records]
        return Trace(
            in_order(jobs),
            self._source,
            begin_at if records else None,
            recorded_workers(records, workers, begin_at, self._policy),
            self._policy,
            self._version,
            dict(declared),
            self.left_out,
        )

    def _job(
        self, record: JobRecord, after: tuple[str, ...], begin_at: int, lengths: Mapping[str, int]
    ) -> SimulatedJob:  # fmt: skip
        lane = lane_of(self._policy, record.lane)
        started_at, eligible_at = record.started_at, record.eligible_at
        run_ms = lengths.get(record.task, 1_000)
        if started_at is not None and record.finished_at is not None:
            run_ms = record.finished_at - started_at
        failed_ms = tuple(max(1, one.ended_at - one.started_at) for one in record.history if one.epoch < record.epoch)
        delay_ms, waited_ms = 0, None
        if eligible_at is not None and record.epoch <= 1:  # Of a job that ran again only the last wait is known.
            delay_ms = 0 if after else max(0, eligible_at - record.submitted_at)
            waited_ms = None if started_at is None else max(0, started_at - eligible_at)
        return SimulatedJob(
            record.submitted_at - begin_at,
            max(1, run_ms),
            record.task,
            record.lane,
            record.tenant,
            record.rung,
            tuple(capabilities_in(record.needs)),
            record.limits,
            failed_ms,
            EXPIRED if started_at is None else _OUTCOMES[record.state],
            delay_ms,
            None if record.expires_at is None else max(1, record.expires_at - record.submitted_at),
            None if record.max_retries == lane.max_retries else record.max_retries,
            None if record.timeout_ms == lane.timeout_ms else record.timeout_ms,
            record.job_id,
            record.batch_id,
            after,
            waited_ms=waited_ms,
        )


def _mean_lengths(records: Iterable[JobRecord]) -> dict[str, int]:
    sums: dict[str, tuple[int, int]] = {}
    for record in records:
        if record.started_at is not None and record.finished_at is not None:
            count, total_ms = sums.get(record.task, (0, 0))
            sums[record.task] = count + 1, total_ms + record.finished_at - record.started_at
    return {task: total_ms // count for task, (count, total_ms) in sums.items()}


def recorded_workers(
    records: Sequence[JobRecord], workers: Sequence[WorkerInfo], begin_at: int, policy: Policy
) -> tuple[WorkerPlan, ...]:  # fmt: skip
    """Return the workers as they were: those that the store knows, and those that only the records of jobs name.

    A worker that the store has forgotten had at least as many slots as jobs at once, and was there from its first job.
    It left after its last job if other workers started jobs after that. Otherwise nothing shows that it left.
    """
    runs: dict[str, list[tuple[int, int]]] = {}
    for record in records:
        if record.worker_id is not None and record.started_at is not None and record.finished_at is not None:
            runs.setdefault(record.worker_id, []).append((record.started_at, record.finished_at))
    known = {worker.worker_id: worker for worker in workers}
    last_start = max((started_at for own in runs.values() for started_at, _ in own), default=begin_at)
    needs = sorted({need for record in records for need in capabilities_in(record.needs)})
    made: list[WorkerPlan] = []
    for name in sorted({*runs, *(name for name, worker in known.items() if worker.state is WorkerState.ACTIVE)}):
        own = runs.get(name, [])
        first_at = min((started_at for started_at, _ in own), default=begin_at)
        last_finish = max((finished_at for _, finished_at in own), default=begin_at)
        until_ms = None if last_finish >= last_start else last_finish - begin_at
        worker = known.get(name)
        slots, offers, reserved = _most_at_once(own), (*needs, ANY_TASK), None
        if worker is not None:
            slots = max(slots, worker.slots)
            offers = (*capabilities_in(worker.offers), ANY_TASK)
            if worker.reserved != reserved_slots(policy, worker.slots, None):  # Its operator has chosen a number.
                reserved = worker.reserved
            first_at = min(first_at, worker.started_at or first_at)
            until_ms = None if worker.state is not WorkerState.DEAD else until_ms
        if slots:
            made.append(WorkerPlan(name, (SlotStep(max(0, first_at - begin_at), slots),), offers, until_ms, reserved))
    return tuple(made)


def _most_at_once(runs: Sequence[tuple[int, int]]) -> int:
    edges = sorted([(end, -1) for _, end in runs] + [(start, 1) for start, _ in runs])
    most = now = 0
    for _, step in edges:
        now += step
        most = max(most, now)
    return most
