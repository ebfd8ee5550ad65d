"""The one module that knows every store."""

from __future__ import annotations

import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

from headway.core.errors import ConfigError
from headway.stores.base import Clock, Store

_SCHEMES = ("sqlite", "memory", "redis", "rediss", "valkey", "postgresql")


def host_ms() -> int:
    """Read the host's clock: milliseconds since 1970 UTC."""
    return time.time_ns() // 1_000_000


def open_store(url: str, namespace: str = "default", *, clock: Clock = host_ms) -> Store:
    """Make the store an address names. It is not opened yet: ``await store.open()`` does that.

    Raises ``ConfigError`` for an address that cannot be read.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise ConfigError(f"store address {mask(url)!r} has no scheme; write sqlite:///path/to/file.db", url=mask(url))
    match scheme:
        case "sqlite":
            from headway.stores.sqlite.store import SqliteStore

            path, _, query = rest.partition("?")
            return SqliteStore(_sqlite_path(url, unquote(path)), namespace, clock=clock, **_sqlite_options(url, query))
        case "memory":
            from headway.stores.memory import MemoryStore

            return MemoryStore(namespace, clock=clock)
        case "redis" | "rediss" | "valkey" | "postgresql" | "postgres":
            raise ConfigError(f"the {scheme} store is not in this release; use sqlite:// or memory://", url=mask(url))
        case _:
            raise ConfigError(f"unknown store {scheme!r}; known are {', '.join(_SCHEMES)}", url=mask(url))


def mask(url: str) -> str:
    """Show an address without its password."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    return url.replace(f":{parts.password}@", ":***@", 1)


def _sqlite_path(url: str, path: str) -> Path:
    # As everywhere else, three slashes are relative to the current directory and four absolute.
    path = path.removeprefix("/")
    if not path:
        raise ConfigError(f"store address {url!r} names no file; write sqlite:///headway.db", url=url)
    return Path(path)


def _sqlite_options(url: str, query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for part in filter(None, query.split("&")):
        name, _, value = part.partition("=")
        if name != "synchronous":
            raise ConfigError(f"store address {url!r}: unknown option {name!r}; known is synchronous", url=url)
        options[name] = value
    level = options.get("synchronous", "full").upper()
    if level not in {"FULL", "NORMAL", "EXTRA"}:
        raise ConfigError(f"store address {url!r}: synchronous is full, normal or extra, not {level!r}", url=url)
    return {"synchronous": level}
