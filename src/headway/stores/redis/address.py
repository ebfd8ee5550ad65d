"""The address of a server, of Sentinels or of a cluster."""

from __future__ import annotations

import ssl
from binascii import crc_hqx
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

from headway.core.errors import ConfigError
from headway.stores.base import TIMEOUT, Clock
from headway.stores.open import read_timeout
from headway.stores.redis.client import Cluster, Discovery, SingleServer
from headway.stores.redis.connection import Endpoint, Login
from headway.stores.redis.sentinel import Sentinel
from headway.stores.redis.store import RedisStore
from headway.stores.transport import Transport, transport_to

SLOTS = 16_384  # Hash slots of every cluster.
REPLICAS_MS_MAX = 4_000  # Milliseconds. Less than the 5 s after which a silent server is left.
_OPTIONS = {
    "prefix": "headway", "replicas": "0", "replicas_ms": "1000", "db": "0", "timeout": "", "ca": "", "insecure": "0",
    "sentinel_username": "", "sentinel_password": "",
}  # fmt: skip


class RedisAddress(NamedTuple):
    """Where a server or its Sentinels are, and the credentials."""

    addresses: Sequence[Endpoint]
    login: Login
    master: str | None = None  # The name of the server at its Sentinels. Then the addresses are theirs.
    watch: Login = Login()  # The credentials for the Sentinels.
    cluster: bool = False
    shown: str = ""
    options: Mapping[str, str] = MappingProxyType(_OPTIONS)


def make_store(url: str, namespace: str, clock: Clock | None, timeout: float = TIMEOUT) -> RedisStore:
    """Build the store at an address. Raises ``ConfigError``."""
    place = read_redis_address(url)
    prefix = _prefix(place.options["prefix"])
    discovery: Discovery
    if place.master is not None:
        discovery = Sentinel(place.addresses, place.master, place.watch)
    elif place.cluster:
        slot = crc_hqx(f"{prefix}:{namespace}".encode(), 0) % SLOTS  # As servers compute it from the hash tag of a key.
        discovery = Cluster(place.addresses, slot, place.login)
    else:
        discovery = SingleServer(place.addresses[0])
    return RedisStore(
        discovery,
        place.login,
        namespace,
        shown=place.shown,
        transport=_transport(place),
        prefix=prefix,
        clock=clock,
        replicas=_number(place.options["replicas"], "replicas"),
        replicas_ms=_replicas_ms(place.options["replicas_ms"]),
        timeout=read_timeout(place.options["timeout"]) if place.options["timeout"] else timeout,
    )


def _transport(place: RedisAddress) -> Transport:
    hosts = [address.path or address.host for address in place.addresses]
    return transport_to(hosts, encrypted=place.login.tls is not None, verified=place.options["insecure"] != "1")


def read_redis_address(url: str) -> RedisAddress:
    """Read an address.

    ``redis://user:password@host:port/db``, ``rediss://`` for TLS, ``valkey://`` for either, ``unix:///path/to/socket``,
    ``redis+sentinel://host,host/master``, ``redis+cluster://host,host``. Raises ``ConfigError``.
    """
    scheme, _, rest = url.partition("://")
    rest, _, query = rest.partition("?")
    if "@" in query:
        raise ConfigError("store address: in a password write ? as %3F and @ as %40")
    options = _read_options(query)
    credentials, _, place = rest.rpartition("@")
    name, _, password = credentials.partition(":")
    database = _number(options["db"], "db")
    tls = _tls(options) if scheme.startswith(("rediss", "valkeys")) else None
    login = Login(unquote(name) or None, unquote(password) or None, database, tls)
    if scheme == "unix":
        return RedisAddress([Endpoint(path=unquote(place))], login, shown=f"unix://{place}", options=options)
    hosts, _, path = place.partition("/")
    path = unquote(path)
    shown = f"{scheme}://{place}"
    if scheme.endswith("+sentinel"):
        if not path:
            raise ConfigError("store address: name the master behind the Sentinels: redis+sentinel://host,host/master")
        watch = Login(options["sentinel_username"] or None, options["sentinel_password"] or None, 0, tls)
        return RedisAddress(_addresses(hosts, 26379), login, path, watch, shown=shown, options=options)
    if scheme.endswith("+cluster"):
        if database or path.strip("/") not in ("", "0"):
            raise ConfigError(f"store address: a cluster has only database 0, got {path or database}")
        return RedisAddress(_addresses(hosts, 6379), login, cluster=True, shown=shown, options=options)
    addresses = _addresses(hosts, 6379)
    if len(addresses) > 1:
        raise ConfigError(
            "store address: for several hosts write redis+sentinel://host,host/master or redis+cluster://host,host"
        )
    if path:
        login = login._replace(database=_number(path, "the database"))
    return RedisAddress(addresses, login, shown=shown, options=options)


def _read_options(query: str) -> dict[str, str]:
    options = dict(_OPTIONS)
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in options:
            raise ConfigError(f"store address: unknown option {name!r}; known are {', '.join(sorted(_OPTIONS))}")
        options[name] = value
    return options


def _addresses(hosts: str, port: int) -> Sequence[Endpoint]:
    found = []
    for host in hosts.split(","):
        name, colon, number = host.rpartition(":")
        if not colon or host.endswith("]"):
            name, number = host, str(port)
        if not number.isdecimal():  # Not shown, since it may be a password without a host.
            raise ConfigError("store address: the port after the host's colon must be a number")
        found.append(Endpoint(name.strip("[]") or "localhost", int(number)))
    return found


def _number(text: str, what: str) -> int:
    if not text.isdecimal():
        raise ConfigError(f"store address: {what} must be a number, got {text!r}")
    return int(text)


def _replicas_ms(text: str) -> int:
    value = _number(text, "replicas_ms")
    if not 0 < value <= REPLICAS_MS_MAX:
        raise ConfigError(f"store address: replicas_ms must be from 1 to {REPLICAS_MS_MAX}, got {value}")
    return value


def _prefix(text: str) -> str:
    if not text or set(text) & set("{} "):
        raise ConfigError(
            "store address: prefix must have no braces or spaces, since it is in the hash tag of every key"
        )
    return text


def _tls(options: dict[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options["ca"] or None)
    except (OSError, ssl.SSLError) as problem:
        raise ConfigError(f"store address: cannot read the certificates in {options['ca']!r}: {problem}") from problem
    if options["insecure"] == "1":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
