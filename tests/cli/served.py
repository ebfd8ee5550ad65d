"""The command line with a server: the same commands, over HTTP and with a token."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import NamedTuple

import pytest

from headway import Headway
from headway.server.api import headway_api
from tests.cli.command import Cli, CommandResult
from tests.server import live


class ServedCli(NamedTuple):
    """The command line in a folder with a store, and a server on that store."""

    cli: Cli
    url: str

    def call(self, *words: str, code: int = 0, token: str | None = None) -> CommandResult:
        """Run a command that uses the server."""
        with pytest.MonkeyPatch.context() as patch:
            if token is not None:
                patch.setenv("HEADWAY_TOKEN", token)
            return self.cli.call(*words, "--server", self.url, code=code)

    def submit(self, *words: str) -> str:
        """Submit a job directly to the store. Return its id."""
        return self.cli.call("submit", *words).out.strip()

    def token(self, *scopes: str) -> str:
        words = [word for scope in scopes for word in ("--scope", scope)]
        return self.cli.call("token", "create", *words).out.strip()


class ServerThread:
    """A server in a thread with its own event loop."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over = asyncio.Event()
        self.url = ""

    def start(self) -> None:
        self._thread.start()
        assert self._started.wait(20)

    def stop(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(20)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        api = headway_api(Headway(f"sqlite:///{self._folder}/headway.db"))
        async with live.served(api) as self.url:
            self._started.set()
            await self._over.wait()
