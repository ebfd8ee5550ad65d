"""A socket to a server for code that waits by itself, and the replies that come through it."""

from __future__ import annotations

import socket
from typing import Any

import hiredis

from headway.stores.redis.connection import CONNECT_TIMEOUT, Address, Login

TIMEOUT = 5.0
MORE = object()  # What a reader gives while it has no whole reply.


def plug_in(address: Address, login: Login) -> socket.socket:
    """Connect. Raises ``OSError``."""
    if address.path is not None:
        plug = socket.socket(socket.AF_UNIX)
        plug.settimeout(CONNECT_TIMEOUT)
        plug.connect(address.path)
    else:
        plug = socket.create_connection((address.host, address.port), CONNECT_TIMEOUT)
        plug.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if login.tls is not None:
            plug = login.tls.wrap_socket(plug, server_hostname=address.host)
    plug.settimeout(TIMEOUT)
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
