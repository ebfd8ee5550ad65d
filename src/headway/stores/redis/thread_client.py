"""A client for code without an event loop: each thread has its own connection and waits for replies itself."""

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
from headway.stores.redis.sockets import new_reader, open_socket, read_reply


class ThreadClient:
    """Sends commands without a hop to the thread of the event loop. It leaves errors to ``RedisClient``."""

    def __init__(self, login: Login, timeout: float = TIMEOUT) -> None:
        self._login = login
        self._timeout = timeout
        self._here = threading.local()
        self._sockets: set[socket.socket] = set()

    def close(self) -> None:
        """Close the connections of all threads. The next command of a thread connects again."""
        for sock in list(self._sockets):
            sock.close()
        self._sockets.clear()
        self._here = threading.local()

    def ask(self, address: Endpoint, commands: bytes, replies: int = 1) -> list[Any] | None:
        """Return the replies to packed commands, or None if one did not come. The server may have executed them then.

        Raises ``StoreUnavailable`` after the timeout.
        """
        here = self._here
        try:
            if getattr(here, "place", None) != (address, os.getpid()):
                self._connect(address)
            return self._answer(commands, replies)
        except TimeoutError as problem:
            self._disconnect()
            raise StoreUnavailable(f"{address} did not answer within {self._timeout:g} s") from problem
        except (OSError, hiredis.HiredisError):
            self._disconnect()
            return None

    def _answer(self, commands: bytes, replies: int = 1) -> list[Any]:
        sock, reader = self._here.socket, self._here.reader
        sock.sendall(commands)
        return [read_reply(sock, reader) for _ in range(replies)]

    def _connect(self, address: Endpoint) -> None:
        self._disconnect()
        here, login = self._here, self._login
        sock = open_socket(address, login, self._timeout)
        self._sockets.add(sock)
        here.socket, here.reader, here.place = sock, new_reader(), (address, os.getpid())
        if login.password is not None:
            self._answer(pack(("AUTH", login.username or "default", login.password)))
        if login.database:
            self._answer(pack(("SELECT", login.database)))

    def _disconnect(self) -> None:
        here = self._here
        sock, place = getattr(here, "socket", None), getattr(here, "place", None)
        here.socket = here.place = None
        if sock is not None and place is not None:
            self._sockets.discard(sock)
            if place[1] == os.getpid():  # After a fork the connection belongs to the parent process.
                with contextlib.suppress(OSError):
                    sock.close()
