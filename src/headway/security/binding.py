"""Check the address on which a server listens: other machines' networks require tokens."""

from __future__ import annotations

import ipaddress
import socket

from headway.core.errors import ConfigError

LOOPBACK_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost"})


def check_bind(host: str | socket.socket, has_tokens: bool) -> None:
    """Raise ``ConfigError`` for an address that other machines can reach while no token exists.

    ``host`` is an address, a name, ``unix:PATH`` or a socket that is bound already.
    """
    if has_tokens or reaches_only_here(host):
        return
    shown = host if isinstance(host, str) else str(host.getsockname())
    raise ConfigError(
        f"the server would listen at {shown or 'all addresses'!r}, where other machines can reach it, but no token "
        "exists; make one with `headway token create --scope admin`, or listen at 127.0.0.1",
        setting="host",
    )


def reaches_only_here(host: str | socket.socket) -> bool:
    """Return whether only this machine can reach an address.

    Names other than localhost are not looked up, since the answer may change tomorrow.
    """
    if not isinstance(host, str):
        if host.family == getattr(socket, "AF_UNIX", None):
            return True
        host = str(host.getsockname()[0])
    name = host.strip().lower()
    if name.startswith("unix:") or name in LOOPBACK_NAMES:
        return True
    try:
        address = ipaddress.ip_address(name.removeprefix("[").removesuffix("]").partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_loopback
