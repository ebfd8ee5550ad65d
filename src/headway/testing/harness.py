"""The test bed: an app with a memory store, whose jobs run when the test drains it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headway.client.app import Headway
from headway.client.client import Client
from headway.client.codec import has_inputs, read_payload
from headway.client.job import Job
from headway.client.task import Task
from headway.core.cron import next_tick, parse_cron
from headway.core.errors import BadArguments, ConfigError
from headway.core.job import JobId, NewJob, State, SubmitReply
from headway.core.policy.units import plural
from headway.core.suggest import did_you_mean
from headway.core.workflow import Graph, GraphReply
from headway.policy_store.current import CurrentPolicy
from headway.stores.base import Store
from headway.stores.open import open_store
from headway.testing.clock import ManualClock
from headway.testing.runner import DrainingRunner

AnyTask = Task[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class Drained:
    """The outcome of a drain. A job that was retried and then completed is in both lists."""

    completed: list[Job[Any]]
    failed: list[Job[Any]]  # Ended as failed or dead_letter.
    cancelled: list[Job[Any]]  # Stopped while they ran.
    retried: list[Job[Any]]  # Queued again by a failed attempt or a snooze, one entry for each time.
    errors: list[BaseException]  # Exceptions that tasks raised, without steering exceptions.
    attempts: int  # All attempts, including those of transient jobs, which are in no list.


@dataclass(frozen=True, slots=True)
class Enqueued:
    """An enqueued job. ``arguments`` are by name, without omitted defaults."""

    job: Job[Any]
    task: str
    arguments: dict[str, Any]
    priority: str
    tenant: str | None
    delay: float  # Seconds.

    def __str__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        extras = f"  priority={self.priority}"
        extras += f" tenant={self.tenant}" if self.tenant is not None else ""
        extras += f" delay={self.delay:g} s" if self.delay else ""
        return f"{self.task}({arguments}){extras}"


class Testbed:
    """Runs the jobs of an app without a worker: they go to a memory store and run when the test calls ``drain``.

    Inside ``with Testbed(app) as bed:`` the app uses the memory store, and after the block its own store again. Without
    an app the bed creates one, ``bed.app``. The store reads the time from ``bed.clock``, which moves only on
    ``advance``. ``slots`` is the number of jobs that run at once. With one slot, jobs run exactly in the order of the
    policy. Jobs that wait for other jobs need more slots.
    """

    __test__ = False  # pytest would collect the class by its name.

    attempts_max = 10_000  # More attempts in one drain mean jobs that never end.

    def __init__(self, app: Headway | None = None, *, clock: ManualClock | None = None, slots: int = 1) -> None:
        self._owned = app is None
        self.app = Headway("memory://") if app is None else app
        self.clock = clock or ManualClock()
        self._slots = slots
        self._store = open_store("memory://", clock=self.clock)
        self._client = _BedClient(self, self._store)
        self._before: Client | None = None
        self._in_force = self.app.in_force

    def __enter__(self) -> Testbed:
        if self._before is not None:
            raise ConfigError("this test bed is in use already")
        self._before, self.app.client = self.app.client, self._client
        # The memory store has no policy until a test applies one, so the app's current policy is in force.
        self._in_force, self.app.in_force = self.app.in_force, CurrentPolicy(self.app.policy, fixed=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._owned:
            self.app.close()
        if self._before is not None:
            self.app.client, self._before = self._before, None
            self.app.in_force = self._in_force

    # ------------------------------------------------------------------ running jobs

    async def adrain(self, *, advance: bool = False, raise_errors: bool = False) -> Drained:
        """Run every eligible job, and the jobs that these enqueue, until no job is eligible.

        Order, claims, retries and reports are those of a worker. Async tasks run on the event loop, plain tasks and
        those of executor ``process`` in a thread. The drain enters the app's lifespan, and offers every capability
        that jobs need.

        ``advance``: when no job is eligible, move the clock to the next delayed job or retry and continue.
        ``raise_errors``: stop at the first exception of a task and raise it once the attempt is recorded.
        Raises ``RuntimeError`` after ``attempts_max`` attempts.
        """
        runner = DrainingRunner(
            self.app,
            self._store,
            slots=self._slots,
            attempts_max=self.attempts_max,
            raise_errors=raise_errors,
            move_on=self._jump if advance else lambda _: False,
        )
        await runner.run_out()
        return drained(runner)

    def drain(self, *, advance: bool = False, raise_errors: bool = False) -> Drained:
        """Blocking twin of ``adrain``. Async tasks run on a new event loop in this thread."""
        _refuse_on_loop("drain", "adrain")
        return asyncio.run(self.adrain(advance=advance, raise_errors=raise_errors))

    async def atick(self, task: AnyTask) -> Job[Any]:
        """Move the clock to the next tick of a cron task and enqueue its job."""
        cron = self.app.crons.get(task.name)
        if cron is None:
            raise ConfigError(f"task {task.name} is not a cron")
        tick_at = next_tick(parse_cron(cron.expression, cron.tz), self.clock())
        if tick_at is None:
            raise ConfigError(f"task {task.name}: the cron {cron.expression!r} never ticks again")
        self.clock.advance(ms=tick_at - self.clock())
        call = task.call()
        if cron.overlap == "skip":
            call = call._replace(new=call.new._replace(unique_key=f"cron:{task.name}"))
        return call.handle((await self.app.submitter.submit([call]))[0])

    def tick(self, task: AnyTask) -> Job[Any]:
        """Blocking twin of ``atick``."""
        _refuse_on_loop("tick", "atick")
        return asyncio.run(self.atick(task))

    def _jump(self, ms: int) -> bool:
        self.clock.advance(ms=ms)
        return True

    # ------------------------------------------------------------------ checking enqueued jobs

    def enqueued(self, task: AnyTask | str | None = None) -> list[Enqueued]:
        """Return all jobs enqueued so far, oldest first, in any state. Deduplicated jobs are left out."""
        name = task.name if isinstance(task, Task) else task
        return [self._describe(new) for new in list(self._client.submitted.values()) if name in (None, new.task)]

    def assert_enqueued(
        self,
        task: AnyTask,
        *,
        count: int | None = None,
        priority: str | None = None,
        tenant: str | None = None,
        **arguments: Any,
    ) -> list[Enqueued]:
        """Assert that a job of this task was enqueued with at least these arguments. Return the matching jobs.

        ``count`` requires exactly this number of matches; without it one is enough. An omitted argument matches its
        default.
        """
        __tracebackhide__ = True  # pytest shows the line of the test instead.
        for name in arguments:
            if name not in task.signature.parameters:
                hint = did_you_mean(name, list(task.signature.parameters))
                raise BadArguments(f"task {task.name} has no parameter {name!r}{hint}")
        wanted: list[Callable[[Enqueued], bool]] = [
            lambda job: job.task == task.name,
            lambda job: priority in (None, job.priority),
            lambda job: tenant in (None, job.tenant),
            lambda job: all(_has(task, job, name, value) for name, value in arguments.items()),
        ]
        everything = self.enqueued()
        found = [job for job in everything if all(fits(job) for fits in wanted)]
        if len(found) != count if count is not None else not found:
            shown = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
            sought = f"{task.name}({shown})"
            sought += f" with priority {priority}" if priority is not None else ""
            sought += f" for tenant {tenant}" if tenant is not None else ""
            raise AssertionError(_complaint(sought, count, found, everything))
        return found

    def _describe(self, new: NewJob) -> Enqueued:
        task = self.app.tasks.get(new.task)
        if task is None or has_inputs(new.payload):
            arguments, job = read_payload(new.payload), self.app.job(new.job_id)
        else:
            args, kwargs = task.signature.decode(new.payload)
            arguments, job = task.signature.bind(tuple(args), kwargs), task.job(new.job_id)
        return Enqueued(job, new.task, arguments, new.lane, new.tenant, new.delay_ms / 1_000)


def drained(runner: DrainingRunner) -> Drained:
    """Return the outcome of a runner. Raises the first error if asked to, and ``RuntimeError`` if jobs never end."""
    if runner.endless is not None:
        raise RuntimeError(
            f"{runner.attempts_max:,} attempts were made and jobs still come, the next one of {runner.endless}: "
            "does a task always snooze, or enqueue itself?"
        )
    if runner.raise_errors and runner.errors:
        raise runner.errors[0]
    jobs: dict[State, list[Job[Any]]] = {state: [] for state in State}
    for report in runner.reports:
        jobs[report.state].append(runner.app.job(report.job_id))
    return Drained(
        completed=jobs[State.COMPLETED],
        failed=[*jobs[State.FAILED], *jobs[State.DEAD_LETTER]],
        cancelled=jobs[State.CANCELLED],
        retried=jobs[State.QUEUED],
        errors=runner.errors,
        attempts=runner.attempts,
    )


def drain(app: Headway, *, advance: bool = False, raise_errors: bool = False) -> Drained:
    """Drain the test bed of an app; see ``Testbed.adrain``."""
    return _bed_of(app).drain(advance=advance, raise_errors=raise_errors)


async def adrain(app: Headway, *, advance: bool = False, raise_errors: bool = False) -> Drained:
    """Drain the test bed of an app; see ``Testbed.adrain``."""
    return await _bed_of(app).adrain(advance=advance, raise_errors=raise_errors)


def assert_enqueued(
    app: Headway,
    task: AnyTask,
    *,
    count: int | None = None,
    priority: str | None = None,
    tenant: str | None = None,
    **arguments: Any,
) -> list[Enqueued]:
    """Assert that a job was enqueued in the test bed of an app; see ``Testbed.assert_enqueued``."""
    __tracebackhide__ = True
    return _bed_of(app).assert_enqueued(task, count=count, priority=priority, tenant=tenant, **arguments)


class _BedClient(Client):
    """A client of the bed's store that records submitted jobs."""

    def __init__(self, bed: Testbed, store: Store) -> None:
        super().__init__(lambda: store)
        self.bed = bed
        self.submitted: dict[JobId, NewJob] = {}

    async def submit(self, jobs: Sequence[NewJob]) -> list[SubmitReply]:
        answers = await super().submit(jobs)
        for job, answer in zip(jobs, answers, strict=True):
            if not answer.deduplicated:
                self.submitted.setdefault(job.job_id, job)
        return answers

    async def submit_graph(self, graph: Graph) -> GraphReply:
        reply = await super().submit_graph(graph)
        for node, answer in zip(graph.nodes, reply.replies, strict=True):
            if not answer.deduplicated:
                self.submitted.setdefault(node.job.job_id, node.job)
        return reply


def _bed_of(app: Headway) -> Testbed:
    if not isinstance(app.client, _BedClient):
        raise ConfigError("this app is not in a test bed; write `with Testbed(app):` around the test")
    return app.client.bed


def _refuse_on_loop(name: str, coroutine: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(f"{name}() was called on a running event loop; write `await {coroutine}()`")


def _has(task: AnyTask, job: Enqueued, name: str, value: object) -> bool:
    found = job.arguments.get(name, task.signature.parameters[name].default)
    if found == value:
        return True
    try:  # Compare stored values: a tuple is stored as a list, a model as an object.
        return task.signature.canonical({name: found}) == task.signature.canonical({name: value})
    except Exception:
        return False


def _complaint(sought: str, count: int | None, found: Sequence[Enqueued], everything: Sequence[Enqueued]) -> str:
    wanted = "a job" if count is None else plural(count, "job")
    matched = "" if count is None else f", but {len(found)} matched"
    if not everything:
        return f"expected {wanted} {sought}{matched}; nothing was enqueued"
    return f"expected {wanted} {sought}{matched}; enqueued were:\n" + "\n".join(f"  {job}" for job in everything)
