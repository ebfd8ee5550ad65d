"""The interactive sessions of this process: admit clients, and connect them with workers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from headway.client.codec import split_server
from headway.client.task import Task
from headway.core.errors import QueueFull, StoreError
from headway.core.job import JobId, JobRecord, State
from headway.core.log_event import LogEvent
from headway.core.policy.document import INTERACTIVE
from headway.core.policy.sessions import admit_session
from headway.maintenance.loop import every
from headway.maintenance.preemption import EVERY as ROOM_EVERY
from headway.maintenance.preemption import Preemptor
from headway.protocol.sessions import PATH, PROOF, RESUME, SERVER, WORKER, AddressRefused, is_proof, proof_of
from headway.runtime.bounded_wait import end_tasks
from headway.server.auth import refuse_socket
from headway.server.problems import Problem
from headway.server.sessions.listener import SessionListener
from headway.server.sessions.session import InteractiveSession

if TYPE_CHECKING:
    from headway.server.service import Service

log = logging.getLogger("headway.server")

# Seconds for a worker to claim the job and connect, else the client is denied. Longer than a slow poll, in case a
# wake-up is lost.
START_SECONDS = 1.5


class SessionDenied(Exception):
    """No slot is free for this session."""


class SessionBroker:
    """Admits sessions or denies them at once, and connects workers to admitted sessions."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._open: dict[JobId, InteractiveSession] = {}
        self._sessions_running: set[asyncio.Task[None]] = set()
        self._preempting: asyncio.Task[None] | None = None
        routes = [
            WebSocketRoute(f"{PATH}{{job_id}}", self.dial),
            WebSocketRoute(f"{PATH}{{job_id}}/client", self.take_back),
        ]
        routes_app = Starlette(routes=routes)
        self._dial_in = SessionListener(routes_app, service.app.settings.advertise)

    async def begin(
        self, task: Task[Any, Any, Any], parameters: Mapping[str, Any], *, tenant: str | None, trace_id: str | None
    ) -> InteractiveSession:
        """Start a session at once. Raises ``SessionDenied`` if that is impossible."""
        await self._admit(task)
        server = await self._service.addresses.sign(await self._dial_in.address())
        call = task.session(dict(parameters), server=server, expires=START_SECONDS, tenant=tenant, trace_id=trace_id)
        session = self._make(JobId(call.new.job_id), call.new.tenant)
        try:
            await self._service.submit_batcher.submit(call)
            async with asyncio.timeout(START_SECONDS):
                await session.linked.wait()
        except QueueFull as problem:
            await self._give_up(session)
            raise SessionDenied(str(problem)) from None
        except TimeoutError:
            await self._give_up(session)
            raise SessionDenied("no worker took it at once") from None
        except BaseException:
            await self._give_up(session)
            raise
        self._start(session)
        return session

    def find(self, job_id: str, secret: str, tenant: str | None) -> InteractiveSession | None:
        """Return the session to resume, if the secret is right and the caller may."""
        session = self._open.get(JobId(job_id))
        if session is None or not session.may_resume(secret) or tenant not in (None, session.tenant):
            return None
        return session

    async def where(self, job: JobRecord) -> tuple[str, dict[str, str]] | None:
        """Return the address of the process that has a session, and the headers that prove our right to relay to it."""
        signed = split_server(job.payload)[1] if job.rung == INTERACTIVE else None
        token = None if signed is None else await self._token(job.job_id)
        if token is None or signed is None:
            return None
        try:
            server = await self._service.addresses.check(signed)
        except AddressRefused as problem:
            log.warning(LogEvent("session.address_refused", job=job.job_id, reason=str(problem)))
            return None
        if server == await self._dial_in.address():
            return None
        return f"{server}{PATH}{job.job_id}/client", {PROOF: proof_of(job.job_id, token, SERVER)}

    async def take_back(self, websocket: WebSocket) -> None:
        """Serve a client that returns through another process, which has authenticated it."""
        job_id, headers = JobId(websocket.path_params["job_id"]), websocket.headers
        session = self.find(job_id, headers.get(RESUME, ""), None)
        if session is None or "origin" in headers or not await self._knows(job_id, headers.get(PROOF, ""), SERVER):
            await refuse_socket(websocket, Problem("not_found", "no such session"))
            return
        await websocket.accept()
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await session.attach_client(websocket, never, self._service.stopping)

    async def close(self) -> None:
        """End the open sessions."""
        for session in list(self._open.values()):
            session.cut(1012, "the server leaves")
            await session.end()
        tasks = [*self._sessions_running, *([self._preempting] if self._preempting else [])]
        await end_tasks(tasks)
        await self._dial_in.close()

    async def _admit(self, task: Task[Any, Any, Any]) -> None:
        store, policy = await self._service.store(), await self._service.policy()
        template = task.template
        verdict = admit_session(
            await store.diagnose(),
            policy,
            task=task.name,
            lane=template.lane,
            needs=template.needs,
            chance=random.random(),
        )
        if not verdict.admitted:
            if verdict.amendments:
                await store.preempt(verdict.amendments)
            raise SessionDenied(verdict.reason)

    def _make(self, job_id: JobId, tenant: str | None) -> InteractiveSession:
        grace = self._service.app.settings.session_grace
        session = InteractiveSession(job_id, tenant, grace=grace, cancel=self._cancel, watch_job=self._watch_job)
        self._open[job_id] = session
        return session

    async def _give_up(self, session: InteractiveSession) -> None:
        """Cancel a job that could not start at once, because its client is denied."""
        self._open.pop(session.job_id, None)
        await session.end()

    async def _cancel(self, job_id: JobId) -> None:
        await (await self._service.store()).cancel([job_id])

    async def _watch_job(self, job_id: JobId) -> AsyncIterator[JobRecord | None]:
        watcher = await self._service.client.watcher()
        async with contextlib.aclosing(watcher.watch_changes(job_id)) as jobs:  # type: ignore[type-var]
            async for job in jobs:
                yield job

    def _start(self, session: InteractiveSession) -> None:
        living = asyncio.create_task(session.live())
        self._sessions_running.add(living)

        def forget(_: object) -> None:
            self._sessions_running.discard(living)
            self._open.pop(session.job_id, None)

        living.add_done_callback(forget)
        if self._preempting is None or self._preempting.done():
            self._preempting = asyncio.create_task(self._preemptor())

    async def _preemptor(self) -> None:
        """Preempt sessions promptly, without waiting for a worker to do it. Ends with the last session."""
        preemptor = Preemptor(await self._service.store(), self._service.app.in_force)

        async def preempt() -> float | None:
            await preemptor()
            return None

        preempting = asyncio.create_task(every(ROOM_EVERY, preempt, name="sessions"))
        try:
            while self._sessions_running:
                await asyncio.wait(self._sessions_running, return_when=asyncio.ALL_COMPLETED)
        finally:
            preempting.cancel()

    async def dial(self, websocket: WebSocket) -> None:
        """Connect the worker that holds the job of a session, once. Other callers do not learn whether it exists."""
        job_id = JobId(websocket.path_params["job_id"])
        session = self._open.get(job_id)
        proof = websocket.headers.get(PROOF, "")
        waits = session is not None and not session.linked.is_set() and "origin" not in websocket.headers
        if waits and await self._knows(job_id, proof, WORKER) and session is not None and not session.linked.is_set():
            await session.attach_worker(websocket)
        else:
            await refuse_socket(websocket, Problem("not_found", "no session waits for this worker"))

    async def _knows(self, job_id: JobId, proof: str, who: str) -> bool:
        """Return whether the caller knows the token of the job's current lease."""
        token = await self._token(job_id) if proof else None
        return token is not None and is_proof(proof, job_id, token, who)

    async def _token(self, job_id: JobId) -> bytes | None:
        store = await self._service.store()
        try:
            (job,) = await store.get([job_id])
            if job is None or job.state is not State.EXECUTING or job.worker_id is None:
                return None
            held = await store.leases(worker_id=job.worker_id, payloads=False)
        except StoreError:
            return None
        return next((lease.token for lease in held if lease.job_id == job_id), None)
