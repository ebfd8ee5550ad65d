"""Blocking sockets to a server, and the replies that arrive on them."""

from __future__ import annotations

import socket
from typing import Any

import hiredis

from headway.stores.redis.connection import Endpoint, Login

TIMEOUT = 5.0  # Seconds to connect, and for each read or write.
ReplyError = hiredis.ReplyError
INCOMPLETE = object()  # What a reader returns while it has no complete reply.


def open_socket(address: Endpoint, login: Login, timeout: float = TIMEOUT) -> socket.socket:
    """Connect. Raises ``OSError``, as does any later wait of more than ``timeout`` seconds."""
    if address.path is not None:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(timeout)
        sock.connect(address.path)
    else:
        sock = socket.create_connection((address.host, address.port), timeout)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if login.tls is not None:
            sock = login.tls.wrap_socket(sock, server_hostname=address.host)
    sock.settimeout(timeout)
    return sock


def new_reader() -> Any:
    """Return a parser of the replies on one socket."""
    return hiredis.Reader(notEnoughData=INCOMPLETE)


def read_reply(sock: socket.socket, reader: Any) -> Any:
    """Wait for the next reply. Raises ``OSError``, or the reply itself if it is an error."""
    while (reply := reader.gets()) is INCOMPLETE:
        data = sock.recv(65_536)
        if not data:
            raise ConnectionError("the server has closed the connection")
        reader.feed(data)
    if isinstance(reply, ReplyError):
        raise reply
    return reply
