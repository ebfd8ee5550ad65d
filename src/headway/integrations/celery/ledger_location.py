"""Find the ledger's server: the broker's own, as in Celery's settings, or another that the caller names."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from celery import Celery  # type: ignore[import-untyped]

from headway.core.errors import ConfigError
from headway.stores.redis.address import RedisAddress, read_redis_address
from headway.stores.redis.connection import Endpoint, Login

SENTINEL_PORT = 26379
_VERIFIED = ("required", "CERT_REQUIRED", ssl.CERT_REQUIRED)


class LedgerLocation(NamedTuple):
    """The address of the ledger, whether the broker's queues are on the same server, and the prefix of all keys."""

    place: RedisAddress
    with_broker: bool
    key_prefix: str = ""


def find_ledger(app: Celery, store: str | None = None) -> LedgerLocation:
    """Find the ledger's server. Raises ``ConfigError`` if the broker is no Redis and no other server is named.

    ``store`` is an address in Headway's notation. Without it, Celery's ``broker_url``, ``broker_use_ssl`` and
    ``broker_transport_options`` name the server, with passwords, TLS, sockets and Sentinels.
    """
    options: Mapping[str, Any] = app.conf.broker_transport_options or {}
    key_prefix = str(options.get("global_keyprefix", ""))
    broker = _read_broker(app, options)
    if store is None:
        if broker is None:
            scheme = str(app.conf.broker_url or "amqp").partition(":")[0]
            raise ConfigError(f"the broker is {scheme}://, so name a Redis server for the ledger: store='redis://host'")
        return LedgerLocation(broker, True, key_prefix)
    place = read_redis_address(store)
    if place.cluster:
        raise ConfigError("the ledger needs one server, or Sentinels, not a cluster")
    same = broker is not None and _server_identity(place) == _server_identity(broker)
    return LedgerLocation(place, same, key_prefix if same else "")


def _read_broker(app: Celery, options: Mapping[str, Any]) -> RedisAddress | None:
    url = app.conf.broker_write_url or app.conf.broker_url
    if isinstance(url, (list, tuple)):
        url = url[0] if url else None
    if not url:
        return None
    first = url.split(";")[0]
    parts = urlsplit(first)
    query = dict(parse_qsl(parts.query))
    tls = _tls(app.conf.broker_use_ssl, query, demanded=parts.scheme in ("rediss", "valkeys"))
    login = Login(unquote(parts.username or "") or None, unquote(parts.password or "") or None, 0, tls)
    if parts.scheme in ("redis+socket", "valkey+socket"):
        login = login._replace(database=_database(query.get("virtual_host", "0")))
        return RedisAddress([Endpoint(path=unquote(parts.path))], login, shown=f"unix://{parts.path}")
    if parts.scheme in ("redis", "rediss", "valkey", "valkeys"):
        address = Endpoint(parts.hostname or "localhost", parts.port or 6379)
        login = login._replace(database=_database(parts.path))
        return RedisAddress([address], login, shown=f"{parts.scheme}://{address}")
    if parts.scheme == "sentinel":
        return _read_sentinels(url, login, options)
    return None


def _read_sentinels(url: str, login: Login, options: Mapping[str, Any]) -> RedisAddress:
    master = options.get("master_name")
    if not master:
        raise ConfigError("a sentinel:// broker needs its master's name: broker_transport_options['master_name']")
    sentinels = [urlsplit(part if "://" in part else f"sentinel://{part}") for part in url.split(";") if part]
    addresses = [Endpoint(part.hostname or "localhost", part.port or SENTINEL_PORT) for part in sentinels]
    path = next((part.path for part in reversed(sentinels) if part.path.strip("/")), "")
    watch = options.get("sentinel_kwargs") or {}
    return RedisAddress(
        addresses,
        login._replace(database=_database(path)),
        str(master),
        Login(watch.get("username"), watch.get("password"), 0, login.tls if watch.get("ssl") else None),
        shown=f"sentinel://{','.join(map(str, addresses))}/{master}",
    )


def _tls(use_ssl: object, query: Mapping[str, str], *, demanded: bool) -> ssl.SSLContext | None:
    """Build the TLS settings that ``broker_use_ssl`` or the address asks for."""
    if not use_ssl and not demanded:
        return None
    given: dict[str, Any] = {**query, **(use_ssl if isinstance(use_ssl, Mapping) else {})}
    try:
        context = ssl.create_default_context(cafile=given.get("ssl_ca_certs"))
        if given.get("ssl_certfile"):
            context.load_cert_chain(given["ssl_certfile"], given.get("ssl_keyfile"))
    except (OSError, ssl.SSLError) as problem:
        raise ConfigError(f"broker_use_ssl: the certificates cannot be read: {problem}") from problem
    if not given.get("ssl_check_hostname", True) or given.get("ssl_cert_reqs", "required") not in _VERIFIED:
        context.check_hostname = False
    if given.get("ssl_cert_reqs", "required") not in _VERIFIED:
        context.verify_mode = ssl.CERT_NONE
    return context


def _database(path: str) -> int:
    text = path.strip("/") or "0"
    if not text.isdecimal():
        raise ConfigError(f"broker_url: the database is a number, not {text!r}")
    return int(text)


def _server_identity(place: RedisAddress) -> tuple[object, ...]:
    return frozenset(place.addresses), place.master, place.login.database
