"""The jobs of a simulation that starts now: those in the queue, and arrivals drawn from what workers have learned."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headway.core.distributions import Lengths, Model
from headway.core.job import JobRecord, State
from headway.core.policy.document import INTERACTIVE, LimitRule, Policy
from headway.core.policy.enforced import PauseSet
from headway.core.worker import WorkerInfo, WorkerState, capabilities_in
from headway.simulate.capacity import Capacity, TimedPause
from headway.simulate.job import SimulatedJob
from headway.simulate.recording import recorded_workers
from headway.simulate.trace import JOBS_MAX, in_order

UNKNOWN_MS = 1_000  # The length of a job whose task and lane have finished no job yet.
POINTS = 64  # Values of the remaining time of a running job, of which one is drawn.


@dataclass(slots=True)
class LiveQueue:
    """The queue at one moment, and what workers have learned. ``jobs`` run, wait, or have ended lately, as examples."""

    now_at: int
    jobs: Sequence[JobRecord]
    workers: Sequence[WorkerInfo]
    model: Model
    policy: Policy
    paused: PauseSet = field(default_factory=PauseSet)
    declared: Mapping[str, LimitRule] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def capacity(self) -> Capacity | None:
        """Return the workers that are alive, and what is paused. Both stay so for the whole simulation."""
        alive = [worker for worker in self.workers if worker.state is WorkerState.ACTIVE]
        workers = recorded_workers([], alive, self.now_at, self.policy)
        pauses = () if self.paused == PauseSet() else (TimedPause(self.paused),)
        return Capacity(workers, pauses, dict(self.declared)) if workers else None


def jobs_from_now(queue: LiveQueue, span_ms: int, seed: int) -> list[SimulatedJob]:
    """Draw the jobs of the next ``span_ms``. The same seed gives the same jobs.

    Jobs that run come first, so that each finds a slot. Then come those that wait, with the age they have. Lengths and
    arrivals are drawn from what was learned. A new job looks like an earlier one of its task.
    """
    chance = random.Random(seed)
    made: list[SimulatedJob] = []
    queue.left_out.clear()
    examples: dict[str, list[JobRecord]] = {}
    for job in queue.jobs:
        if job.rung == INTERACTIVE:
            queue.left_out["interactive sessions"] += 1
            continue
        examples.setdefault(job.task, []).append(job)
        if job.state is State.EXECUTING:
            elapsed = (queue.now_at - (job.started_at or queue.now_at)) / 1_000
            lengths = queue.model.task(job.task, job.lane)
            left = chance.choice(lengths.left(elapsed, POINTS)) if lengths else UNKNOWN_MS / 1_000
            made.append(_job(job, 0, max(1, round(1_000 * left)))._replace(counted=False))
        elif job.state is State.QUEUED and job.held:
            queue.left_out["waiting for other jobs"] += 1
        elif job.state is State.QUEUED:
            delay_ms = 0 if job.due_at is None else max(0, job.due_at - queue.now_at)
            age_ms = 0 if delay_ms else max(0, queue.now_at - (job.eligible_at or queue.now_at))
            length_ms = _draw(queue.model.task(job.task, job.lane), chance)
            made.append(_job(job, 1, length_ms)._replace(delay_ms=delay_ms, age_ms=age_ms))
    made.sort(key=lambda job: (job.arrives_ms, -job.age_ms))
    coming = [job for lane in sorted(queue.policy.lanes) for job in _arrivals(queue, lane, span_ms, chance, examples)]
    return in_order(made + coming)


def _arrivals(
    queue: LiveQueue, lane: str, span_ms: int, chance: random.Random, examples: Mapping[str, list[JobRecord]]
) -> list[SimulatedJob]:
    learned = queue.model.learned
    shares = learned.shares.get(lane) or dict.fromkeys(learned.lengths.get(lane, {}), 1.0)
    if not shares:
        return []
    tasks, weights = list(shares), list(shares.values())
    made: list[SimulatedJob] = []
    for tenant, arrivals in sorted(learned.arrivals.get(lane, {}).items()):
        if arrivals.times <= 0 or arrivals.rate * span_ms / 1_000 > JOBS_MAX:
            continue
        at_ms = chance.expovariate(arrivals.times) * 1_000
        while at_ms < span_ms:
            size = 1 if arrivals.size <= 1 else max(1, round(chance.expovariate(1 / arrivals.size)))
            for task in chance.choices(tasks, weights, k=size):
                length_ms = _draw(queue.model.task(task, lane), chance)
                job = SimulatedJob(2 + round(at_ms), length_ms, task, lane, tenant or None)
                if task in examples:
                    like = chance.choice(examples[task])
                    job = job._replace(duration=like.rung, needs=like.needs, limits=like.limits)
                made.append(job)
            at_ms += chance.expovariate(arrivals.times) * 1_000
    return made


def _job(record: JobRecord, arrives_ms: int, length_ms: int) -> SimulatedJob:
    return SimulatedJob(
        arrives_ms,
        length_ms,
        record.task,
        record.lane,
        record.tenant,
        record.rung,
        tuple(capabilities_in(record.needs)),
        record.limits,
        max_retries=record.max_retries,
        timeout_ms=record.timeout_ms,
    )


def _draw(lengths: Lengths | None, chance: random.Random) -> int:
    return UNKNOWN_MS if lengths is None else max(1, round(1_000 * lengths.at(chance.random())))
