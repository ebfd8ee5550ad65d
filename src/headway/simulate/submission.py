"""Submits the jobs of a simulation to the store, with their batches and dependencies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from headway.core.job import JobId, NewJob, State
from headway.core.policy.document import Policy
from headway.core.policy.enforced import task_rule
from headway.core.policy.lanes import lane_of
from headway.core.workflow import BATCH_PREFIX, BatchId, Edge, EdgeRule, Graph, GraphNode, NewBatch
from headway.simulate.job import EXPIRED, SimulatedJob
from headway.stores.memory import workflow
from headway.stores.memory.state import MemoryState
from headway.stores.memory.submit import submit

NO_MORE_AT = 1 << 62  # When the next job arrives if there is none: after every event.
TIMEOUT_MS = 24 * 3_600_000  # The timeout of a job whose lane the policy does not have.

_as_new_job = partial(tuple.__new__, NewJob)  # A third of the time of the constructor, which every job pays.
_NO_KEYS = tuple(NewJob._field_defaults[name] for name in NewJob._fields[14:-1])
# What the policy decides by: task, lane, retries, timeout and duration.
_Asked = tuple[str, str | None, int | None, int | None, str | None]


class TraceSubmitter:
    """Submits jobs in order. A job's id is its place among them."""

    def __init__(self, state: MemoryState, jobs: Sequence[SimulatedJob], policy: Policy, begin_at: int) -> None:
        self.submitted = 0
        self.arrives_at = NO_MORE_AT  # When the next jobs arrive.
        self.lanes: list[str] = []  # Of each submitted job, by the policy.
        self.next_due_at: int | None = None  # When the first delayed job of the last submit falls due.
        self._state = state
        self._jobs = jobs
        self._policy = policy
        self._begin_at = begin_at
        self._rules = {task: task_rule(policy, task) for task in {job.task for job in jobs}}
        self._known: dict[_Asked, tuple[str, int, int, str | None]] = {}  # By what jobs ask for: what the policy says.
        self._sources = {source for job in jobs for source in job.after}
        self._ids: dict[str, str] = {}  # By name of a job or batch that others wait for: its id.
        # By name of a job or batch: the tenant whose jobs wait for it. A store lets no others of a tenant wait.
        self._owners = {source: job.tenant for job in jobs if job.tenant is not None for source in job.after}
        self._last = {job.batch: index for index, job in enumerate(jobs) if job.batch is not None}
        self._kept: set[JobId] = set()  # Jobs that edges or batches may still need.
        self._expiring = [index for index, job in enumerate(jobs) if job.expires_ms is not None]
        self._go_to(0)

    def submit(self, now_at: int) -> None:
        """Submit all jobs that arrive at this moment."""
        state, jobs = self._state, self._jobs
        arrives_ms = now_at - self._begin_at
        self.next_due_at = None
        state.begin(now_at)
        plain: list[NewJob] = []
        index = self.submitted
        while index < len(jobs) and (job := jobs[index]).arrives_ms == arrives_ms:
            new = self._new(index, job)
            if job.delay_ms and (self.next_due_at is None or now_at + job.delay_ms < self.next_due_at):
                self.next_due_at = now_at + job.delay_ms
            if job.after or job.batch is not None or job.name in self._sources or job.age_ms:
                if plain:
                    submit(state, plain)
                    plain = []
                state.now_at = now_at - job.age_ms  # The store takes it as if it had come then.
                self._submit_graph(index, job, new)
                state.now_at = now_at
            else:
                plain.append(new)
            index += 1
        if plain:
            submit(state, plain)
        state.settle()
        self._go_to(index)

    def _go_to(self, index: int) -> None:
        self.submitted = index
        self.arrives_at = self._begin_at + self._jobs[index].arrives_ms if index < len(self._jobs) else NO_MORE_AT

    def forget(self, job_id: JobId) -> None:
        """Remove an ended job that nothing waits for, so that memory stays bounded."""
        record = self._state.jobs.get(job_id)
        if record is not None and job_id not in self._kept and record.state.ended:
            self._state.forget(record)

    def expired(self) -> list[int]:
        """Return the jobs that expired before they could start."""
        found = []
        for index in self._expiring:
            record = self._state.jobs.get(JobId(str(index)))
            if record is not None and record.state is State.CANCELLED and record.reason == EXPIRED:
                found.append(index)
        return found

    def _new(self, index: int, job: SimulatedJob) -> NewJob:
        what = job.task, job.lane, job.max_retries, job.timeout_ms, job.duration
        known = self._known.get(what)
        if known is None:
            known = self._known[what] = self._by_policy(*what)
        lane, max_retries, timeout_ms, duration = known
        self.lanes.append(lane)
        return _as_new_job(
            (JobId(str(index)), job.task, b"", b"", lane, max_retries, timeout_ms, job.needs, duration, job.tenant,
             None, job.delay_ms, None, job.expires_ms, *_NO_KEYS, job.limits)
        )  # fmt: skip

    def _by_policy(
        self, task: str, lane: str | None, max_retries: int | None, timeout_ms: int | None, duration: str | None
    ) -> tuple[str, int, int, str | None]:
        """Return the lane, retries, timeout and duration of a job. The policy's rule of a task goes before the job."""
        rule = self._rules[task]
        lane = rule.priority or lane or self._policy.default_lane
        own = lane_of(self._policy, lane)
        retries = max_retries if rule.max_retries is None else rule.max_retries
        return (
            lane,
            own.max_retries if retries is None else retries,
            rule.timeout_ms or timeout_ms or own.timeout_ms or TIMEOUT_MS,
            rule.duration or duration,
        )

    def _submit_graph(self, index: int, job: SimulatedJob, new: NewJob) -> None:
        """Submit a job with its edges, as a member of its batch. Sources that are not in the simulation are ignored."""
        self._kept.add(new.job_id)
        rule = EdgeRule(job.on_failure)
        edges = tuple(Edge(self._ids[source], rule) for source in job.after if source in self._ids)
        batch_id = create = None
        if job.batch is not None:
            batch_id = BatchId(f"{BATCH_PREFIX}{job.batch}")
            if job.batch not in self._ids:
                self._ids[job.batch] = batch_id
                create = NewBatch(batch_id, job.batch, tenant=self._owners.get(job.batch))
        back = self._policy.release == "back"
        workflow.submit_graph(
            self._state, Graph((GraphNode(new, edges),), create, None if create else batch_id, back=back)
        )
        if job.name is not None:
            self._ids[job.name] = new.job_id
        if job.batch is not None and batch_id is not None and self._last[job.batch] == index:
            workflow.close(self._state, batch_id)
