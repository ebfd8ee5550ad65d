"""Builds the address of the store from an entry of ``DATABASES``."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from headway.integrations.django.conf import database, read_options
from headway.integrations.django.sqlite import ThreadConnection, sqlite_address
from headway.stores.base import Store
from headway.stores.shared_database import postgres_store

WORKS = (
    "Under Django, jobs are kept in SQLite, or in PostgreSQL 13 or newer with psycopg 3 (pip install "
    "'headway-queue[django,postgres]' 'psycopg[binary]'). If the rest of your project is on another database, give the "
    "jobs one of their own and name it in IOQUEUE_DATABASE."
)
SQLITE_HINT = "Jobs in SQLite are in the project's own file, through Django's own connection: leave out IOQUEUE_STORE."
# Options that both psycopg and asyncpg understand.
_PASSED_ON = ("sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl", "passfile", "service", "target_session_attrs")


def store_address() -> str:
    """Return the address of the store. Raises ``ImproperlyConfigured`` if the database cannot hold one."""
    options, _ = read_options()
    connection = connections[database()]
    if connection.vendor == "sqlite":
        if options.store is not None:
            raise ImproperlyConfigured(f"IOQUEUE_STORE is set, and {database()!r} is sqlite. {SQLITE_HINT}")
        return sqlite_address(database())
    if options.store is not None:
        return options.store
    if connection.vendor != "postgresql":
        raise ImproperlyConfigured(f"the database {database()!r} is {connection.vendor}. {WORKS}")
    return address_of(connection.settings_dict)


def borrowing_store(alias: str, namespace: str) -> Store:
    """Return a PostgreSQL store that uses Django's connection of the calling thread."""
    return postgres_store(store_address(), ThreadConnection(alias).connection, namespace)


def address_of(entry: dict[str, Any]) -> str:
    """Return the address of a database in ``DATABASES``."""
    given = entry.get("OPTIONS") or {}
    query = {name: str(given[name]) for name in _PASSED_ON if given.get(name)}
    host, port = str(entry.get("HOST") or ""), str(entry.get("PORT") or "")
    user = quote(str(entry.get("USER") or ""), safe="")
    password = quote(str(entry.get("PASSWORD") or ""), safe="")
    place = ""
    if host.startswith("/") or "," in host:  # The folder of a socket, or several hosts.
        query |= {"host": host} | ({"port": port} if port else {})
    elif host:
        place = (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")
    elif port:
        query["port"] = port
    who = f"{user}:{password}@" if password else f"{user}@" if user else ""
    if who and not place:  # An address can name a user only before a host.
        query |= {"user": str(entry["USER"])} | ({"password": str(entry["PASSWORD"])} if password else {})
        who = ""
    query_text = "&".join(f"{name}={quote(value, safe='/,')}" for name, value in query.items())
    name = quote(str(entry.get("NAME") or ""), safe="")
    return f"postgresql://{who}{place}/{name}" + (f"?{query_text}" if query_text else "")
