"""One runner process as its parent sees it: starts it, watches its jobs, and returns them after it has died."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from headway.core.errors import ConfigError, HeadwayError, JobError, StoreError
from headway.core.job import JobId
from headway.core.log_event import LogEvent
from headway.core.policy.document import reserved_slots
from headway.core.policy.ladder import RunBudget
from headway.core.policy.retry import Crashed, Ending, Released, Stopped, TimedOut
from headway.core.worker import WorkerInfo, WorkerState
from headway.runtime.bounded_wait import end_tasks, wait_until_set
from headway.runtime.os_support import hide_from_programs, new_worker_id
from headway.worker import control
from headway.worker.backend.base import Backend
from headway.worker.health import RunnerHealth
from headway.worker.lease_renewer import LeaseRenewer, runner_ends_after
from headway.worker.recycling import MIB, replaceable_after
from headway.worker.slot_table import SLOTS_MAX, BusySlot, SlotTable, Stop

if TYPE_CHECKING:
    from headway.worker.parent import Parent

log = logging.getLogger("headway.worker")

WATCH = 0.25  # Seconds between checks of the slot tables.
BLOCKED = 1.0  # Seconds without a pulse (four are due) after which the parent reports a runner's loop as blocked.
REPORT_SECONDS = 5.0  # Seconds beyond the grace before the parent kills a draining runner, which needs time to report.
RESTART_MAX = 5.0  # Maximum seconds between starts of a runner that keeps dying.
RETURN_SECONDS = 2.0  # Seconds for returning jobs to a store that cannot be reached; the leases end soon anyway.


class CannotStart(HeadwayError, code="cannot_start"):
    """A runner could not load the app or open its store."""


class RunnerProcess:
    """Supervises one runner process and starts another each time it dies.

    ``predecessors`` are the runners that it replaces. It claims once they claim no more, and leaves as many slots free
    as they have running jobs.
    """

    def __init__(self, parent: Parent, predecessors: Sequence[RunnerProcess] = (), memory_after: float = 0.0) -> None:
        self._parent = parent
        self._predecessors = tuple(predecessors)
        self._memory_after = memory_after  # Seconds before the runner may be replaced for its memory.
        self._up_at = 0.0  # When the runner could claim, on the monotonic clock.
        self._taken = 0  # Slots that the runner leaves free for its predecessors' jobs.
        self.replaced = False  # Another runner takes over. The parent does not start this one again.
        self.quiet = asyncio.Event()  # The runner claims no more jobs.
        self.part = f"runner {id(self)}"  # Its name for systemd, which waits for the first runners.
        self._process: asyncio.subprocess.Process | None = None
        self._channel: control.Channel | None = None
        self._slot_table: SlotTable | None = None
        self._backend: Backend | None = None
        self._worker_id = ""
        self._offers: tuple[str, ...] = ()
        self.leaving = False  # The runner drains, and the parent does not start it again.
        self._killed_for: list[BusySlot] | None = None  # The jobs for which the parent killed the runner.
        self._warned_pulse = 0.0
        self._grace = 0.0  # Seconds; 0 until the runner is up, because it has no jobs to wait for.
        self._draining: asyncio.Task[None] | None = None
        self.is_cut_off = False  # The leases could not be renewed, and no new runner is up yet.
        self.health: RunnerHealth | None = None  # None while no runner is up.

    async def supervise(self) -> None:
        """Start the runner, and start it again each time it dies, until it leaves."""
        try:
            await self._keep_alive()
        finally:
            self.quiet.set()
            if self.replaced:
                self._parent.remove(self)

    async def _keep_alive(self) -> None:
        pause = 0.1
        while not self._parent.signals.drain.is_set():
            began = time.monotonic()
            try:
                await self._live()
            except (CannotStart, ConfigError) as problem:
                if not self._living_predecessors():
                    raise
                # The runner that it should replace still has jobs, which must not end with the worker.
                log.error(LogEvent("worker.replacement_failed", error=str(problem), retry_in=pause))  # noqa: TRY400
            if self.leaving or self.replaced or self._parent.cut_off or self._parent.signals.drain.is_set():
                return
            lasted = self._killed_for is not None or time.monotonic() - began > 10
            pause = 0.05 if lasted else min(pause * 2, RESTART_MAX)
            await wait_until_set(self._parent.signals.drain, pause)

    async def _live(self) -> None:
        """Run one runner process, from its start to the return of its last lease."""
        self._worker_id = new_worker_id()
        self._killed_for = None
        ours, theirs = socket.socketpair()
        self._slot_table = slot_table = SlotTable.create(SLOTS_MAX)
        os.set_inheritable(slot_table.descriptor, True)
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "headway.worker.runner_main",
            str(theirs.fileno()),
            str(slot_table.descriptor),
            pass_fds=[theirs.fileno(), slot_table.descriptor],
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # A Ctrl-C on the terminal is for the parent alone.
        )
        theirs.close()
        self._channel = channel = await control.Channel.over(ours)
        parent = self._parent
        channel.send(
            control.StartRunner(
                parent.app_path,
                os.getcwd(),
                self._worker_id,
                parent.overrides,
                parent.log_level,
                parent.remote,
                self._memory_after,
            )
        )
        helpers = [asyncio.create_task(self._watch_signals())]
        failed: control.RunnerFailed | None = None
        try:
            first = await channel.receive()
            if isinstance(first, control.RunnerReady):
                slot_table.slots, self._grace = first.worker.slots, first.grace
                self._worker_id = first.worker.worker_id
                if first.programs:
                    hide_from_programs()
                self._backend = await parent.backend(first)
                if parent.announced != self._worker_id:
                    facts = {"worker": self._worker_id, "slots": first.worker.slots, "pid": first.worker.pid}
                    log.info(LogEvent("worker.up", **facts))
                parent.offers |= set(first.worker.offers)
                self.is_cut_off = False
                renewer = self._make_renewer(first, slot_table, self._backend)
                self.health = RunnerHealth(renewer, slot_table, first.worker.slots, first.dead_after)
                helpers += [asyncio.create_task(renewer.run()), asyncio.create_task(self._watch(slot_table))]
                await self._take_over()
                self._up_at = time.monotonic()
                channel.send(control.StartClaiming())
                parent.manager.started(self.part)
                self.send_policy()  # The policy may have changed since the runner read it.
                failed = await self._listen(channel)
            elif isinstance(first, control.RunnerFailed):
                failed = first
            code = await process.wait()
        finally:
            await end_tasks(helpers)
            self.kill()
            await channel.close()
            held, unreported = slot_table.held(), slot_table.unreported()
            self.health = self._slot_table = None  # Before the table is closed, because chores and probes read it.
            slot_table.close()
        if failed is not None:
            if failed.setting:
                raise ConfigError(failed.message)
            raise CannotStart(failed.message, traceback=failed.traceback)
        await self._recover(code, held, unreported)

    # ------------------------------------------------------------------ while the runner lives

    async def _listen(self, channel: control.Channel) -> control.RunnerFailed | None:
        """Act on the runner's messages until it is gone. Return why it could not run, if it sent that."""
        while True:
            match await channel.receive():
                case control.OffersChanged(offers):
                    self._offers = tuple(offers)
                    self._parent.offers |= set(offers)
                case control.RecyclingDue() as due:
                    self._start_successor(due)
                case control.ClaimingStopped():
                    self.quiet.set()
                case control.RunnerFailed() as failed:
                    return failed
                case _:
                    return None

    def _start_successor(self, due: control.RecyclingDue) -> None:
        """Start a runner in place of this one, which goes on until the new one is ready."""
        if self.leaving or self.replaced or self._parent.signals.drain.is_set():
            return
        self.replaced = True
        facts = {"reason": due.reason, "jobs": due.jobs, "memory_mib": due.memory // MIB}
        log.info(LogEvent("worker.recycling", worker=self._worker_id, **facts))
        after = self._memory_after
        if due.reason == "memory":
            after = replaceable_after(after, time.monotonic() - self._up_at)
        living = (*self._living_predecessors(), self)
        self._parent.replace(self, RunnerProcess(self._parent, living, after))

    async def _take_over(self) -> None:
        """Wait until the predecessors claim no more jobs, and leave their jobs' slots free."""
        self._taken = 0
        for predecessor in self._predecessors:
            predecessor.finish()
        for predecessor in self._predecessors:
            await predecessor.quiet.wait()
        self._send_taken()

    def _send_taken(self) -> None:
        """Send the runner how many slots its predecessors' jobs still fill, if the number has changed."""
        self._predecessors = tuple(self._living_predecessors())
        taken = sum(predecessor.running for predecessor in self._predecessors)
        if taken != self._taken and self._channel is not None:
            self._taken = taken
            self._channel.send(control.SlotsTaken(taken))

    def _living_predecessors(self) -> list[RunnerProcess]:
        return [predecessor for predecessor in self._predecessors if predecessor.health is not None]

    @property
    def is_joining(self) -> bool:
        """Whether the runner is not up yet and a runner that it replaces still is."""
        return self.health is None and bool(self._living_predecessors())

    @property
    def running(self) -> int:
        """The number of jobs that the runner runs."""
        return 0 if self._slot_table is None else len(self._slot_table.held())

    def finish(self) -> None:
        """Ask the runner to claim no more jobs, and to leave once its jobs have ended."""
        if self._channel is not None:
            self._channel.send(control.FinishRunner())

    def send_policy(self) -> None:
        """Send the runner the version of the policy in force."""
        if self._channel is not None:
            self._channel.send(self._parent.governed())

    def idle_since(self) -> float:
        """Return when the runner last saw an empty queue; 0 if jobs wait."""
        return self._slot_table.idle_since() if self._slot_table is not None else 0.0

    def _make_renewer(self, up: control.RunnerReady, slot_table: SlotTable, backend: Backend) -> LeaseRenewer:
        worker = up.worker
        self._offers = worker.offers

        def as_governed() -> WorkerInfo:
            """Return the worker with its reserve under the policy in force and its current offers."""
            reserved = reserved_slots(self._parent.in_force.policy, worker.slots, up.reserved_asked)
            return replace(worker, reserved=reserved, offers=self._offers)

        return LeaseRenewer(
            backend,
            as_governed,
            slot_table.leases,
            self,
            heartbeat=up.heartbeat,
            dead_after=up.dead_after,
            confirm=up.confirm,
            recorder=self._parent.recorder,
            since=up.registered,
            on_renewed=lambda sent: slot_table.end_by(sent + runner_ends_after(up.dead_after)),
        )

    async def _watch(self, slot_table: SlotTable) -> None:
        """Kill the runner for a job that will not stop, and warn when its loop is blocked."""
        while True:
            await asyncio.sleep(WATCH)
            now = time.monotonic()
            held = slot_table.held()
            if self._predecessors:
                self._send_taken()
            overdue = [job for job in held if job.stop_by <= now]
            if overdue:
                for job in overdue:
                    facts = {"job": job.job_id, "task": job.task, "worker": self._worker_id}
                    log.warning(LogEvent("job.would_not_stop", **facts))
                self._killed_for = overdue
                self.kill()
                return
            self._warn_if_blocked(slot_table, held, now)

    def _warn_if_blocked(self, slot_table: SlotTable, held: list[BusySlot], now: float) -> None:
        pulse = slot_table.pulse()
        if pulse and now - pulse > BLOCKED and pulse != self._warned_pulse:
            self._warned_pulse = pulse
            tasks = sorted({job.task for job in held if job.executor == "async"}) or ["unknown"]
            log.warning(
                LogEvent(
                    "loop.blocked",
                    worker=self._worker_id,
                    seconds=round(now - pulse, 1),
                    tasks=", ".join(tasks[:5]),
                    hint="use a plain def or executor='process'",
                )
            )

    async def _watch_signals(self) -> None:
        """Drain the runner on the first signal. Kill it on the second signal or after the grace."""
        signals = self._parent.signals
        await signals.drain.wait()
        await self._drain()

    async def _drain(self) -> None:
        self.leaving = True
        log.info(LogEvent("worker.draining", worker=self._worker_id, grace=self._grace))
        if self._channel is not None:
            self._channel.send(control.DrainRunner(self._grace))
        await wait_until_set(self._parent.signals.now, self._grace + REPORT_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Kill the runner and its process group."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    # ------------------------------------------------------------------ called by the lease renewer

    def cancel(self, job_ids: Sequence[JobId]) -> None:
        self._stop(job_ids, Stop.CANCEL)

    def lost(self, job_ids: Sequence[JobId]) -> None:
        self._stop(job_ids, Stop.LOST)

    def grant(self, grants: Sequence[RunBudget]) -> None:
        if self._channel is not None:
            self._channel.send(control.BudgetsChanged(list(grants)))

    def leave(self, state: WorkerState) -> None:
        if state is WorkerState.DEAD:
            log.error(LogEvent("worker.taken_for_dead", worker=self._worker_id))
            self._killed_for = []
            self.kill()
        elif not self.leaving and not self.replaced:  # A server drains a runner that finishes.
            self.leaving = True
            self._draining = asyncio.get_running_loop().create_task(self._drain())

    def cut_off(self) -> None:
        self.is_cut_off = True
        self.kill()
        self._parent.note_cut_off()

    def policy_may_have_changed(self) -> None:
        self._parent.policy_changed.set()

    def _stop(self, job_ids: Sequence[JobId], why: Stop) -> None:
        if self._channel is not None:
            self._channel.send(control.StopJobs(list(job_ids), why))

    # ------------------------------------------------------------------ after the runner has died

    async def _recover(self, code: int, held: list[BusySlot], unreported: list[BusySlot]) -> None:
        """Return the jobs of the dead runner at once, without waiting for their leases to end.

        A crash counts for unreported jobs too. If a job stops the event loop, Python cancels all jobs before the
        process ends, so the job that did it has ended by then.
        """
        backend, self._backend = self._backend, None
        if backend is None:  # The runner was not up yet and has no leases.
            return
        cause = _cause(code)
        log.info(LogEvent("worker.gone", worker=self._worker_id, cause=cause, held=len(held)))
        busy_slots = {job.job_id: job for job in self._killed_for or ()}
        departed = self.leaving or (self.replaced and code == 0)
        expected = departed or self._killed_for is not None or self.is_cut_off or code == control.LEASES_ENDING
        if not expected:
            held = held + unreported
            log.error(LogEvent("worker.crashed", worker=self._worker_id, cause=cause, jobs=len(held)))
        on_board = {job.job_id for job in held}

        def ending_of(job_id: JobId, limit_ms: int | None) -> Ending:
            busy_slot = busy_slots.get(job_id)
            if busy_slot is not None:
                return _overdue(busy_slot, limit_ms)
            if expected or job_id not in on_board:
                return Released("drained" if departed else "its runner was restarted")
            return Crashed(cause)

        leases = [(job.job_id, job.token) for job in held if job.token != bytes(16)]
        pause = 0.1
        # The leases of a cut-off runner end soon by themselves.
        deadline = time.monotonic() + (RETURN_SECONDS if self.is_cut_off else 30)
        while (left := deadline - time.monotonic()) > 0:
            try:
                async with asyncio.timeout(left):
                    await backend.give_back(self._worker_id, leases, ending_of, left=departed)
            except (StoreError, TimeoutError) as problem:
                log.warning(LogEvent("leases.not_returned", worker=self._worker_id, retry_in=pause, error=str(problem)))
                await asyncio.sleep(pause)
                pause = min(pause * 2, 5.0)
            else:
                return


def _overdue(job: BusySlot, limit_ms: int | None) -> Ending:
    """Return the ending of a job for which the parent killed the runner."""
    if job.stop is Stop.CANCEL:
        return Stopped("cancelled while executing; it would not stop and was killed")
    if job.stop is Stop.DRAIN:
        return Released("drained")
    limit = "time limit" if limit_ms is None else f"time limit ({limit_ms / 1_000:g} s)"
    text = f"{limit}; it would not stop and was killed"
    return TimedOut(JobError(type="TimeoutError", message=text, retriable=not job.gives_up))


def _cause(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"signal {-code}, {signal.Signals(-code).name}"
    return f"exit code {code}"
