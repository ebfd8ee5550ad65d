"""``headway serve``: the HTTP interface, without a worker."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from headway.cli.help import option
from headway.cli.worker import AppPath, LogLevel
from headway.client.settings import load_settings
from headway.core.errors import ConfigError
from headway.core.log_event import LogEvent
from headway.runtime.bounded_wait import end_tasks, wait_until_set
from headway.runtime.fast_loop import run_on_fast_loop

if TYPE_CHECKING:
    from headway.runtime.service_manager import ServiceManager
    from headway.server.serve_process import ServeConfig

log = logging.getLogger("headway.server")

RESTART_PAUSE = 1.0  # Seconds before a process that died is started again.
NEEDED = ("fastapi", "uvicorn", "websockets")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class HttpFlags:
    """The flags of the HTTP interface: its address, accepted names and origins, and certificate."""

    host: Annotated[str | None, option("Address to listen at (127.0.0.1); any other needs tokens.", "HOST")] = None
    port: Annotated[
        int | None, option("Port to listen at (8000); 0 for any free one.", "PORT", validator=Number(gte=0, lte=65_535))
    ] = None
    allow_host: Annotated[
        tuple[str, ...],
        option("Another host name that the server accepts while there are no tokens.", "NAME", show_default=False),
    ] = ()
    allow_origin: Annotated[
        tuple[str, ...], option("A site whose pages may open its WebSockets.", "ORIGIN", show_default=False)
    ] = ()
    ssl_certfile: Annotated[str | None, option("Certificate, for https.", "FILE")] = None
    ssl_keyfile: Annotated[str | None, option("The certificate's key.", "FILE")] = None

    def settings(self) -> dict[str, Any]:
        """Return what is a setting of an app."""
        given = {"host": self.host, "port": self.port}
        return {name: value for name, value in given.items() if value is not None}

    def tls(self) -> dict[str, str]:
        """Return the options for TLS. Raises ``ConfigError`` if one of them is missing."""
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise ConfigError("--ssl-certfile and --ssl-keyfile are needed together; give both, or neither for http")
        given = {"ssl_certfile": self.ssl_certfile, "ssl_keyfile": self.ssl_keyfile}
        for path in given.values():
            if path is not None and not os.path.isfile(path):
                raise ConfigError(f"cannot read {path}: there is no such file; check --ssl-certfile and --ssl-keyfile")
        return {name: path for name, path in given.items() if path is not None}


NO_FLAGS = HttpFlags()


def serve(
    app: AppPath = None,
    /,
    *,
    workers: Annotated[int, option("How many processes serve.", "N", validator=Number(gte=1, lte=64))] = 1,
    flags: HttpFlags = NO_FLAGS,
    store: Annotated[
        str | None, option("Address of the store; else HEADWAY_STORE or sqlite:///headway.db.", "URL")
    ] = None,
    namespace: Annotated[str | None, option("Namespace of an app in a shared store.", "NAME")] = None,
    log: Annotated[
        Literal["console", "json"] | None, option("Format of log lines; else console on a terminal, json elsewhere.")
    ] = None,
    log_level: LogLevel = "info",
) -> None:
    """Serve the HTTP interface for clients, operators and HTTP workers.

    It runs no jobs: also start `headway worker` on the same store, or HTTP
    workers. The server reads the tasks from the catalogue that workers keep in
    the store. With an app, it knows the app's tasks before the first worker
    starts.
    """
    check_installed()
    from headway.observability.logs import configure_logs
    from headway.runtime.service_manager import ServiceManager
    from headway.server.serve_process import ServeConfig
    from headway.server.uvicorn_server import bind

    given = flags.settings() | {"store": store, "namespace": namespace, "log": log}
    given = {name: value for name, value in given.items() if value is not None}
    settings = load_settings(given)
    if any((address or "").startswith("memory:") for address in (settings.store, settings.transient_store)):
        raise ConfigError(
            "memory:// lives inside one process, where no worker could reach it; use sqlite:///headway.db"
        )
    configure_logs(settings.log, log_level)
    tls = flags.tls()
    listener = bind(settings.host, settings.port)
    given["port"] = listener.getsockname()[1]
    serving = ServeConfig(
        descriptor=listener.fileno(),
        app=app,
        settings=given,
        hosts=list(flags.allow_host),
        origins=list(flags.allow_origin),
        log_level=log_level,
        tls=tls,
    )
    manager = ServiceManager.from_environment()
    if workers == 1:
        run_on_fast_loop(_serve_here(serving, listener, manager))
    else:
        run_on_fast_loop(_supervise(serving, workers, manager))


def check_installed() -> None:
    """Refuse to go on without the packages of the extra. Raises ``ConfigError``."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"the HTTP interface needs {', '.join(missing)}; run: pip install 'headway-queue[server]'")


async def _serve_here(serving: ServeConfig, listener: socket.socket, manager: ServiceManager) -> None:
    """Serve in this process until a signal stops it."""
    from headway.server.serve_process import serve as serve_here

    stopping = asyncio.Event()
    manager.expect("server")
    reporting = asyncio.create_task(manager.report(stopping))
    try:
        await serve_here(serving, listener, on_started=lambda: manager.started("server"), on_leaving=stopping.set)
    finally:
        await end_tasks((reporting,))


async def _supervise(serving: ServeConfig, count: int, manager: ServiceManager) -> None:
    """Keep this many processes serving. Returns after a signal, when all of them have stopped."""
    from headway.runtime.signals import Signals

    signals = Signals()
    signals.install(asyncio.get_running_loop())
    reporting = asyncio.create_task(manager.report(signals.drain))
    for number in range(count):
        manager.expect(f"server {number}")
    try:
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(_keep_one(serving, signals, partial(manager.started, f"server {number}")))
    finally:
        await end_tasks((reporting,))


def _call_once_written(pipe: int, function: Callable[[], None]) -> None:
    """Call a function when a pipe gets its byte. Close the pipe then, or when its writer has died without one."""
    loop = asyncio.get_running_loop()

    def read() -> None:
        loop.remove_reader(pipe)
        if os.read(pipe, 1):
            function()
        os.close(pipe)

    loop.add_reader(pipe, read)


async def _keep_one(serving: ServeConfig, signals: Any, on_started: Callable[[], None]) -> None:
    import msgspec

    from headway.server.serve_process import VARIABLE

    while not signals.drain.is_set():
        reader, started = os.pipe()
        config = msgspec.structs.replace(serving, started=started)
        environment = os.environ | {VARIABLE: msgspec.json.encode(config).decode()}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "headway.server.serve_process",
            pass_fds=[serving.descriptor, started],
            env=environment,
            start_new_session=True,
        )
        os.close(started)
        _call_once_written(reader, on_started)
        exited = asyncio.create_task(process.wait())
        leave = asyncio.create_task(signals.drain.wait())
        await asyncio.wait({exited, leave}, return_when=asyncio.FIRST_COMPLETED)
        if not exited.done():
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            now = asyncio.create_task(signals.now.wait())
            await asyncio.wait({exited, now}, return_when=asyncio.FIRST_COMPLETED)
            if not exited.done():
                process.kill()
            now.cancel()
            await exited
            return
        leave.cancel()
        log.error(LogEvent("server.crashed", code=process.returncode, retry_in=RESTART_PAUSE))
        await wait_until_set(signals.drain, RESTART_PAUSE)
