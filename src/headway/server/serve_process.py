"""A process of ``headway serve``. It gets its socket and settings from the parent process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from headway.client.app import Headway
from headway.observability.logs import configure_logs
from headway.runtime.fast_loop import run_on_fast_loop
from headway.runtime.os_support import die_with_parent, tune_gc
from headway.security.binding import reaches_only_here
from headway.server.api import headway_api
from headway.server.uvicorn_server import UvicornServer, address_of, announce, check_auth

VARIABLE = "HEADWAY_SERVING"  # Not an argument: every user can list arguments, and store addresses hold passwords.


class ServeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a process of ``headway serve``."""

    descriptor: int
    app: str | None = None
    settings: dict[str, Any] = {}
    hosts: list[str] = []
    origins: list[str] = []
    log_level: str = "info"
    tls: dict[str, str] = {}
    started: int | None = None  # The descriptor of a pipe that gets one byte once the process answers requests.


async def serve(
    serving: ServeConfig, listener: socket.socket, *, on_started: Callable[[], None], on_leaving: Callable[[], None]
) -> None:
    """Serve until a signal stops the process."""
    server = await make_server(
        _app(serving),
        listener,
        hosts=serving.hosts,
        origins=serving.origins,
        tls=serving.tls,
        on_started=on_started,
    )
    tune_gc()

    def leave() -> None:
        on_leaving()
        server.leave()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, leave)
    await server.run_here()


async def make_server(
    app: Headway,
    listener: socket.socket,
    *,
    hosts: Iterable[str],
    origins: Iterable[str],
    tls: Mapping[str, str],
    on_started: Callable[[], None] | None = None,
) -> UvicornServer:
    """Return a server for an app, and log its address. Raises ``ConfigError`` if it would need tokens."""
    await check_auth(await app.client.store(), app.settings)
    may_open, ui = reaches_only_here(app.settings.host), app.settings.ui
    api = headway_api(app, hosts=hosts, origins=origins, may_open=may_open, ui=ui)
    announce(address_of(listener, tls=bool(tls)), ui=ui)
    return UvicornServer(api, listener, service=api.state.service, on_started=on_started, **tls)


def _app(serving: ServeConfig) -> Headway:
    if serving.app is None:
        return Headway(**serving.settings)
    from headway.client.loading import load_app

    app = load_app(serving.app)
    app.configure(**serving.settings)
    return app


def main() -> None:
    die_with_parent()
    serving = msgspec.json.decode(os.environ.pop(VARIABLE).encode(), type=ServeConfig)
    configure_logs(serving.settings.get("log"), serving.log_level)
    listener = socket.socket(fileno=serving.descriptor)

    def on_started() -> None:
        if serving.started is not None:
            os.write(serving.started, b".")
            os.close(serving.started)

    run_on_fast_loop(serve(serving, listener, on_started=on_started, on_leaving=lambda: None))


if __name__ == "__main__":
    main()
