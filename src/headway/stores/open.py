"""The one module that knows every store."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from headway.core.errors import ConfigError
from headway.core.job import PAYLOAD_VERSION
from headway.stores.base import TIMEOUT, Archive, Clock, Store

TIMEOUT_MAX = 3_600
_REDIS = ("redis", "rediss", "valkey", "valkeys", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster",
          "rediss+cluster")  # fmt: skip
_SCHEMES = ("sqlite", "memory", "redis", "rediss", "valkey", "unix", "redis+sentinel", "redis+cluster", "postgresql")


def host_ms() -> int:
    """Read the host's clock: milliseconds since 1970 UTC."""
    return time.time_ns() // 1_000_000


def open_store(
    url: str,
    namespace: str = "default",
    *,
    transient: str | None = None,
    clock: Clock | None = None,
    timeout: float | None = None,
) -> Store:
    """Make the store an address names. It is not opened yet: ``await store.open()`` does that.

    ``transient`` names another one for transient jobs; what is given then is both as one.
    Without a ``clock`` the store goes by its own: its server's, or this host's where there is none.
    ``timeout``: seconds that a submit may take, unless the address says otherwise.
    Raises ``ConfigError`` for an address that cannot be read, or whose driver is not installed.
    """
    timeout = TIMEOUT if timeout is None else timeout
    store = _make(url, namespace, clock, timeout)
    return store if transient == url else with_transient(store, transient, clock=clock, timeout=timeout)


def with_transient(store: Store, url: str | None, *, clock: Clock | None = None, timeout: float = TIMEOUT) -> Store:
    """Return a store that keeps transient jobs at the other address, if there is one."""
    if url is None:
        return store
    from headway.stores.split.store import SplitStore

    return SplitStore(store, lambda: _make(url, store.namespace, clock, timeout))


def open_archive(url: str, namespace: str) -> Archive:
    """Make the archive at an address; it connects when first used. Raises ``ConfigError`` without its driver."""
    if find_spec("asyncpg") is None:
        raise ConfigError("history needs the driver asyncpg; install it with: pip install 'headway-queue[postgres]'")
    from headway.stores.postgres.archive.archive import PostgresArchive

    return PostgresArchive(url, namespace, mark=PAYLOAD_VERSION)


MakeStore = Callable[[str, str, Clock | None], Store]

_registered: dict[str, MakeStore] = {}


def register_scheme(scheme: str, make: MakeStore) -> None:
    """Register a kind of store for addresses that begin with ``scheme://``, in this process.

    ``make`` gets the address, the namespace and a clock (None: the store's own), and returns an unopened store.
    """
    if scheme in _SCHEMES:
        raise ConfigError(f"addresses with {scheme}:// already name a store of Headway's own")
    _registered[scheme] = make


def _make(url: str, namespace: str, clock: Clock | None, timeout: float) -> Store:
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise ConfigError(f"store address {mask(url)!r} has no scheme; write sqlite:///path/to/file.db", url=mask(url))
    match scheme:
        case "sqlite":
            from headway.stores.sqlite import store as sqlite

            path, _, query = rest.partition("?")
            file = _sqlite_path(url, unquote(path))
            synchronous, own = _sqlite_options(url, query)
            return sqlite.make_store(
                file, namespace, clock=clock or host_ms, synchronous=synchronous, timeout=own or timeout
            )
        case "memory":
            from headway.stores.memory import MemoryStore

            return MemoryStore(namespace, clock=clock or host_ms)
        case "postgresql" | "postgres":
            _need("asyncpg", "postgres", scheme)
            from headway.stores.postgres import address as postgres

            return postgres.make_store(url, namespace, clock, timeout)
        case _ if scheme in _registered:
            return _registered[scheme](url, namespace, clock)
        case _ if scheme in _REDIS:
            _need("hiredis", "redis", scheme)
            from headway.stores.redis import address as redis

            return redis.make_store(url, namespace, clock, timeout)
        case _:
            raise ConfigError(f"unknown store {scheme!r}; known are {', '.join(_SCHEMES)}", url=mask(url))


def _need(module: str, extra: str, scheme: str) -> None:
    if find_spec(module) is None:
        raise ConfigError(
            f"{scheme}:// needs the driver {module}; install it with: pip install 'headway-queue[{extra}]'"
        )


def mask(url: str) -> str:
    """Return an address without its passwords, however wrongly they are written.

    What follows the colon of a host is a port. If it is not a number, the host was forgotten and it is a password.
    """
    shown = re.sub(r"(password=)[^&]*", r"\1***", re.sub(r"(://[^:/@?]*):[^?]*@", r"\1:***@", url, count=1))
    scheme, separator, rest = shown.partition("://")
    authority = re.match(r"[^/?#]*", rest)[0]  # type: ignore[index]
    user, at, hosts = authority.rpartition("@")
    return f"{scheme}{separator}{user}{at}{','.join(map(_mask_port, hosts.split(',')))}{rest[len(authority) :]}"


def _mask_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return f"{name}:***" if colon and port and not port.isdecimal() and not host.endswith("]") else host


def _sqlite_path(url: str, path: str) -> Path:
    # As everywhere else, three slashes are relative to the current directory and four absolute.
    path = path.removeprefix("/")
    if not path:
        raise ConfigError(f"store address {url!r} names no file; write sqlite:///headway.db", url=url)
    return Path(path)


def _sqlite_options(url: str, query: str) -> tuple[str, float | None]:
    """Read how durable commits are, and the time limit of a submit."""
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options.keys() - {"synchronous", "timeout"}:
        raise ConfigError(f"store address {url!r}: unknown option {name!r}; known are synchronous and timeout", url=url)
    level = options.get("synchronous", "full").upper()
    if level not in {"FULL", "NORMAL", "EXTRA"}:
        raise ConfigError(f"store address {url!r}: synchronous is full, normal or extra, not {level!r}", url=url)
    return level, read_timeout(options["timeout"]) if "timeout" in options else None


def read_timeout(text: str) -> float:
    """Read the seconds that an address gives as ``timeout``. Raises ``ConfigError``."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= TIMEOUT_MAX:
        raise ConfigError(f"store address: timeout is a number of seconds, at most {TIMEOUT_MAX}, not {text!r}")
    return seconds
