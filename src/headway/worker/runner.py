"""Runs jobs: connects claimer, executors and slot table, and takes each job from claim to report."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from headway.client.app import Headway
from headway.client.codec import fill_inputs, has_inputs
from headway.client.context import Context
from headway.client.task import Task
from headway.core.errors import StoreUnavailable
from headway.core.lease import Lease
from headway.core.log_event import LogEvent
from headway.core.policy.document import INTERACTIVE, reserved_slots
from headway.core.policy.ladder import RunBudget
from headway.core.policy.retry import Ending, Raised, Released, TimedOut, Unknown
from headway.core.worker import TASK, WorkerInfo
from headway.dispatch.job_source import FinishedRun
from headway.maintenance.loop import Chore, run_chores
from headway.observability import traces
from headway.policy_store.current import READ_EVERY_IF_NOTIFIED
from headway.protocol.sessions import AddressSigner
from headway.runtime.bounded_wait import wait_until_set
from headway.runtime.os_support import resident_memory
from headway.stores.base import Progress, Store, Subscription
from headway.version import __version__
from headway.worker import control, session_transport
from headway.worker.active_job import ActiveJob
from headway.worker.backend.base import Backend, JobSource, LeaseTimes
from headway.worker.backend.store import StoreBackend
from headway.worker.claimer import Claimer
from headway.worker.context_runtime import WorkerRuntime
from headway.worker.executors.base import Executor
from headway.worker.executors.inline import InlineExecutor
from headway.worker.executors.process import ProcessExecutor
from headway.worker.executors.thread import ThreadExecutor
from headway.worker.inline_batching import TaskBatcher
from headway.worker.job_log import JobLog
from headway.worker.manifest import manifest, warn_of_durations, warn_of_fair_by, warn_of_threads
from headway.worker.middleware import call_inside, plain_value
from headway.worker.outcomes import Encoded, TaskFailed, ending_of_error, ending_of_timeout, ending_of_value
from headway.worker.program_output import OutputWriter
from headway.worker.recycling import MIB, TOO_LOW, ChildBounds, RunnerUse
from headway.worker.slot_table import SlotTable, Stop

log = logging.getLogger("headway.worker")

PULSE = 0.25  # Seconds between pulses in the slot table. The parent reports a blocked loop after four missed ones.
EXACT = 10.0  # Seconds. A shorter timeout gets a timer. A longer one is checked at each pulse, which costs less.
LEARN_EVERY = 5.0  # Seconds between publications of learned durations,
LEARN_IDLE = 60.0  # and between reads of other workers' durations while no job ends.
REGISTER_AGAIN, REGISTER_AGAIN_MAX = 0.1, 5.0  # Seconds between tries to register while the store is unavailable.
UNKNOWN_MAX = 1_000  # Maximum number of unknown task names that are logged, because clients may submit any name.
STOP_SECONDS = 2.0  # Seconds for stopped jobs to end before the runner leaves without them.


class Runner:
    """Claims and runs the jobs of one app in this process."""

    def __init__(
        self,
        app: Headway,
        backend: Backend,
        slot_table: SlotTable,
        *,
        worker_id: str,
        host: str,
        slots: int,
        reserved: int | None,
        app_path: str | None,
        has_parent: bool = False,
        on_offers: Callable[[Sequence[str]], None] | None = None,
        began: float | None = None,
        memory_after: float = 0.0,
        on_recycling: Callable[[control.RecyclingDue], None] | None = None,
    ) -> None:
        self._app = app
        self._backend = backend
        self._slot_table = slot_table
        self._settings = app.settings
        self._free_slots = list(reversed(range(slots)))
        self._jobs: dict[str, ActiveJob] = {}
        offers = (*self._settings.capabilities, *sorted(f"{TASK}{name}" for name in app.tasks))
        self.worker = WorkerInfo(
            worker_id=worker_id,
            host=host,
            pid=os.getpid(),
            slots=slots,
            reserved=reserved_slots(backend.in_force.policy, slots, reserved),
            offers=offers,
            version=__version__,
        )
        if isinstance(backend, StoreBackend):
            backend.recorder.on_recorded = app.on_recorded
        settings, bounds = self._settings, ChildBounds.of(self._settings)
        self._executors: dict[str, Executor] = {
            "async": InlineExecutor(_addresses(backend)),
            "thread": ThreadExecutor(slots),
            "process": ProcessExecutor(app_path, settings.payload_max, settings.log, bounds),
        }
        self._on_recycling = on_recycling  # Called once, when another runner should replace this one.
        self._began = time.monotonic() if began is None else began
        self._memory_after = memory_after
        self._use: RunnerUse | None = None  # None if no bound applies to this runner.
        self._warned_of_memory = False
        self._reserved_asked = reserved
        self._has_parent = has_parent  # A parent follows the policy and sends its version.
        self._on_offers = on_offers  # Called with all offers after a task was learned.
        self._governed = asyncio.Event()
        self._governed_version = 0
        self._followed = 0  # The policy version that this runner applied last.
        self._learned = time.monotonic()
        self._job_source: JobSource | None = None
        # The grace covers the hard grace, after which a job is killed, and the time to report the job.
        self.pace = LeaseTimes(
            settings.heartbeat, settings.dead_after, settings.confirm, settings.hard_grace + STOP_SECONDS
        )
        self._granted: dict[str, RunBudget] = {}  # Budgets of jobs that have not started here.
        self.registered = 0.0  # When the registration was sent, on the monotonic clock.
        self._runtime = WorkerRuntime(app, backend)
        self._traces = False  # This process puts a span around each run.
        self._outputs = OutputWriter(backend, lambda: self.worker.worker_id, self._note)
        self._state: dict[str, Any] = {}
        self._middlewares = app.middlewares
        self._loop: asyncio.AbstractEventLoop
        # Arguments that an operator asked for are logged with the start of a job.
        self._job_log = JobLog(backend.in_force, logging.INFO if self._settings.log_args else logging.DEBUG)
        self._simple = False  # No middleware and no listener.
        self._claimer: Claimer | None = None
        self._batcher: TaskBatcher | None = None
        self._leaving = False
        self._left = asyncio.Event()
        self._unknown: set[str] = set()  # Tasks that a warning has named.
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def has_sessions(self) -> bool:
        """Whether any task of this app talks to a client."""
        return any(task.options.duration == INTERACTIVE for task in self._app.tasks.values())

    # ------------------------------------------------------------------ from start to stop

    async def run(self, *, ready: Callable[[], Awaitable[None]]) -> None:
        """Run until stopped. ``ready`` is awaited once the app is up and this worker is registered."""
        # Stored, because get_running_loop is a system call in Python 3.11.
        self._loop = self._runtime.loop = asyncio.get_running_loop()
        self._batcher = TaskBatcher(self._attempt)
        self._simple = not self._middlewares and not any(self._app.signals.values())
        async with contextlib.AsyncExitStack() as stack:
            if self._app.lifespan is not None:
                state = await stack.enter_async_context(self._app.lifespan(self._app))
                self._state = dict(state or {})
            self._traces = traces.active()
            if self._traces:
                shown = self._arguments if self._settings.log_args else None
                self._middlewares = [traces.around_runs(self.worker.worker_id, shown), *self._middlewares]
                self._simple = False
            warn_of_threads(self._app, self._backend.in_force.policy)
            for name, executor in self._executors.items():
                if tasks := [task.name for task in self._app.tasks.values() if task.executor == name]:
                    await executor.prepare(tasks)
            if self.has_sessions:
                session_transport.prepare()
            if not await self._register():
                return
            self._job_source = job_source = self._backend.job_source(self.worker, self.pace, offset=random.random())
            job_source.offer_learned(lambda name: self._learn_task(name) is not None)
            subscription = job_source.subscribe()
            self._claimer = self._make_claimer(job_source, subscription)
            if self._on_recycling is not None and any(bounds := ChildBounds.of(self._settings)):
                self._use = RunnerUse(bounds, self._began, time.monotonic(), self._memory_after)
                if bounds.jobs:
                    self._claimer.bound(bounds.jobs, self._runs_here)
            self._reserve()
            warn_of_durations(self._app, self._backend.in_force.policy)
            warn_of_fair_by(self._app, self._backend.in_force.policy)
            chores = [
                Chore("policy", READ_EVERY_IF_NOTIFIED, self._follow_policy, wake=self._governed),
                Chore("durations", LEARN_EVERY, self._learn),
                Chore("first_durations", LEARN_IDLE, self._backend.learn_first, wake=self._backend.durations_due),
            ]
            upkeep = [
                asyncio.create_task(self._beat()),
                asyncio.create_task(run_chores(chores, self._backend.outage)),
            ]
            try:
                await ready()
                if self._leaving:
                    self._claimer.stop_claiming()
                    self._claimer.stop()
                await self._claimer.run()
            finally:
                for task_ in upkeep:
                    task_.cancel()
                subscription.close()
                await job_source.close()
                for executor in self._executors.values():
                    await executor.close()

    async def _register(self) -> bool:
        """Register this worker. With a parent, retry while the store is unavailable. Return whether to go on."""
        outage, delay = self._backend.outage, REGISTER_AGAIN
        while True:
            self.registered = time.monotonic()
            try:
                self.worker, self.pace = await self._backend.register(
                    self.worker, self.pace, partial(manifest, self._app), reserved=self._reserved_asked
                )
            except StoreUnavailable as problem:
                if not self._has_parent:
                    raise
                outage.failed("register", problem, retry_in=delay)
            else:
                outage.succeeded("register")
                return True
            await wait_until_set(self._left, delay * random.uniform(0.7, 1.3))
            if self._leaving:
                return False
            delay = min(delay * 2, REGISTER_AGAIN_MAX)

    def _make_claimer(self, job_source: JobSource, subscription: Subscription) -> Claimer:
        return Claimer(
            job_source,
            subscription,
            slots=self.worker.slots,
            start=self._start,
            handed_in=self._handed_in,
            reported=self._reported,
            confirm=self.pace.confirm,
            poll=self._settings.poll,
            outage=self._backend.outage,
        )

    def governed(self, version: int, policy: dict[str, Any] | None = None) -> None:
        """Record the policy version that the parent sends. Without a store, the parent also sends the policy itself."""
        self._governed_version = version
        if policy is not None:
            self._backend.set_policy(version, policy)
        self._governed.set()

    def check_policy(self) -> None:
        """Check at once whether another policy is in force."""
        self._governed.set()

    async def _follow_policy(self) -> None:
        if self._has_parent and self._governed_version == self._followed:
            return
        await self._backend.refresh_policy()
        if self._followed != self._backend.in_force.version:
            self._reserve()
            warn_of_fair_by(self._app, self._backend.in_force.policy)
            if self._claimer is not None:
                self._claimer.wake()

    def _reserve(self) -> None:
        policy, worker = self._backend.in_force.policy, self.worker
        self._followed = self._backend.in_force.version
        reserved = reserved_slots(policy, worker.slots, self._reserved_asked)
        self.worker = replace(worker, reserved=reserved)
        if self._claimer is not None:
            self._claimer.reserve(reserved, policy.reserve.lanes, leave_free=policy.reserve.rule == "leave_free")

    async def _learn(self) -> None:
        now = time.monotonic()
        if await self._backend.learn(idle=now - self._learned > LEARN_IDLE):
            self._learned = now

    async def drain(self, grace: float) -> None:
        """Stop claiming, wait for running jobs up to the grace, return the rest to the queue, then end ``run``.

        The parent has to kill jobs that do not stop (threads, or code that swallows its cancellation).
        """
        self._leaving = True
        self._left.set()
        if self._claimer is None:  # ``run`` has not started claiming yet, and ends before it does.
            return
        self._claimer.stop_claiming()
        if self._job_source is not None:
            self._job_source.leave()
        await wait_until_set(self._idle, grace)
        for job in list(self._jobs.values()):
            self.stop(job, Stop.DRAIN)
        await wait_until_set(self._idle, STOP_SECONDS)
        self._claimer.stop()

    async def finish(self, stopped: Callable[[], None]) -> None:
        """Stop claiming, call ``stopped`` once no more job will start, wait for running jobs, then end ``run``."""
        if self._claimer is None:
            return
        self._claimer.stop_claiming()
        if self._job_source is not None:
            self._job_source.leave()
        await self._claimer.quiet.wait()
        stopped()
        await self._idle.wait()
        self._claimer.stop()

    def slots_taken(self, slots: int) -> None:
        """Leave slots free, because jobs of the runners that this one replaced still run."""
        if self._claimer is not None:
            self._claimer.leave_free(slots)

    def kill_jobs(self) -> None:
        """Kill the running jobs whose executors can do so, at once. May be called from any thread."""
        for job in list(self._jobs.values()):
            self._executors[job.task.executor].kill(job)

    @property
    def stuck(self) -> list[str]:
        """The jobs that have not stopped."""
        return list(self._jobs)

    def stop_jobs(self, job_ids: list[str], why: Stop) -> None:
        """Stop running jobs: they were cancelled, or their lease is lost."""
        for job_id in job_ids:
            job = self._jobs.get(job_id)
            if job is not None:
                self.stop(job, why)

    def grant(self, grants: Sequence[RunBudget]) -> None:
        """Apply budgets to running jobs and to jobs that are about to start. ``grants`` holds every current budget."""
        self._granted = {grant.job_id: grant for grant in grants if grant.job_id not in self._jobs}
        for grant in grants:
            job = self._jobs.get(grant.job_id)
            if job is not None:
                self._shrink(job, grant)

    def _shrink(self, job: ActiveJob, grant: RunBudget) -> None:
        """Lower a job's time limit, never raise it. Stop the job if the new limit has passed."""
        before = job.lease
        if before.budget_ms is not None and grant.budget_ms >= before.budget_ms:
            return
        job.lease = before._replace(assigned=grant.assigned or before.assigned, budget_ms=grant.budget_ms)
        job.context.shrink(job.lease)
        self._executors[job.task.executor].shrink(job)
        self._job_log.downgraded(job.lease, len(self._jobs))
        deadline = job.started + job.lease.limit_ms / 1_000
        if job.stop is Stop.NO and deadline < job.deadline:
            job.deadline = deadline
            self._slot_table.until(job.slot, deadline + self._settings.hard_grace)
            if job.timer is not None:
                job.timer.cancel()
            left = deadline - time.monotonic()
            job.timer = self._loop.call_later(left, self.stop, job, Stop.TIMEOUT) if 0 < left < EXACT else None
            if left <= 0:
                self.stop(job, Stop.TIMEOUT)

    def stop(self, job: ActiveJob, why: Stop) -> None:
        if job.stop is not Stop.NO and why is not Stop.LOST:
            return
        first = job.stop is Stop.NO
        job.stop = why
        self._slot_table.stopping(job.slot, why, time.monotonic() + self._settings.hard_grace)
        executor = self._executors[job.task.executor]
        if first:
            executor.stop(job)
        elif why is Stop.LOST:
            executor.kill(job)

    # ------------------------------------------------------------------ one job

    def _start(self, leases: Sequence[Lease], reserved: frozenset[str]) -> None:
        """Start leased jobs in their slots. ``reserved``: the lanes of the reserve."""
        claimer, batcher = self._claimer, self._batcher
        if claimer is None or batcher is None:
            return
        tasks, slot_table, hard_grace = self._app.tasks, self._slot_table, self._settings.hard_grace
        job_log = self._job_log
        job_log.refresh(self.worker)
        now = time.monotonic()
        for lease in leases:
            task = tasks.get(lease.task) or self._learn_task(lease.task)
            below = lease.lane not in reserved
            if task is None:
                self._warn_of_unknown(lease)
                claimer.ended(FinishedRun(lease, Unknown(), 0.0), None, below=below)
                continue
            slot = self._free_slots.pop()
            timeout = lease.limit_ms / 1_000
            deadline = now + timeout
            context = Context(lease, self._state, self._note, now, None, self._outputs.add, self._runtime)
            job = ActiveJob(lease, task, slot, context, now, deadline, below)
            self._jobs[lease.job_id] = job
            if self._use is not None and task.executor != "process":
                self._use.jobs += 1
            stop_by, gives_up = deadline + hard_grace, task.gives_up_on_timeouts
            slot_table.hold(slot, lease.job_id, lease.token, lease.task, task.executor, stop_by, gives_up)
            if timeout < EXACT:  # A timer for every job would cost more than a small job.
                job.timer = self._loop.call_later(timeout, self.stop, job, Stop.TIMEOUT)
            batcher.begin(job)
            if job_log.logs_starts:
                args = self._arguments(context) if self._settings.log_args else None
                job_log.started(lease, len(self._jobs), args)
            if self._granted and (grant := self._granted.pop(lease.job_id, None)):
                self._shrink(job, grant)  # The budget shrank while the lease was on its way.
        if self._jobs:
            self._idle.clear()

    def _learn_task(self, name: str) -> Task[Any, Any, Any] | None:
        """Import a task by its name and offer it from now on. Return None if the app cannot import it."""
        task = self._app.import_task(name)
        if task is not None and (offer := f"{TASK}{name}") not in self.worker.offers:
            self.worker = replace(self.worker, offers=(*self.worker.offers, offer))
            log.info(LogEvent("worker.task_learned", worker=self.worker.worker_id, task=name))
            if self._on_offers is not None:
                self._on_offers(self.worker.offers)
        return task

    def _warn_of_unknown(self, lease: Lease) -> None:
        """Warn of a task that this app does not know, once for each name."""
        if lease.task in self._unknown or len(self._unknown) >= UNKNOWN_MAX:
            return
        self._unknown.add(lease.task)
        hint = "import the module that declares it where the app is made, or end the workers of an older version"
        log.warning(LogEvent("job.unknown_task", job=lease.job_id, task=lease.task, hint=hint))

    async def _attempt(self, job: ActiveJob) -> None:
        """Run one attempt to its end and report it. Nothing a task raises leaves this function."""
        ending: Ending | None
        try:
            if job.stop:  # The job was stopped before it started.
                raise asyncio.CancelledError
            if has_inputs(job.lease.payload):
                job.lease = job.lease._replace(payload=await self._fill_inputs(job))
            if self._simple:
                value = await self._executors[job.task.executor].call(job)
                ending = ending_of_value(job, value, self._settings.payload_max)
            else:
                ending = await self._work(job)
        except BaseException as error:
            ending = self._ending(job, error)
            if self._app.signals["fail"] and isinstance(ending, Raised):
                await self._signal("fail", job.context, error)
        if job.stop and job.stop is Stop.TIMEOUT:
            ending = self._timed_out(job, ending)
        if job.timer is not None:
            job.timer.cancel()
        # Break the reference cycle of job and asyncio task, which the garbage collector would have to find.
        job.handle = None
        if self._outputs.jobs:
            await self._outputs.end(job.lease)
        self._slot_table.ended(job.slot)
        lease = job.lease
        del self._jobs[lease.job_id]
        if not self._jobs:
            self._idle.set()
        if job.stop and job.stop is Stop.CANCEL:
            lease = lease._replace(cancel_requested=True)
        seconds = time.monotonic() - job.started
        ran = None if ending is None else FinishedRun(lease, ending, seconds)
        if ran is None:
            self._job_log.lost(lease, len(self._jobs), seconds)
        if self._claimer is not None:
            self._claimer.ended(ran, job.slot, below=job.below)

    def _ending(self, job: ActiveJob, error: BaseException) -> Ending | None:
        return ending_of_error(job, error, self._settings.payload_max)

    def _timed_out(self, job: ActiveJob, ending: Ending | None) -> TimedOut:
        return ending_of_timeout(job, ending, self._settings.payload_max)

    async def _fill_inputs(self, job: ActiveJob) -> bytes:
        """Return a job's arguments with the results of the jobs that it waited for."""
        lease = job.lease
        try:
            upstreams = await self._backend.upstreams(lease)
            if self._traces:
                job.context.sources = await self._backend.trace_ids(upstreams)
        except StoreUnavailable:  # Trouble of the store uses no attempt.
            raise TaskFailed(Released("its inputs could not be read")) from None
        return fill_inputs(lease.payload, upstreams)

    def _handed_in(self, slots: list[int]) -> None:
        """Free the slots whose reports the store has accepted."""
        self._slot_table.free(slots)
        self._free_slots += slots

    def _reported(self, runs: Sequence[FinishedRun]) -> None:
        if self._job_log.logs_ends:
            self._job_log.ended(runs, len(self._jobs))

    async def _work(self, job: ActiveJob) -> Ending:
        if self._app.signals["start"]:
            await self._signal("start", job.context)
        executor = self._executors[job.task.executor]
        if not self._middlewares:
            value = await executor.call(job)
        else:
            value = await call_inside(self._middlewares, job.context, lambda: plain_value(executor.call(job)))
        ending = ending_of_value(job, value, self._settings.payload_max)
        if self._app.signals["finish"]:
            await self._signal("finish", job.context, value.value() if isinstance(value, Encoded) else value)
        return ending

    async def _beat(self) -> None:
        """Write the pulse to the slot table, and stop jobs that have run out of time."""
        while True:
            self._slot_table.beat(0.0 if self._job_source is None else self._job_source.idle_since)
            now = time.monotonic()
            for job in list(self._jobs.values()):
                if job.deadline <= now:
                    self.stop(job, Stop.TIMEOUT)
            if self._use is not None and not self._use.is_due:
                self._check_use(self._use, now)
            await asyncio.sleep(PULSE)

    def _runs_here(self, lease: Lease) -> bool:
        """Return whether a job runs in this process, rather than in one of the process executor."""
        task = self._app.tasks.get(lease.task)
        return task is None or task.executor != "process"

    def _check_use(self, use: RunnerUse, now: float) -> None:
        """Ask once for another runner, if this one has reached a bound."""
        resident = resident_memory() if use.bounds.memory else 0
        exceeded = use.memory_exceeded(resident)
        by_memory = exceeded and use.may_replace_for_memory(now)
        if exceeded and (not by_memory or self._memory_after > 0) and not self._warned_of_memory:
            self._warned_of_memory = True
            facts = {"memory_mib": resident // MIB, "bound_mib": use.bounds.memory // MIB, "hint": TOO_LOW}
            log.warning(LogEvent("worker.memory_bound_low", process=os.getpid(), **facts))
        if (by_memory or use.jobs_due(now)) and self._on_recycling is not None:
            use.is_due = True
            self._on_recycling(control.RecyclingDue("memory" if by_memory else "jobs", use.jobs, resident))

    def _note(self, lease: Lease, fraction: float, note: str | None) -> None:
        """Record progress of a running job, also from a thread. Drop progress that arrives after the attempt."""
        job = self._jobs.get(lease.job_id)
        if self._claimer is None or job is None or job.lease.token != lease.token or not lease.persist:
            return
        progress = Progress(lease.job_id, lease.seq, lease.token, fraction, note)
        if self._executors[job.task.executor].threaded:
            self._loop.call_soon_threadsafe(self._claimer.note, progress)
        else:
            self._claimer.note(progress)

    async def _signal(self, name: str, *values: Any) -> None:
        for listener in self._app.signals[name]:
            try:
                answer = listener(*values)
                if inspect.isawaitable(answer):
                    await answer
            except Exception:
                log.exception(LogEvent("signal.failed", signal=name))

    def _arguments(self, context: Context) -> Any:
        job = self._jobs[context.job_id]
        return job.task.show_arguments(job.lease.payload)


def _addresses(backend: Backend) -> AddressSigner:
    """Return the signer that checks server addresses against the store. A worker without one relies on its server."""
    store = backend.store
    if store is None:
        return AddressSigner(None)

    async def opened() -> Store:
        return store

    return AddressSigner(opened)
