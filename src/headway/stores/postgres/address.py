"""Reads the address of a PostgreSQL store, and makes the store."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlsplit, urlunsplit

from headway.core.errors import ConfigError
from headway.stores.base import TIMEOUT, Clock
from headway.stores.open import mask, read_timeout
from headway.stores.postgres.store import PostgresStore
from headway.stores.transport import Transport, transport_to

OPTIONS = ("schema", "pool", "pgbouncer", "listen", "timeout")
# What libpq understands and asyncpg reads from an address by itself.
PASSED_ON = (
    "sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl", "sslpassword", "sslnegotiation",
    "ssl_min_protocol_version", "ssl_max_protocol_version", "host", "port", "user", "password", "passfile", "dbname",
    "target_session_attrs", "krbsrvname", "gsslib", "service", "servicefile",
)  # fmt: skip
_SCHEMA = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}")  # No $: two of them would end the body of a function.


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """An address taken apart. ``listen`` is where to listen for wake-ups, None where that is not possible."""

    url: str
    shown: str
    schema: str = "headway"
    pool: int = 4
    pgbouncer: bool = False
    listen: str | None = None
    transport: Transport = Transport.LOCAL
    timeout: float = TIMEOUT


def make_store(url: str, namespace: str, clock: Clock | None, timeout: float = TIMEOUT) -> PostgresStore:
    """Make the store that an address names. Raises ``ConfigError`` for an invalid address."""
    address = read_address(url, timeout)
    return PostgresStore(address, namespace, clock=clock)


def read_address(url: str, timeout: float = TIMEOUT) -> PostgresAddress:
    """Parse an address."""
    parts = urlsplit(url)
    shown = mask(url)
    for host in parts.netloc.rpartition("@")[2].split(","):
        _, colon, port = host.rpartition(":")
        if colon and port and not port.isdecimal() and not host.endswith("]"):  # It may be a password.
            raise ConfigError("store address: what follows the host's colon is a port, so a number")
    given: dict[str, str] = {}
    passed: list[tuple[str, str]] = []
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in OPTIONS:
            given[name] = value
        elif name in PASSED_ON:
            passed.append((name, value))
        else:
            known = ", ".join(OPTIONS)
            raise ConfigError(
                f"store address {shown!r}: unknown option {name!r}; known are {known}, and sslmode and the like",
                url=shown,
            )
    schema = given.get("schema", "headway")
    if not _SCHEMA.fullmatch(schema):
        raise ConfigError(
            f"store address {shown!r}: schema is a name of letters, digits and underscores, not {schema!r}", url=shown
        )
    pool = given.get("pool", "4")
    if not pool.isdecimal() or not 1 <= int(pool) <= 1_000:
        raise ConfigError(f"store address {shown!r}: pool is a number from 1 on, not {pool!r}", url=shown)
    pgbouncer = given.get("pgbouncer", "0")
    if pgbouncer not in ("0", "1"):
        raise ConfigError(f"store address {shown!r}: pgbouncer is 0 or 1, not {pgbouncer!r}", url=shown)
    listen = given.get("listen")
    if listen is not None and urlsplit(listen).scheme not in ("postgresql", "postgres"):
        raise ConfigError(f"store address {shown!r}: listen is an address that begins with postgresql://", url=shown)
    query = "&".join(f"{name}={quote(value, safe='/')}" for name, value in passed)
    plain = urlunsplit((parts.scheme, parts.netloc, parts.path, query, ""))
    direct = listen or (None if pgbouncer == "1" else plain)
    own = read_timeout(given["timeout"]) if "timeout" in given else timeout
    return PostgresAddress(plain, shown, schema, int(pool), pgbouncer == "1", direct, transport_of(url), own)


def transport_of(url: str) -> Transport:
    """Return how the connection is protected. The driver's default ``prefer`` uses plain text if there is no TLS."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    named = [re.sub(r":\d*$", "", host) for host in parts.netloc.rpartition("@")[2].split(",")]
    hosts = options["host"].split(",") if "host" in options else named
    mode = options.get("sslmode", "prefer")
    encrypted = mode in ("require", "verify-ca", "verify-full")
    return transport_to(map(unquote, hosts), encrypted=encrypted, verified=mode in ("verify-ca", "verify-full"))
