"""The protection of the connection to a store's server, and a warning if other machines could read it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from enum import StrEnum
from ipaddress import ip_address

from headway.core.log_event import LogEvent

log = logging.getLogger("headway.stores")

_warned: set[str] = set()  # Addresses that this process has warned about. A set's add is atomic, so no lock guards it.


class Transport(StrEnum):
    """The protection of the connection to a server."""

    LOCAL = "this machine"
    VERIFIED = "TLS, with a certificate that is verified"
    UNVERIFIED = "TLS, with a certificate that is not verified"
    PLAIN = "plain text"

    @property
    def exposed(self) -> bool:
        """Return whether other machines on the network could read the connection."""
        return self in (Transport.PLAIN, Transport.UNVERIFIED)


def transport_to(hosts: Iterable[str], *, encrypted: bool, verified: bool) -> Transport:
    """Return what protects the connection to these hosts. A path is a socket of this machine."""
    if all(map(_is_local, hosts)):
        return Transport.LOCAL
    if not encrypted:
        return Transport.PLAIN
    return Transport.VERIFIED if verified else Transport.UNVERIFIED


def warn_once(transport: Transport, shown: str, hint: str) -> None:
    """Log a warning once in each process if other machines could read the connection to a store."""
    if transport.exposed and shown not in _warned:
        _warned.add(shown)
        log.warning(LogEvent("store.exposed", store=shown, transport=transport.value, hint=hint))


def _is_local(host: str) -> bool:
    if host in ("", "localhost") or host.startswith("/"):
        return True
    try:
        return ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return False
