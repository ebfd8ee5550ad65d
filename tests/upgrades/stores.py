"""Restore the stores that ``write_fixture`` wrote, on the servers of the tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import apsw
import psycopg
import redis

from tests.conftest import postgres, valkey

HERE = Path(__file__).parent
VERSIONS = sorted(folder.name for folder in HERE.iterdir() if (folder / "jobs.json").is_file())
STORES = ("sqlite", "redis", "postgres")
DATABASE = "upgrades"


def jobs_of(version: str, store: str) -> Any:
    """Return the ids in the store of a release, with the results that the jobs must have in the end."""
    return json.loads((HERE / version / "jobs.json").read_text())[store]


def empty(store: str, folder: Path) -> str:
    """Return the address of a store that has never been opened."""
    if store == "sqlite":
        return f"sqlite:///{folder}/headway.db"
    if store == "postgres":
        # A database of its own: what another release leaves in the shared one, no other test could open.
        with psycopg.connect(postgres().url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
            connection.execute(f"CREATE DATABASE {DATABASE}")
        return f"{postgres().url.rpartition('/')[0]}/{DATABASE}"
    with redis.Redis.from_url(valkey().url) as client:
        if keys := client.keys("{headway:default}:*"):
            client.delete(*keys)
    return valkey().url


def load(version: str, store: str, folder: Path) -> str:
    """Restore the store of a release. Return its address."""
    url = empty(store, folder)
    if store == "sqlite":
        connection = apsw.Connection(str(folder / "headway.db"))
        connection.execute((HERE / version / "sqlite.sql").read_text())
        connection.close()
        (folder / "headway.db").chmod(0o600)
    elif store == "postgres":
        with psycopg.connect(url, autocommit=True) as database:
            database.execute("SET check_function_bodies = off")  # The dump makes functions before tables.
            database.execute((HERE / version / "postgres.sql").read_bytes())
    else:
        with redis.Redis.from_url(url) as client:
            for line in (HERE / version / "redis.jsonl").read_text().splitlines():
                client.execute_command(*(word.encode("latin-1") for word in json.loads(line)))
    return url
