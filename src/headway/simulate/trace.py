"""A trace: jobs that came, with the workers and the policy of that time where they are known. It has no payloads."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from headway.core.errors import ConfigError
from headway.core.policy.document import LimitRule, Policy
from headway.core.policy.reader import read_policy
from headway.core.policy.writer import policy_data
from headway.core.worker import ANY_TASK, tasks_in
from headway.simulate.capacity import Capacity, SlotStep, WorkerPlan, no_such_lane
from headway.simulate.job import SimulatedJob

JOBS_MAX = 2_000_000  # Jobs of one simulation: about a gigabyte of memory.
FORMAT = 1  # The version of trace files.


@dataclass(slots=True)
class Trace:
    """Jobs in the order of arrival. ``begin_at``: when the first one came, if the trace has moments and not seconds.

    ``policy`` is the one that was in force, ``declared`` are the limits of tasks, and ``left_out`` counts what is not
    replayed by reason. ``source`` names the file or store in errors.
    """

    jobs: list[SimulatedJob]
    source: str
    begin_at: int | None = None
    workers: tuple[WorkerPlan, ...] = ()
    policy: Policy | None = None
    policy_version: int | None = None
    declared: dict[str, LimitRule] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    ignored: tuple[str, ...] = ()  # Columns of the file that mean nothing to a simulation.

    @property
    def span_ms(self) -> int:
        return self.jobs[-1].arrives_ms if self.jobs else 0

    @property
    def capacity(self) -> Capacity | None:
        """Return the workers as they were, if they are known."""
        return Capacity(self.workers, declared=self.declared) if self.workers else None

    def where(self, job: SimulatedJob, column: str) -> str:
        """Return the place of a job for errors: its line, or its task if no file has a line for it."""
        place = f" line {job.where:,}, column {column}" if job.where else f", task {job.task!r}"
        return self.source + place


def check_lanes(trace: Trace, policy: Policy, name: str) -> None:
    """Raise ``ConfigError`` for the first job whose lane a policy does not have."""
    known = {None, *policy.lanes}
    for job in trace.jobs:
        rule = policy.tasks.get(job.task)
        if job.lane not in known and (rule is None or rule.priority is None):
            raise ConfigError(f"{trace.where(job, 'lane')}: {no_such_lane(job.lane or '', policy, name)}")


def check_sources(trace: Trace) -> None:
    """Raise ``ConfigError`` for the first job that no store would let wait for the jobs and batches that it names.

    A job of a tenant may wait for jobs of this tenant only. A batch belongs to the first tenant that waits for it.
    """
    owners = {job.name: job.tenant for job in trace.jobs if job.name is not None}
    batches = {job.batch for job in trace.jobs}
    for job in trace.jobs:
        for source in job.after:
            if source == job.batch:
                raise ConfigError(f"{trace.where(job, 'after')}: the job is in batch {source!r} and cannot wait for it")
            if job.tenant is None:
                continue
            if source in batches:
                owners.setdefault(source, job.tenant)
            owner = owners.get(source, job.tenant)
            if owner != job.tenant:
                whose = "no tenant" if owner is None else f"tenant {owner!r}"
                raise ConfigError(
                    f"{trace.where(job, 'after')}: a job of tenant {job.tenant!r} cannot wait for {source!r}, "
                    f"which belongs to {whose}"
                )


def scaled(jobs: list[SimulatedJob], factor: float) -> list[SimulatedJob]:
    """Return the jobs as if ``factor`` times as many came in the same time: copies of jobs spread evenly, or fewer.

    A copy comes half-way to the next job, so that bursts stay bursts. Copies have no name and wait for no other job.
    """
    if factor == 1:
        return jobs
    made: list[SimulatedJob] = []
    due = 0.0
    for index, job in enumerate(jobs):
        next_ms = jobs[index + 1].arrives_ms if index + 1 < len(jobs) else job.arrives_ms
        due += factor
        copies = int(due + 1e-9)
        due -= copies
        for number in range(copies):
            if number == 0:
                made.append(job)
            else:
                arrives_ms = job.arrives_ms + (next_ms - job.arrives_ms) * number // copies
                made.append(job._replace(arrives_ms=arrives_ms, name=None, batch=None, after=(), waited_ms=None))
    if len(made) > JOBS_MAX:
        raise ConfigError(f"--scale {factor:g} makes {len(made):,} jobs; a simulation takes at most {JOBS_MAX:,}")
    return made


def anonymised(
    trace: Trace, salt: bytes, *, tenants: bool = True, tasks: bool = False, names: bool = True
) -> Trace:  # fmt: skip
    """Return the trace with hashed names of tenants, of tasks, and of jobs, batches and workers.

    The values in limit counters come from arguments, so they are always hashed. Equal names stay equal, so the policy
    decides as before. Without the salt no name can be guessed.
    """

    def hide(kind: str, text: str) -> str:
        return f"{kind}-{hashlib.blake2b(text.encode(), key=salt, digest_size=5).hexdigest()}"

    def limit(counter: str) -> str:
        name, equals, value = counter.partition("=")
        return f"{name}={hide('value', value)}" if equals else counter

    def change(job: SimulatedJob) -> SimulatedJob:
        return job._replace(
            tenant=hide("tenant", job.tenant) if tenants and job.tenant is not None else job.tenant,
            task=hide("task", job.task) if tasks else job.task,
            limits=tuple(map(limit, job.limits)),
            name=hide("job", job.name) if names and job.name is not None else job.name,
            batch=hide("batch", job.batch) if names and job.batch is not None else job.batch,
            after=tuple(hide("batch" if source in batches else "job", source) for source in job.after)
            if names
            else job.after,
        )

    batches = {job.batch for job in trace.jobs}
    policy = trace.policy
    if policy is not None and tenants:
        own = policy.tenants
        hidden = replace(
            own,
            weights={hide("tenant", name): weight for name, weight in own.weights.items()},
            max_depths={hide("tenant", name): depth for name, depth in own.max_depths.items()},
        )
        policy = replace(policy, tenants=hidden)
    workers = trace.workers
    if tasks:
        if policy is not None:
            policy = replace(policy, tasks={hide("task", name): rule for name, rule in policy.tasks.items()}, limits={})
        workers = tuple(replace(worker, offers=tuple(map(_any_task, worker.offers))) for worker in workers)
    if names:
        workers = tuple(replace(worker, name=f"worker-{number}") for number, worker in enumerate(workers, 1))
    return replace(trace, jobs=[change(job) for job in trace.jobs], policy=policy, workers=workers)


def _any_task(offer: str) -> str:
    return ANY_TASK if tasks_in((offer,)) else offer


def header_of(trace: Trace) -> dict[str, Any]:
    """Return what a trace file says before its jobs."""
    values: dict[str, Any] = {"headway_trace": FORMAT}
    if trace.workers:
        values["workers"] = [
            {
                "name": worker.name,
                "slots": [[step.from_ms / 1_000, step.slots] for step in worker.steps],
                "offers": list(worker.offers),
                "until": None if worker.until_ms is None else worker.until_ms / 1_000,
                "reserved": worker.reserved,
            }
            for worker in trace.workers
        ]
    if trace.policy is not None:
        values |= {"policy": policy_data(trace.policy), "policy_version": trace.policy_version}
    if trace.declared:
        values["declared"] = policy_data(Policy(limits=trace.declared))["limits"]
    return values


def read_header(values: dict[str, Any], trace: Trace) -> None:
    """Read what ``header_of`` wrote into a trace. Raises ``ConfigError``."""
    where = f"{trace.source} line 1"
    if values.get("headway_trace") != FORMAT:
        raise ConfigError(f"{where}: expected trace format {FORMAT}, found {values.get('headway_trace')!r}")
    try:
        trace.workers = tuple(_read_worker(worker) for worker in values.get("workers", ()))
        version = values.get("policy_version")
        trace.policy_version = version if isinstance(version, int) else None
    except (KeyError, TypeError, ValueError, IndexError) as problem:
        raise ConfigError(f"{where}: the workers of the trace cannot be read: {problem!r}") from problem
    if "policy" in values:
        trace.policy = read_policy(values["policy"], where)
    if "declared" in values:
        trace.declared = dict(read_policy({"limits": values["declared"]}, where).limits)


def _read_worker(values: dict[str, Any]) -> WorkerPlan:
    steps = tuple(SlotStep(round(moment * 1_000), int(slots)) for moment, slots in values["slots"])
    if not steps or any(step.slots < 0 or step.from_ms < 0 for step in steps):
        raise ValueError(f"worker {values['name']!r} has no slots")
    until, reserved = values.get("until"), values.get("reserved")
    return WorkerPlan(
        str(values["name"]),
        steps,
        tuple(map(str, values["offers"])),
        None if until is None else round(until * 1_000),
        None if reserved is None else int(reserved),
    )


def in_order(jobs: Iterable[SimulatedJob]) -> list[SimulatedJob]:
    """Return jobs in the order of arrival. Jobs of one moment stay in the order of the file."""
    return sorted(jobs, key=lambda job: job.arrives_ms)
