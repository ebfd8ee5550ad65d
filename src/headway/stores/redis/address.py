"""Reads the address of a server, of Sentinels or of a cluster."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from urllib.parse import parse_qsl, unquote

from headway.core.errors import ConfigError
from headway.stores.base import Clock
from headway.stores.redis.connection import Address, Login
from headway.stores.redis.link import Cluster, Fixed, Guide, Sentinel
from headway.stores.redis.store import RedisStore

_OPTIONS = {
    "prefix": "headway",
    "replicas": "0",
    "replicas_ms": "1000",
    "db": "0",
    "ca": "",
    "insecure": "0",
    "sentinel_username": "",
    "sentinel_password": "",
}


def make_store(url: str, namespace: str, clock: Clock | None) -> RedisStore:
    """Make the store that an address names.

    ``redis://user:password@host:port/db``, ``rediss://`` for TLS, ``valkey://`` for either, ``unix:///path/to/socket``,
    ``redis+sentinel://host,host/master``, ``redis+cluster://host,host``. Raises ``ConfigError``.
    """
    scheme, _, rest = url.partition("://")
    rest, _, query = rest.partition("?")
    options = _read_options(query)
    credentials, _, place = rest.rpartition("@")
    name, _, password = credentials.partition(":")
    database = options["db"]
    tls = _tls(options) if scheme.startswith(("rediss", "valkeys")) else None
    guide: Guide
    if scheme == "unix":
        guide, shown = Fixed(Address(path=unquote(place))), f"unix://{place}"
    else:
        hosts, _, path = place.partition("/")
        path = unquote(path)
        if scheme.endswith("+sentinel"):
            if not path:
                raise ConfigError("a Sentinel's address ends with its master's name: redis+sentinel://host,host/master")
            login = Login(options["sentinel_username"] or None, options["sentinel_password"] or None, 0, tls)
            guide = Sentinel(_addresses(hosts, 26379), path, login)
        elif scheme.endswith("+cluster"):
            guide = Cluster(_addresses(hosts, 6379))
            if _number(database, "db") != 0 or path.strip("/") not in ("", "0"):
                raise ConfigError("a cluster has one database, 0")
        else:
            [address, *others] = _addresses(hosts, 6379)
            if others:
                raise ConfigError("several hosts: write redis+sentinel://host,host/master or redis+cluster://host,host")
            guide = Fixed(address)
            database = path or database
        shown = f"{scheme}://{place}"
    login = Login(unquote(name) or None, unquote(password) or None, _number(database, "the database"), tls)
    return RedisStore(
        guide,
        login,
        namespace,
        shown=shown,
        prefix=_prefix(options["prefix"]),
        clock=clock,
        replicas=_number(options["replicas"], "replicas"),
        replicas_ms=_number(options["replicas_ms"], "replicas_ms"),
    )


def _read_options(query: str) -> dict[str, str]:
    options = dict(_OPTIONS)
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in options:
            raise ConfigError(f"store address: unknown option {name!r}; known are {', '.join(sorted(_OPTIONS))}")
        options[name] = value
    return options


def _addresses(hosts: str, port: int) -> Sequence[Address]:
    found = []
    for host in hosts.split(","):
        name, colon, number = host.rpartition(":")
        if not colon or host.endswith("]"):
            name, number = host, str(port)
        found.append(Address(name.strip("[]") or "localhost", _number(number, "a port")))
    return found


def _number(text: str, what: str) -> int:
    if not text.isdecimal():
        raise ConfigError(f"store address: {what} is a number, not {text!r}")
    return int(text)


def _prefix(text: str) -> str:
    if not text or set(text) & set("{} "):
        raise ConfigError("store address: a prefix has no braces or spaces, since it is part of every key's hash tag")
    return text


def _tls(options: dict[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=options["ca"] or None)
    if options["insecure"] == "1":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
