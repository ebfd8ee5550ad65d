"""A worker inside another program's process: for scripts, tests and small services.

It has no parent, so it cannot kill a job that blocks the loop or ignores its cancellation, nor survive one that crashes
the process. ``headway worker`` can.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Sequence
from typing import Any

from headway.client.app import Headway
from headway.client.loading import path_of, policy_file
from headway.core.errors import StoreError, StoreUnavailable
from headway.core.job import JobId
from headway.core.log_event import LogEvent
from headway.core.policy.ladder import RunBudget
from headway.core.policy.retry import Released
from headway.core.worker import WorkerState
from headway.maintenance.archiver import make_archiver
from headway.maintenance.loop import run_chores
from headway.maintenance.standard import standard_chores
from headway.metrics.recorder import MetricsRecorder
from headway.observability.outage import Outage
from headway.runtime.bounded_wait import end_tasks
from headway.runtime.os_support import new_worker_id
from headway.stores.base import Store
from headway.worker.backend.store import StoreBackend
from headway.worker.lease_renewer import LeaseRenewer
from headway.worker.runner import Runner
from headway.worker.slot_table import SlotTable, Stop

log = logging.getLogger("headway.worker")

REGISTER_RETRY = 1.0  # Seconds between attempts to register again while the store cannot be reached.


class Worker:
    """Runs an app's jobs in this process: ``with Worker(app): …``, or ``async with`` on the running loop.

    A separate thread renews the leases, so a busy loop does not lose them. Leaving the block drains the worker. Running
    jobs get ``grace`` seconds, and the rest go back to the queue unharmed.
    """

    def __init__(
        self, app: Headway, *, slots: int | None = None, reserved: int | None = None, grace: float | None = None
    ):
        self._app = app
        if slots is not None or reserved is not None or grace is not None:
            app.configure(slots=slots, reserved=reserved, grace=grace)
        self._runner: Runner | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._keeping: threading.Thread | None = None
        self._ready = threading.Event()
        self._problem: BaseException | None = None
        self._task: asyncio.Task[None] | None = None
        self._leaving = False
        self.restarting = False  # Register again under a new name once this registration ends.

    def __enter__(self) -> Worker:
        def main() -> None:
            try:
                asyncio.run(self._run())
            except BaseException as problem:
                self._problem = problem
            finally:
                self._ready.set()

        self._thread = threading.Thread(target=main, name="headway-worker", daemon=True)
        self._thread.start()
        self._ready.wait()
        self._raise_problem()
        return self

    def __exit__(self, *_: object) -> None:
        if self._runner is not None and self._loop is not None and self._thread is not None:
            with contextlib.suppress(RuntimeError):
                asyncio.run_coroutine_threadsafe(self._leave(), self._loop)
            self._thread.join()
        self._raise_problem()

    async def __aenter__(self) -> Worker:
        ready = asyncio.Event()
        self._task = asyncio.create_task(self._run(ready))
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait({self._task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._task.done():
            await self._task
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None and self._task is not None:
            await self._leave()
            await self._task

    def make_backend(self, store: Store) -> StoreBackend:
        """Return the connection of this worker to the store. Override it to use a backend of your own."""
        return StoreBackend(store, self._app.in_force, file=policy_file(self._app))

    @property
    def worker_id(self) -> str:
        """The name by which the store knows this worker."""
        return self._runner.worker.worker_id if self._runner else ""

    async def _leave(self) -> None:
        self._leaving = True
        log.info(LogEvent("worker.draining", worker=self.worker_id, grace=self._app.settings.grace))
        if self._runner is not None:
            await self._runner.drain(self._app.settings.grace)

    async def _run(self, ready: asyncio.Event | None = None) -> None:
        """Run the worker, and again under a new name each time the store declares it dead, until it leaves."""
        self._loop = asyncio.get_running_loop()
        store = await self._app.client.store()
        try:
            await self._live(store, ready)
            while self.restarting and not self._leaving:
                self.restarting = False
                log.warning(LogEvent("worker.restarted", reason="its leases were lost"))
                try:
                    await self._live(store, ready)
                except StoreUnavailable:
                    self.restarting = True
                    await asyncio.sleep(REGISTER_RETRY)
        finally:
            if self._thread is not None:  # Only this worker uses the loop. The app opens its store again on another.
                await self._app.client.close()

    async def _live(self, store: Store, ready: asyncio.Event | None) -> None:
        settings = self._app.settings
        slot_table = SlotTable.create(settings.slots)
        backend = self.make_backend(store)
        self._runner = runner = Runner(
            self._app,
            backend,
            slot_table,
            worker_id=new_worker_id(),
            host=socket.gethostname(),
            slots=settings.slots,
            reserved=self._app.reserved_asked,
            app_path=path_of(self._app),
        )
        stop_keeping = threading.Event()

        async def on_ready() -> None:
            self._keeping = threading.Thread(
                target=lambda: asyncio.run(self._keep(store, runner, slot_table, stop_keeping)),
                name="headway-leases",
                daemon=True,
            )
            self._keeping.start()
            log.info(LogEvent("worker.up", worker=runner.worker.worker_id, slots=settings.slots))
            self._ready.set()
            if ready is not None:
                ready.set()

        try:
            await runner.run(ready=on_ready)
            await backend.give_back(
                runner.worker.worker_id, (), lambda _job_id, _limit_ms: Released("drained"), left=self._leaving
            )
            with contextlib.suppress(StoreError):
                await backend.recorder.retire(store)
        finally:
            stop_keeping.set()
            if self._keeping is not None:
                await asyncio.get_running_loop().run_in_executor(None, self._keeping.join)
            log.info(LogEvent("worker.gone", worker=runner.worker.worker_id))
            if not runner.stuck:
                slot_table.close()

    async def _keep(self, store: Store, runner: Runner, slot_table: SlotTable, stop: threading.Event) -> None:
        """Renew leases and do the chores, on a loop and a connection that no job can block."""
        settings = self._app.settings
        own = self._app.make_store() if store.abilities.shared else store
        if own is not store:
            await own.open()
        recorder = MetricsRecorder()  # The runner's recorder belongs to another thread.
        renewer = LeaseRenewer(
            own,
            lambda: runner.worker,
            slot_table.leases,
            _HeartbeatHandler(self, runner, self._loop or asyncio.get_running_loop(), settings.grace),
            heartbeat=settings.heartbeat,
            dead_after=settings.dead_after,
            confirm=settings.confirm,
            recorder=recorder,
            since=runner.registered,
        )
        archiver = None if settings.history is None else make_archiver(own, settings.history)
        chores = standard_chores(
            own,
            self._app.in_force,
            recorder,
            heartbeat=settings.heartbeat,
            dead_after=settings.dead_after,
            knows_task=self._app.tasks.__contains__,
            idle_since=slot_table.idle_since,
            sessions=runner.has_sessions,
            archiver=archiver,
        )
        upkeep = [asyncio.create_task(renewer.run()), asyncio.create_task(run_chores(chores, Outage(log)))]
        try:
            await asyncio.get_running_loop().run_in_executor(None, stop.wait)
        finally:
            await end_tasks(upkeep)
            if archiver is not None:
                await archiver.close()
            with contextlib.suppress(StoreError):
                await recorder.retire(own)
            if own is not store:
                await own.close()

    def _raise_problem(self) -> None:
        if self._problem is not None:
            problem, self._problem = self._problem, None
            raise problem


class _HeartbeatHandler:
    """Passes replies to heartbeats from the lease thread to the runner's loop."""

    def __init__(self, worker: Worker, runner: Runner, loop: asyncio.AbstractEventLoop, grace: float) -> None:
        self._worker, self._runner, self._loop, self._grace = worker, runner, loop, grace

    def cancel(self, job_ids: Sequence[JobId]) -> None:
        self._call(self._runner.stop_jobs, list(job_ids), Stop.CANCEL)

    def lost(self, job_ids: Sequence[JobId]) -> None:
        self._call(self._runner.stop_jobs, list(job_ids), Stop.LOST)

    def grant(self, grants: Sequence[RunBudget]) -> None:
        self._call(self._runner.grant, grants)

    def leave(self, state: WorkerState) -> None:
        if state is WorkerState.DEAD:
            self.cut_off()
        else:
            asyncio.run_coroutine_threadsafe(self._runner.drain(self._grace), self._loop)

    def cut_off(self) -> None:
        """Stop all jobs, because the leases are lost, and start again under a new name."""
        self._worker.restarting = True
        self._call(self._runner.stop_jobs, self._runner.stuck, Stop.LOST)
        asyncio.run_coroutine_threadsafe(self._runner.drain(0), self._loop)

    def policy_may_have_changed(self) -> None:
        self._call(self._runner.check_policy)

    def _call(self, function: Any, *values: Any) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *values)
