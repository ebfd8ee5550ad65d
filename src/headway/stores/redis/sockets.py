"""A socket to a server for code that waits by itself, and the replies that come through it."""

from __future__ import annotations

import socket
from typing import Any

import hiredis

from headway.stores.redis.connection import Endpoint, Login

TIMEOUT = 5.0
MORE = object()  # What a reader gives while it has no whole reply.


def plug_in(address: Endpoint, login: Login, timeout: float = TIMEOUT) -> socket.socket:
    """Connect. Raises ``OSError``; so does whatever waits for longer than ``timeout`` seconds afterwards."""
    if address.path is not None:
        plug = socket.socket(socket.AF_UNIX)
        plug.settimeout(timeout)
        plug.connect(address.path)
    else:
        plug = socket.create_connection((address.host, address.port), timeout)
        plug.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if login.tls is not None:
            plug = login.tls.wrap_socket(plug, server_hostname=address.host)
    plug.settimeout(timeout)
    return plug


def new_reader() -> Any:
    """Make what finds the replies in what comes through one plug."""
    return hiredis.Reader(notEnoughData=MORE)


def read_reply(plug: socket.socket, reader: Any) -> Any:
    """Wait for the next reply. Raises ``OSError``, or the reply itself if it is an error."""
    while (reply := reader.gets()) is MORE:
        data = plug.recv(65_536)
        if not data:
            raise ConnectionError("the server has closed the connection")
        reader.feed(data)
    if isinstance(reply, hiredis.ReplyError):
        raise reply
    return reply
