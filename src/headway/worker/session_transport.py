"""The worker's end of a session: it connects to the server that admitted the client, and proves that it has the job."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from headway.client.codec import split_server
from headway.client.session import TaskSession
from headway.core.errors import ConfigError, HeadwayError, SessionClosed
from headway.core.lease import Lease
from headway.protocol.sessions import (
    MESSAGE_MAX,
    PATH,
    PROOF,
    AddressRefused,
    AddressSigner,
    proof_of,
    read_from_server,
)
from headway.runtime.bounded_wait import end_tasks
from headway.worker.active_job import ActiveJob

DIAL_SECONDS = 2.0  # Seconds to connect. The server itself waits no longer.
PING_EVERY, PING_TIMEOUT = 2.0, 4.0  # Seconds. The worker notices that a server's machine died after their sum.
CLOSE_SECONDS = 2.0  # Seconds for the closing handshake.
CLIENT_GONE_SECONDS = 1.0  # Seconds for a task to end by itself once its client is gone for good.


async def run_session(job: ActiveJob, addresses: AddressSigner, call: Callable[[bytes], Awaitable[Any]]) -> Any:
    """Run a session's task, connected to its client. ``call`` receives the payload without the server's address.

    Raises ``SessionClosed`` if the other end is gone before the task has ended.
    """
    payload, signed = split_server(job.lease.payload)
    if signed is None:
        raise ConfigError(f"task {job.task.name} is interactive, but no server has admitted a session for this job")
    try:
        server = await addresses.check(signed)
    except AddressRefused as problem:
        raise ConfigError(
            f"task {job.task.name}: this worker does not dial the address of its session: {problem}"
        ) from None
    loop = asyncio.get_running_loop()
    async with _dialled(job.lease, server) as task_session:
        job.context.attach_session(task_session)
        deadline = asyncio.timeout(None)

        def set_deadline() -> None:
            with contextlib.suppress(RuntimeError):  # The task has ended.
                deadline.reschedule(loop.time() + CLIENT_GONE_SECONDS)

        try:
            async with deadline:
                task_session.when_gone(set_deadline)
                value = await call(payload)
        except TimeoutError:
            if not deadline.expired():
                raise
            raise SessionClosed from None
        if task_session.gone:
            raise SessionClosed
        return value


@asynccontextmanager
async def _dialled(lease: Lease, server: str) -> AsyncIterator[TaskSession]:
    connect, closed, network_errors = _library()
    uri = server.replace("http", "ws", 1) + PATH + lease.job_id
    try:
        socket = await connect(
            uri,
            additional_headers={PROOF: proof_of(lease.job_id, lease.token)},
            compression=None,
            proxy=None,
            max_size=MESSAGE_MAX,
            open_timeout=DIAL_SECONDS,
            ping_interval=PING_EVERY,
            ping_timeout=PING_TIMEOUT,
            close_timeout=CLOSE_SECONDS,
        )
    except network_errors as problem:
        raise HeadwayError(
            f"the server that admitted this session could not be reached at {server}: {problem} "
            "(HEADWAY_ADVERTISE sets the address at which workers find it)"
        ) from None

    async def transmit(message: str | bytes) -> None:
        try:
            await socket.send(message)
        except closed as gone:
            raise ConnectionError from gone

    task_session = TaskSession(transmit)
    receiving = asyncio.create_task(_receive_messages(socket, closed, task_session))
    try:
        yield task_session
    finally:
        await end_tasks([receiving])
        await socket.close()


def prepare() -> None:
    """Import the WebSocket library before the first session. That session reports a missing library."""
    with contextlib.suppress(ConfigError):
        _library()


async def _receive_messages(socket: Any, closed: type[Exception], task_session: TaskSession) -> None:
    """Deliver the server's messages to the task until the connection closes."""
    try:
        while True:
            message = await socket.recv()
            if isinstance(message, str):
                read = read_from_server(message)
                task_session.deliver(read.data if hasattr(read, "data") else read)
            else:
                task_session.deliver(message)
    except (closed, msgspec.DecodeError):
        task_session.hang_up()


def _library() -> tuple[Any, type[Exception], tuple[type[Exception], ...]]:
    """Return the function that connects, the error of a closed connection, and the errors of a failed connect."""
    try:
        client = importlib.import_module("websockets.asyncio.client")
        errors = importlib.import_module("websockets.exceptions")
    except ImportError:
        raise ConfigError(
            "this worker cannot run interactive tasks: they need websockets (pip install 'headway-queue[server]')"
        ) from None
    return client.connect, errors.ConnectionClosed, (OSError, TimeoutError, errors.WebSocketException)
