"""Write the stores of this release, with jobs in flight, into tests/upgrades/VERSION.

    python -m tests.upgrades.write_fixture

Run this once for each release, before its tag. Later releases must open what it wrote and finish every job. Never write
a fixture again once its release is out. The clock of the stores is in the past, so leases have expired and delayed jobs
are due whenever a test opens them.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import apsw
import apsw.shell

from headway.client.client import Client
from headway.stores.base import JobQuery, Store
from headway.stores.open import open_store
from headway.testing.clock import ManualClock
from headway.testing.runner import DrainingRunner
from headway.version import __version__
from tests.conformance.builders import claim, register
from tests.servers import Postgres, Valkey, _postgres_bin
from tests.upgrades import shop

WRITTEN_AT = 1_735_689_600_000  # The first moment of 2025.
HERE = Path(__file__).parent


async def write(url: str) -> dict[str, Any]:
    """Fill a store with jobs in every state. Return the result that each unfinished job must have in the end."""
    app, clock = shop.app, ManualClock(WRITTEN_AT)
    before, app.client = app.client, Client(lambda: open_store(url, clock=clock))
    store = await app.client.store()
    try:
        done = await shop.add.aenqueue(2, 3)
        dead = await shop.refuse.aenqueue("no stock")
        await _drain(store)
        clock.advance(60)
        expected: dict[str, Any] = {}

        async def keep(job: Any, result: Any) -> None:
            expected[(await job).id] = result

        await keep(shop.add.aenqueue(1, 1), 2)
        await keep(shop.double.aenqueue(21), 42)
        await keep(shop.add.using(delay=300, idempotency_key="order-7").aenqueue(7, 0), 7)
        for account in ("acme", "acme", "beta"):
            await keep(shop.charge.aenqueue(account, 100), f"{account} paid 100")
        chain = await shop.add.call(10, 11).then(shop.double).aenqueue()
        expected[chain.id] = 42
        async with app.batch("march") as batch:
            await batch.aadd(shop.add.call(number, 0) for number in (1, 2, 3))
            summed = await batch.athen(shop.total, "march")
        expected[summed.id] = "march: 6"
        await keep(shop.pack.using(priority="high").aenqueue(1), ["order 1", "attempt 2"])
        await keep(shop.pack.using(priority="high").aenqueue(2), ["order 2", "attempt 2"])
        offers = tuple(f"task:{name}" for name in app.tasks)
        await register(store, "web-1:4711:a1b2c3", slots=2, reserved=0, offers=offers)
        leases = await claim(store, "web-1:4711:a1b2c3", free=2, offers=offers)
        if (tasks := [lease.task for lease in leases]) != ["shop.pack", "shop.pack"]:
            raise SystemExit(f"shop.pack should be in flight twice, but these are: {tasks}")
        return {
            "completed": {done.id: 5},
            "dead_letter": [dead.id],
            "executing": [lease.job_id for lease in leases],
            "expected": expected,
            "jobs": len(await store.find(JobQuery(limit=100))),
        }
    finally:
        await app.client.close()
        app.client = before


async def _drain(store: Store) -> None:
    runner = DrainingRunner(shop.app, store, slots=1, attempts_max=10, raise_errors=False, move_on=lambda _: False)
    await runner.run_out()


# ---------------------------------------------------------------------- as text


def dump_sqlite(path: Path) -> str:
    """Return the statements that restore the file."""
    connection = apsw.Connection(str(path))
    lines: list[str] = []
    stdout: Any = _Lines(lines)
    shell: Any = apsw.shell.Shell(db=connection, stdout=stdout)
    shell.process_command(".dump")
    pragmas = [f"PRAGMA {name} = {connection.pragma(name)};\n" for name in ("application_id", "user_version")]
    connection.close()
    text = re.sub(r"^--.*\n", "", "".join(lines), flags=re.MULTILINE)  # Comments name this machine.
    return _without_paths("".join([text, *pragmas]))


class _Lines:
    """A stream that keeps the lines written to it."""

    def __init__(self, lines: list[str]) -> None:
        self.write = lines.append

    def flush(self) -> None: ...


def dump_postgres(server: Postgres) -> str:
    """Return the statements that restore the schema, without settings of the server."""
    command = [str(_postgres_bin("pg_dump")), "--schema=headway", "--inserts", "--no-owner", "--no-acl", server.url]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    dropped = re.compile(r"^(SET |SELECT pg_catalog\.set_config|\\|--).*\n", re.MULTILINE)
    return _without_paths(re.sub(r"\n{2,}", "\n", dropped.sub("", text)))


def dump_redis(server: Valkey) -> str:
    """Return the commands that restore all keys, one a line, as JSON. Bytes are written as Latin-1."""
    import redis

    client: Any = redis.Redis.from_url(server.url)
    lines = []
    for key in sorted(client.keys("*")):
        kind = client.type(key).decode()
        words: list[list[Any]]
        if kind == "hash":
            words = [["HSET", key, *(part for pair in sorted(client.hgetall(key).items()) for part in pair)]]
        elif kind == "zset":
            words = [["ZADD", key, *(part for name, score in client.zrange(key, 0, -1, withscores=True)
                                     for part in (repr(score).removesuffix(".0").encode(), name))]]  # fmt: skip
        elif kind == "list":
            words = [["RPUSH", key, *client.lrange(key, 0, -1)]]
        elif kind == "set":
            words = [["SADD", key, *sorted(client.smembers(key))]]
        elif kind == "stream":
            words = [["XADD", key, number, *(part for pair in entry.items() for part in pair)]
                     for number, entry in client.xrange(key)]  # fmt: skip
        else:
            words = [["SET", key, client.get(key)]]
        lines += [[word if isinstance(word, str) else word.decode("latin-1") for word in line] for line in words]
    client.close()
    return _without_paths("".join(f"{json.dumps(line)}\n" for line in lines))


def _without_paths(text: str) -> str:
    """Replace the path of this checkout in tracebacks by one of the same length, because records count their bytes."""
    here = str(HERE.parents[1])
    return text.replace(here, f"/srv/{'shop'.rjust(len(here) - 5, '_')}")


def main() -> None:
    folder = HERE / __version__
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch)
        found = {"sqlite": asyncio.run(write(f"sqlite:///{path}/headway.db"))}
        (folder / "sqlite.sql").write_text(dump_sqlite(path / "headway.db"))
        postgres, valkey = Postgres(path / "postgres"), Valkey(path / "valkey")
        for server in (postgres, valkey):
            server.start()
        try:
            found["postgres"] = asyncio.run(write(postgres.url))
            (folder / "postgres.sql").write_text(dump_postgres(postgres))
            found["redis"] = asyncio.run(write(valkey.url))
            (folder / "redis.jsonl").write_text(dump_redis(valkey))
        finally:
            postgres.stop()
            valkey.stop()
    (folder / "jobs.json").write_text(json.dumps(found, indent=1) + "\n")
    print(f"Wrote {folder}: {', '.join(sorted(file.name for file in folder.iterdir()))}", file=sys.stderr)


if __name__ == "__main__":
    main()
