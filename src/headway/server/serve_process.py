"""One of the processes of ``headway serve``: it takes a socket and settings from its parent and serves."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from typing import Any

import msgspec

from headway.client.app import Headway
from headway.observability.logs import configure_logs
from headway.runtime.os_support import die_with_parent, tune_gc
from headway.security.binding import reaches_only_here
from headway.server.api import headway_api
from headway.server.uvicorn_server import UvicornServer, address_of, announce, check_auth

VARIABLE = "HEADWAY_SERVING"  # Not an argument: those are there for everybody to see, and addresses hold passwords.


class ServeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a process of ``headway serve`` is to do."""

    descriptor: int
    app: str | None = None
    settings: dict[str, Any] = {}
    hosts: list[str] = []
    origins: list[str] = []
    log_level: str = "info"
    tls: dict[str, str] = {}


async def serve(serving: ServeConfig, listener: socket.socket) -> None:
    """Serve until a signal says to leave."""
    app = _app(serving)
    await check_auth(await app.client.store(), app.settings)
    tune_gc()
    may_open = reaches_only_here(app.settings.host)
    api = headway_api(app, hosts=serving.hosts, origins=serving.origins, may_open=may_open)
    server = UvicornServer(api, listener, **serving.tls)
    announce(address_of(listener, tls=bool(serving.tls)))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.leave)
    await server.run_here()


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
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve(serving, listener))
    else:
        uvloop.run(serve(serving, listener))


if __name__ == "__main__":
    main()
