"""The parent of a worker: starts runners, renews their leases, kills stuck runners, returns the jobs of dead ones.

It runs no user code, so nothing a job does can keep it from renewing leases.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from headway.core.job import PAYLOAD_VERSION
from headway.core.policy.writer import policy_data
from headway.core.worker import TASK
from headway.maintenance.archiver import make_archiver
from headway.maintenance.loop import Chore, run_chores
from headway.maintenance.standard import standard_chores
from headway.metrics.export import collect
from headway.metrics.recorder import MetricsRecorder
from headway.metrics.text_format import write_text
from headway.observability.store_check import StoreCheck
from headway.policy_store.current import READ_EVERY_IF_NOTIFIED, CurrentPolicy
from headway.runtime.bounded_wait import end_tasks
from headway.runtime.service_manager import ServiceManager
from headway.runtime.signals import Signals
from headway.stores.base import Store
from headway.stores.open import open_store
from headway.worker import control
from headway.worker.backend.base import Backend
from headway.worker.backend.http import HttpBackend
from headway.worker.backend.store import StoreBackend
from headway.worker.health import not_ready, worker_families
from headway.worker.probe_server import ProbeServer
from headway.worker.runner_process import RETURN_SECONDS, RunnerProcess


class Parent:
    """One ``headway worker``: ``processes`` runners of one app, and the upkeep of their store.

    ``remote``: if the settings name a server, the worker runs its jobs, and the parent has no store and no upkeep.
    ``opener`` builds the parent's own store from the address that a runner sends, as ``open_store`` does.
    """

    def __init__(
        self,
        app_path: str,
        *,
        processes: int = 1,
        overrides: dict[str, Any] | None = None,
        log_level: str = "info",
        signals: Signals | None = None,
        manager: ServiceManager | None = None,
        remote: bool = False,
        on_up: Callable[[control.RunnerReady, Store], None] | None = None,
        on_remote: Callable[[control.RunnerReady], None] | None = None,
        opener: Callable[..., Store] = open_store,
    ) -> None:
        self.app_path = app_path
        self.overrides = overrides or {}
        self.log_level = log_level
        self.signals = signals or Signals()
        self.manager = manager or ServiceManager()
        self.remote = remote
        self.in_force = CurrentPolicy()
        self._sent_version = 0
        self.policy_changed = asyncio.Event()
        self._processes = processes
        self._on_up, self._on_remote = on_up, on_remote
        self._open_store = opener
        self._backend: Backend | None = None
        self.recorder = MetricsRecorder()
        self._probes: ProbeServer | None = None
        self._check: StoreCheck | None = None
        self._opening = asyncio.Lock()
        self._chores: asyncio.Task[None] | None = None
        self._runners: list[RunnerProcess] = []
        self._group = asyncio.TaskGroup()
        self.offers: set[str] = set()
        self.announced = ""  # The worker that on_up or on_remote announced. The parent logs every other one.
        self.cut_off = False  # No runner can reach the store.

    async def run(self) -> int:
        """Run until the worker is stopped. Return the exit code.

        Raises ``CannotStart`` if the app cannot be loaded, and ``ConfigError`` if a setting is wrong.
        """
        self.signals.install(asyncio.get_running_loop())
        self._runners = [RunnerProcess(self) for _ in range(self._processes)]
        for runner in self._runners:
            self.manager.expect(runner.part)
        reporting = asyncio.create_task(self.manager.report(self.signals.drain))
        try:
            async with self._group:
                for runner in self._runners:
                    self._group.create_task(runner.supervise())
        except BaseExceptionGroup as problems:
            raise problems.exceptions[0] from None
        finally:
            self.signals.remove(asyncio.get_running_loop())
            await end_tasks([reporting, *([] if self._chores is None else [self._chores])])
            if self._probes is not None:
                await self._probes.close()
            if self._backend is not None:
                await self._close(self._backend)
        return 1 if self.cut_off else 0

    async def _close(self, backend: Backend) -> None:
        """Close the backend, with a time limit if the store cannot be reached."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RETURN_SECONDS if self.cut_off else None):
                await backend.close()

    def note_cut_off(self) -> None:
        """End the worker if no runner can reach the store. Otherwise each cut-off runner is replaced."""
        if all(runner.is_cut_off or runner.leaving for runner in self._runners):
            self.cut_off = True
            for runner in self._runners:
                runner.kill()

    def replace(self, runner: RunnerProcess, successor: RunnerProcess) -> None:
        """Start a runner that replaces another, which ends once its jobs have ended."""
        self._runners.insert(self._runners.index(runner) + 1, successor)
        self._group.create_task(successor.supervise())

    def remove(self, runner: RunnerProcess) -> None:
        """Forget a runner that was replaced and has ended."""
        self._runners.remove(runner)

    async def backend(self, up: control.RunnerReady) -> Backend:
        """Return the parent's own backend, opened when the first runner has sent the address."""
        async with self._opening:
            if self._backend is None:
                backend = self._make_backend(up)
                await backend.open()
                self._backend = backend
                await backend.refresh_policy()
                self._sent_version = self.in_force.version
                if up.worker_http is not None:
                    self._probes = ProbeServer(
                        up.worker_http, ready=self._not_ready, metrics=lambda: self._measure(backend)
                    )
                    self._check = StoreCheck(backend.check)
                    await self._probes.open()
                follow = Chore(
                    "policy", READ_EVERY_IF_NOTIFIED, lambda: self._follow_policy(backend), wake=self.policy_changed
                )
                chores = [follow, *([] if backend.store is None else self._store_chores(up, backend.store))]
                self._chores = asyncio.create_task(run_chores(chores, backend.outage))
                if backend.store is not None:
                    if self._on_up is not None:
                        self.announced = up.worker.worker_id
                        self._on_up(up, backend.store)
                elif self._on_remote is not None:
                    self.announced = up.worker.worker_id
                    self._on_remote(up)
        return self._backend

    def _make_backend(self, up: control.RunnerReady) -> Backend:
        if up.server is None:
            store = self._open_store(up.store, up.namespace, transient=up.transient_store)
            return StoreBackend(store, self.in_force, recorder=self.recorder)
        if up.policy is not None:
            self.in_force.set(up.policy_version, up.policy)
        return HttpBackend(up.server, up.token, self.in_force, mark=PAYLOAD_VERSION)

    def _store_chores(self, up: control.RunnerReady, store: Store) -> list[Chore]:
        return standard_chores(
            store,
            self.in_force,
            self.recorder,
            heartbeat=up.heartbeat,
            dead_after=up.dead_after,
            knows_task=lambda task: f"{TASK}{task}" in self.offers,
            idle_since=self._idle_since,
            sessions=up.sessions,
            archiver=None if up.history is None else make_archiver(store, up.history),
        )

    async def _follow_policy(self, backend: Backend) -> None:
        """Check the policy for all runners, and send them a changed version."""
        await backend.refresh_policy()
        if self._sent_version != self.in_force.version:
            self._sent_version = self.in_force.version
            for runner in self._runners:
                runner.send_policy()

    def governed(self) -> control.PolicyChanged:
        """Return the policy in force for a runner, with its text if the runner cannot read it from a store."""
        remote = self._backend is not None and self._backend.store is None
        return control.PolicyChanged(self.in_force.version, policy_data(self.in_force.policy) if remote else None)

    async def _not_ready(self) -> str | None:
        """Return within a second why this worker cannot run jobs, or None."""
        if self.signals.drain.is_set():
            return "draining"
        expected = [runner for runner in self._runners if not runner.is_joining]
        if problem := next((problem for runner in expected if (problem := not_ready(runner.health))), None):
            return problem
        return None if self._check is None else await self._check.problem()

    async def _measure(self, backend: Backend) -> str:
        """Return the metrics of this worker, and of its store if it has one."""
        families = worker_families([runner.health for runner in self._runners])
        if backend.store is not None:
            families += await collect(backend.store, self.in_force.policy)
        return write_text(families)

    def _idle_since(self) -> float:
        return max(runner.idle_since() for runner in self._runners)
