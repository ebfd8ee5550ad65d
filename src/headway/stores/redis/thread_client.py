"""The short way for code without an event loop: each thread has a connection and waits at it itself."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import Any

import hiredis

from headway.core.errors import StoreUnavailable
from headway.stores.base import TIMEOUT
from headway.stores.redis.connection import Endpoint, Login, pack
from headway.stores.redis.sockets import new_reader, plug_in, read_reply


class ThreadClient:
    """Asks the server without a hop to another thread. Whatever goes wrong is left to the link, which can do more."""

    def __init__(self, login: Login, timeout: float = TIMEOUT) -> None:
        self._login = login
        self._timeout = timeout
        self._here = threading.local()
        self._plugs: set[socket.socket] = set()

    def close(self) -> None:
        """Close the connections of all threads. One that comes again makes another."""
        for plug in list(self._plugs):
            plug.close()
        self._plugs.clear()
        self._here = threading.local()

    def ask(self, address: Endpoint, commands: bytes, replies: int = 1) -> list[Any] | None:
        """Return the replies to packed commands, or None if one did not come; then nothing is known of any.

        Raises ``StoreUnavailable`` if the server is silent for longer than the caller may wait.
        """
        here = self._here
        try:
            if getattr(here, "place", None) != (address, os.getpid()):
                self._connect(address)
            return self._answer(commands, replies)
        except TimeoutError as problem:
            self._leave()
            raise StoreUnavailable(f"{address} did not answer within {self._timeout:g} s") from problem
        except (OSError, hiredis.HiredisError):
            self._leave()
            return None

    def _answer(self, commands: bytes, replies: int = 1) -> list[Any]:
        plug, reader = self._here.plug, self._here.reader
        plug.sendall(commands)
        return [read_reply(plug, reader) for _ in range(replies)]

    def _connect(self, address: Endpoint) -> None:
        self._leave()
        here, login = self._here, self._login
        plug = plug_in(address, login, self._timeout)
        self._plugs.add(plug)
        here.plug, here.reader, here.place = plug, new_reader(), (address, os.getpid())
        if login.password is not None:
            self._answer(pack(("AUTH", login.username or "default", login.password)))
        if login.database:
            self._answer(pack(("SELECT", login.database)))

    def _leave(self) -> None:
        here = self._here
        plug, place = getattr(here, "plug", None), getattr(here, "place", None)
        here.plug = here.place = None
        if plug is not None and place is not None:
            self._plugs.discard(plug)
            if place[1] == os.getpid():  # After a fork it is the parent's: not ours to end.
                with contextlib.suppress(OSError):
                    plug.close()
