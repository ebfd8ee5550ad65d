"""The short way for code without an event loop: each thread has a connection and waits at it itself."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import Any

import hiredis

from headway.stores.redis.connection import Address, Login, pack

TIMEOUT = 5.0
_MORE = object()


class Shortcut:
    """Asks the server without a hop to another thread. Whatever goes wrong is left to the link, which can do more."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self._here = threading.local()
        self._plugs: set[socket.socket] = set()

    def close(self) -> None:
        """Close the connections of all threads. One that comes again makes another."""
        for plug in list(self._plugs):
            plug.close()
        self._plugs.clear()
        self._here = threading.local()

    def ask(self, address: Address, *words: bytes | str | int) -> Any:
        """Give a command's reply, or None if there was none; then nothing is known of it."""
        here = self._here
        try:
            if getattr(here, "place", None) != (address, os.getpid()):
                self._connect(address)
            return self._answer(*words)
        except (OSError, hiredis.HiredisError):
            self._leave()
            return None

    def _answer(self, *words: bytes | str | int) -> Any:
        plug, reader = self._here.plug, self._here.reader
        plug.sendall(pack(words))
        while (reply := reader.gets()) is _MORE:
            data = plug.recv(65_536)
            if not data:
                raise ConnectionError("the server has closed the connection")
            reader.feed(data)
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        return reply

    def _connect(self, address: Address) -> None:
        self._leave()
        here, login = self._here, self._login
        if address.path is not None:
            plug = socket.socket(socket.AF_UNIX)
            plug.settimeout(TIMEOUT)
            plug.connect(address.path)
        else:
            plug = socket.create_connection((address.host, address.port), TIMEOUT)
            plug.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if login.tls is not None:
                plug = login.tls.wrap_socket(plug, server_hostname=address.host)
        self._plugs.add(plug)
        here.plug, here.reader, here.place = plug, hiredis.Reader(notEnoughData=_MORE), (address, os.getpid())
        if login.password is not None:
            self._answer("AUTH", login.username or "default", login.password)
        if login.database:
            self._answer("SELECT", login.database)

    def _leave(self) -> None:
        here = self._here
        plug, place = getattr(here, "plug", None), getattr(here, "place", None)
        here.plug = here.place = None
        if plug is not None and place is not None:
            self._plugs.discard(plug)
            if place[1] == os.getpid():  # After a fork it is the parent's: not ours to end.
                with contextlib.suppress(OSError):
                    plug.close()
