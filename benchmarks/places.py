"""Places for jobs: a fresh store for each measurement, with counts of its work and CPU."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

from benchmarks.machine import cpu_seconds
from tests.servers import Postgres, Valkey


class RedisPlace:
    """A Valkey server of the benchmark's own, without persistence unless requested."""

    name = "redis"

    def __init__(self, folder: Path, *, aof: bool) -> None:
        kept = ("appendonly yes", "appendfsync everysec") if aof else ("appendonly no",)
        self.server = Valkey(folder / "valkey", 'save ""', *kept)
        self.server.start()
        self.version = f"Valkey {self._info('valkey_version')}{', AOF everysec' if aof else ', no persistence'}"

    def fresh(self, *, alone: bool = True) -> str:
        """Return the address. The store is cleared unless contenders share it: each uses names of its own."""
        if alone:
            self.server.ask("FLUSHALL", "SYNC")
        return f"{self.server.url}/0"

    def operations(self) -> int:
        """Return the number of commands so far, with those inside scripts and without those that read this number."""
        self._asked = getattr(self, "_asked", 0) + 1
        return int(self._info("total_commands_processed")) - self._asked

    def requests(self) -> int:
        """Return the number of messages read from clients so far. A pipeline or a script call is one."""
        return int(self._info("total_reads_processed")) - getattr(self, "_asked", 0)

    def cpu(self) -> float:
        return cpu_seconds(self.server.pid)

    def settle(self) -> None: ...

    def connections(self) -> int:
        return int(self._info("connected_clients"))

    def size(self, url: str) -> int:
        """Return the bytes of memory that the server uses."""
        return int(self._info("used_memory"))

    def stop(self) -> None:
        self.server.stop()

    def _info(self, field: str) -> str:
        found = re.search(rb"%s:(\S+)" % field.encode(), self.server.ask("INFO", "everything"))
        return found[1].decode() if found else "0"


class PostgresPlace:
    """A PostgreSQL server of the benchmark's own with fsync on, and a database for each measurement."""

    name = "postgres"

    def __init__(self, folder: Path) -> None:
        self.server = Postgres(folder / "postgres", durable=True)
        self.server.start()
        self._numbers = itertools.count(1)
        self._last: str | None = None
        [(version,)] = self._ask("SHOW server_version")
        self.version = f"PostgreSQL {version}, fsync on"

    def fresh(self, *, alone: bool = True) -> str:
        name = f"bench_{next(self._numbers)}"
        self._ask(f"CREATE DATABASE {name}")
        self.settle()
        return f"postgresql://postgres@127.0.0.1:{self.server.port}/{name}"

    def operations(self) -> int:
        """Return the number of commits so far. Servers report them up to a second late, or when a session ends."""
        [(commits,)] = self._ask("SELECT sum(xact_commit)::bigint FROM pg_stat_database WHERE datname LIKE 'bench%'")
        return int(commits or 0)

    requests = operations

    def cpu(self) -> float:
        return cpu_seconds(self.server.pid)

    def settle(self) -> None:
        """Write pending changes to disk, so that the next measurement does not include that."""
        self._ask("CHECKPOINT")

    def connections(self) -> int:
        [(count,)] = self._ask("SELECT count(*) FROM pg_stat_activity WHERE datname LIKE 'bench%'")
        return int(count)

    def size(self, url: str) -> int:
        """Return the bytes of all relations in the database."""
        [(size,)] = self._ask(f"SELECT pg_database_size('{url.rpartition('/')[2]}')")
        return int(size)

    def drop(self, url: str) -> None:
        self._ask(f"DROP DATABASE IF EXISTS {url.rpartition('/')[2]} WITH (FORCE)")

    def stop(self) -> None:
        self.server.stop()

    def _ask(self, statement: str) -> list[Any]:
        import psycopg

        with psycopg.connect(self.server.url, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []


class SqlitePlace:
    """A file for each measurement. There is no server, so the worker's CPU includes that of the store."""

    name = "sqlite"

    def __init__(self, folder: Path) -> None:
        import apsw

        self._folder = folder
        self._numbers = itertools.count(1)
        self.version = f"SQLite {apsw.sqlite_lib_version()}"

    def fresh(self, *, alone: bool = True) -> str:
        folder = self._folder / f"sqlite-{next(self._numbers)}"
        folder.mkdir()
        return f"sqlite:///{folder}/bench.db"

    def operations(self) -> int:
        return 0

    requests = operations

    def cpu(self) -> float:
        return 0.0

    def settle(self) -> None: ...

    def size(self, url: str) -> int:
        """Return the bytes of the file, after moving everything from its write-ahead log into it."""
        import apsw

        path = url.removeprefix("sqlite:///")
        connection = apsw.Connection(path)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        return Path(path).stat().st_size

    def stop(self) -> None: ...


Place = RedisPlace | PostgresPlace | SqlitePlace
