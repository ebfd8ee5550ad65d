"""An interactive session in the process that admitted it: a client, a worker, and their messages."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from headway.core.errors import HeadwayError, StoreError
from headway.core.job import JobId, JobRecord
from headway.core.policy.document import HALTED
from headway.protocol import sessions as messages
from headway.runtime.bounded_wait import end_tasks, wait_until_set
from headway.server.serializers import ending_values

ENDED, TAKEN_OVER, REFUSED, HALT = 1000, 4408, 1008, 4409
RESTARTING = 1012
FINAL_MESSAGE_SECONDS = 1.0  # Seconds for a slow client to receive how its session ended.
LOST_SECONDS = 5.0  # Seconds for a job to end after its worker disconnected. Then the worker counts as dead.
DRAINED = 2.0  # Seconds for a worker to disconnect after its job has ended.
READ_RETRY = 1.0  # Seconds before a store that did not answer is read again.
RETURNED = messages.OUTPUT_MAX // 8  # Bytes of credit that are returned together.

encode = msgspec.json.Encoder().encode
Cancel = Callable[[JobId], Awaitable[object]]
WatchJob = Callable[[JobId], Any]


class SessionEnd(NamedTuple):
    """The end of a session: the last message, and the code and reason of the closed socket."""

    message: Mapping[str, Any]
    code: int
    reason: str
    at_once: bool = False  # Do not wait until the earlier output is sent.


class _ClientConnection(NamedTuple):
    """A connection of the client. ``displaced``: a newer one has replaced it. ``left``: it has closed."""

    displaced: asyncio.Future[None]
    left: asyncio.Event


class InteractiveSession:
    """Carries messages between a client and a worker, and reports to the client how the session ended.

    The client may disconnect and return within ``grace`` seconds. Meanwhile the output of the task is buffered up to a
    bound at which the task waits. After the grace the job is cancelled.
    """

    def __init__(self, job_id: JobId, tenant: str | None, *, grace: float, cancel: Cancel, watch_job: WatchJob) -> None:
        self.job_id = job_id
        self.tenant = tenant
        self._grace = grace
        self._cancel = cancel
        self._watch_job = watch_job
        self._resume = ""
        self._worker: WebSocket | None = None
        self.linked = asyncio.Event()  # A worker has connected.
        self._parted = asyncio.Event()  # The worker has disconnected.
        self._outbox: deque[tuple[str | bytes, int]] = deque()  # Messages with their sizes in bytes.
        self._held = 0  # The sum of these sizes.
        self._unreturned = 0  # Credit that was not returned to the worker yet.
        self._room = messages.INPUT_MAX  # Bytes that the worker accepts.
        self._has_room = asyncio.Event()
        self._outgoing = asyncio.Event()  # Wakes the task that writes to the client.
        self._final: asyncio.Future[SessionEnd] = asyncio.get_running_loop().create_future()
        self._connection: _ClientConnection | None = None
        self._alone = asyncio.Event()  # No client is connected.
        self._back = asyncio.Event()  # A client is connected.
        self._end_sent = asyncio.Event()  # The client knows how the session ended.

    # ------------------------------------------------------------------ lifetime

    async def live(self) -> None:
        """Follow the job until the client knows how it ended, or will not return."""
        following = asyncio.create_task(self._follow())
        leaving = asyncio.create_task(self._until_left())
        try:
            await asyncio.wait({following, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                self._resume = ""  # The grace is over.
                await self.end()
            await following
            sending = asyncio.create_task(self._end_sent.wait())
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            sending.cancel()
            if self._final.result().code == HALT:
                # The worker ends the job already. A cancel from here would give another reason.
                await self._parted.wait()
        finally:
            await end_tasks((following, leaving))
            await self._part()

    async def end(self) -> None:
        """Cancel the job, and notify the worker on its connection too."""
        with contextlib.suppress(StoreError):
            await self._cancel(self.job_id)
        await self._part()

    def cut(self, code: int, reason: str) -> None:
        """End the session for the client now, whatever becomes of the job."""
        self._settle(SessionEnd({}, code, reason, at_once=True))

    def _settle(self, final: SessionEnd) -> None:
        if not self._final.done():
            self._final.set_result(final)
            self._outgoing.set()

    async def _part(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            with contextlib.suppress(WebSocketDisconnect, RuntimeError, TimeoutError):
                async with asyncio.timeout(FINAL_MESSAGE_SECONDS):
                    await worker.close(ENDED, "the session is over")

    async def _until_left(self) -> None:
        """Wait until no client has been connected for as long as the grace."""
        while True:
            await self._alone.wait()
            if not await wait_until_set(self._back, self._grace):
                return

    async def _follow(self) -> None:
        watching = asyncio.create_task(self._watch())
        missing = asyncio.create_task(self._miss_worker())
        try:
            parts: set[asyncio.Future[Any]] = {watching, missing, self._final}
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                self._settle(watching.result())
            elif not self._final.done():
                await self.end()
                error = {"type": "WorkerDied", "message": "the worker that ran this session is gone"}
                self._settle(_result({"status": "failed", "result": None, "error": error, "reason": "worker_died"}))
        finally:
            await end_tasks((watching, missing))

    async def _watch(self) -> SessionEnd:
        """Read the job whenever it changes, until the job or the session has ended."""
        while True:
            try:
                async with contextlib.aclosing(self._watch_job(self.job_id)) as jobs:
                    async for job in jobs:
                        if (final := self._judge(job)) is not None:
                            if not final.at_once and self.linked.is_set():
                                await wait_until_set(self._parted, DRAINED)
                            return final
            except HeadwayError:
                await asyncio.sleep(READ_RETRY)

    def _judge(self, job: JobRecord | None) -> SessionEnd | None:
        if job is None:
            error = {"type": "JobNotFound", "message": "the task of this session is not there any more"}
            return _result({"status": "failed", "result": None, "error": error, "reason": "job_not_found"})
        if HALTED in (job.assigned, job.reason):
            why = "a task that was waiting needs its slot"
            return SessionEnd({"type": "halted", "reason": why}, HALT, why, at_once=True)
        return _result(ending_values(job)) if job.state.ended else None

    async def _miss_worker(self) -> None:
        await self._parted.wait()
        await asyncio.sleep(LOST_SECONDS)

    # ------------------------------------------------------------------ the worker

    async def attach_worker(self, socket: WebSocket) -> None:
        """Receive messages of the worker until it disconnects. A session has only one worker."""
        await socket.accept()
        self._worker = socket
        self.linked.set()
        try:
            while (message := await socket.receive())["type"] != "websocket.disconnect":
                if not self._take(message.get("bytes"), message.get("text")):
                    await _close(socket, REFUSED, "malformed, or more than there was credit for")
                    return
        finally:
            self._worker = None
            self._parted.set()
            self._has_room.set()
            self._outgoing.set()

    def _take(self, data: bytes | None, text: str | None) -> bool:
        if data is None:
            try:
                parsed = messages.read_from_worker(text or "")
            except msgspec.DecodeError:
                return False
            if isinstance(parsed, messages.Credit):
                self._room += parsed.bytes
                self._has_room.set()
                return True
            self._put(messages.write(parsed), len(parsed.data.encode()))
        else:
            self._put(data, len(data))
        return self._held <= messages.OUTPUT_MAX + 2 * messages.PIECE

    def _put(self, message: str | bytes, size: int) -> None:
        self._outbox.append((message, size))
        self._held += size
        self._outgoing.set()

    async def _return_credit(self, size: int) -> None:
        self._held -= size
        self._unreturned += size
        if self._unreturned >= RETURNED or not self._outbox:
            unreturned, self._unreturned = self._unreturned, 0
            await self._send_to_worker(messages.write(messages.Credit(unreturned)))

    async def _send_to_worker(self, message: str | bytes) -> None:
        if self._worker is not None:
            with contextlib.suppress(WebSocketDisconnect, RuntimeError):
                await _send(self._worker, message)

    # ------------------------------------------------------------------ the client

    def may_resume(self, secret: str) -> bool:
        """Return whether this is the last secret that the client got."""
        return bool(self._resume) and hmac.compare_digest(secret.encode("utf-8", "replace"), self._resume.encode())

    async def attach_client(self, socket: WebSocket, *ends: asyncio.Future[None]) -> None:
        """Serve the client until it disconnects or knows how the session ended. Close its earlier connection.

        ``ends``: a future that is done once its token is invalid or the server stops.
        """
        connection = await self._take_over()
        self._resume = secrets.token_urlsafe(32)
        sending = asyncio.create_task(self._send_to_client(socket))
        receiving = asyncio.create_task(self._receive_from_client(socket))
        parts: set[asyncio.Future[Any]] = {sending, receiving, connection.displaced, *ends}
        try:
            await asyncio.wait({*parts, self._final}, return_when=asyncio.FIRST_COMPLETED)
            if self._final.done() and not self._final.result().at_once:
                await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            if connection.displaced.done():
                await _close(socket, TAKEN_OVER, "another connection has taken over")
                return
            ended = next((end for end in ends if end.done()), None)
            if ended is not None:
                leaving = ended is ends[-1]
                self.cut(RESTARTING if leaving else REFUSED, "the server leaves" if leaving else "the token has ended")
                await self.end()
            if self._final.done() and self._final.result().at_once and not receiving.done():
                await end_tasks([sending])
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(FINAL_MESSAGE_SECONDS):
                        await self._send_end(socket, self._final.result())
        finally:
            await end_tasks((sending, receiving))
            connection.left.set()
            if self._connection is connection:
                self.leave()

    def leave(self) -> None:
        """Record that no client is connected."""
        self._connection = None
        self._back.clear()
        self._alone.set()

    async def _take_over(self) -> _ClientConnection:
        """Become the only connection of the client, once an earlier one has closed."""
        before, mine = self._connection, _ClientConnection(asyncio.get_running_loop().create_future(), asyncio.Event())
        self._connection = mine
        self._alone.clear()
        self._back.set()
        if before is not None:
            before.displaced.set_result(None)
            await before.left.wait()
        return mine

    async def _send_to_client(self, socket: WebSocket) -> None:
        """Send the greeting to the client, then all messages of the task, and finally how it ended."""
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            started = {"type": "started", "task_id": self.job_id, "resume": self._resume}
            await socket.send_text(encode(started).decode())
            while True:
                self._outgoing.clear()
                while self._outbox:
                    message, size = self._outbox[0]
                    await _send(socket, message)
                    self._outbox.popleft()  # Only now: a client that returns gets what was not sent.
                    await self._return_credit(size)
                if self._final.done():
                    await self._send_end(socket, self._final.result())
                    return
                await self._outgoing.wait()

    async def _send_end(self, socket: WebSocket, final: SessionEnd) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            if final.message:
                await socket.send_text(encode(final.message).decode())
            await socket.close(final.code, final.reason)
            self._end_sent.set()

    async def _receive_from_client(self, socket: WebSocket) -> None:
        """Forward the messages of the client until it disconnects."""
        while (message := await socket.receive())["type"] != "websocket.disconnect":
            data = message.get("bytes")
            if data is not None:
                await self._pass_on(data, len(data))
                continue
            try:
                parsed = messages.read_from_client(message.get("text") or "")
            except msgspec.DecodeError:
                await _close(socket, REFUSED, "malformed message")
                return
            match parsed:
                case messages.Close():
                    await self.end()
                case messages.Resize():
                    await self._send_to_worker(messages.write(parsed))
                case messages.Text(text):
                    await self._pass_on(messages.write(parsed), len(text.encode()))

    async def _pass_on(self, message: str | bytes, size: int) -> None:
        """Send to the worker once it has credit. Until then nothing more is read from the client."""
        while self._room <= 0 and not self._parted.is_set():
            self._has_room.clear()
            await self._has_room.wait()
        self._room -= size
        await self._send_to_worker(message)


def _result(values: Mapping[str, Any]) -> SessionEnd:
    return SessionEnd({"type": "result", **values}, ENDED, str(values["status"]))


async def _send(socket: WebSocket, message: str | bytes) -> None:
    if isinstance(message, bytes):
        await socket.send_bytes(message)
    else:
        await socket.send_text(message)


async def _close(socket: WebSocket, code: int, reason: str) -> None:
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        await socket.close(code, reason)
