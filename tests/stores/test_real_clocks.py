"""Steps of the real clocks of servers and hosts, below the rule that keeps store time monotonic."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest

from headway.core.policy.clock import StoreClock, step_clock
from headway.stores import open as opening
from headway.stores.open import open_store
from headway.stores.postgres.statements import FUNCTIONS_VERSION
from headway.stores.redis import client
from headway.stores.redis import library as libraries
from headway.testing.clock import ManualClock
from tests.conformance.builders import a_job, claim, register, submit_one
from tests.conftest import postgres, valkey

HOUR_MS = 3_600_000


class Clock:
    """The clock of a host or server, which a test may step."""

    def __init__(self, url: str) -> None:
        self.url = url

    def step(self, ms: int) -> None:
        """Set the difference between this clock and the true time."""
        raise NotImplementedError


class HostClock(Clock):
    def __init__(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(url)
        self._off_ms = 0
        monkeypatch.setattr(opening, "host_ms", lambda: time.time_ns() // 1_000_000 + self._off_ms)

    def step(self, ms: int) -> None:
        self._off_ms = ms


class RedisClock(Clock):
    """A copy of the Redis library that adds the value of a key to the server's time."""

    def __init__(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(url)
        name, text = libraries.library()
        self._key = f"off-{time.time_ns()}"
        other = f"{name}_{self._key.replace('-', '_')}"
        stepped = text.replace(name, other).replace(
            "local t = call('TIME')", f"local t = call('TIME'); t[1] = t[1] + tonumber(call('GET', '{self._key}') or 0)"
        )
        assert stepped.count(self._key) == 1
        monkeypatch.setattr(client, "library", lambda: libraries.Library(other, stepped))

    def step(self, ms: int) -> None:
        valkey().ask("SET", self._key, str(ms // 1_000))


class PostgresClock(Clock):
    """A schema with another function for the raw clock."""

    def __init__(self, url: str, schema: str) -> None:
        super().__init__(f"{url}?schema={schema}")
        self._schema = schema

    def step(self, ms: int) -> None:
        with psycopg.connect(postgres().url, autocommit=True) as connection:
            connection.execute(
                f'CREATE OR REPLACE FUNCTION "{self._schema}".raw_ms_{FUNCTIONS_VERSION}() RETURNS bigint LANGUAGE sql '
                f"VOLATILE AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint + ({ms}) $$".encode()
            )


@contextmanager
def clock_of(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    if kind == "redis":
        yield RedisClock(f"{valkey().url}?prefix={folder.name}", monkeypatch)
    elif kind == "postgres":
        schema = re.sub(r"\W", "_", folder.name)[:60]
        yield PostgresClock(postgres().url, schema)
        with psycopg.connect(postgres().url, autocommit=True) as connection:
            connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE'.encode())
    else:
        yield HostClock(f"sqlite:///{folder}/headway.db" if kind == "sqlite" else "memory://", monkeypatch)


@pytest.mark.parametrize("kind", ["memory", "sqlite", "redis", "postgres"])
async def test_an_hour_forward_and_back_delays_nothing_and_never_turns_time_back(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # T1, T2, L8
    async with AsyncExitStack() as stack:
        clock = stack.enter_context(clock_of(kind, tmp_path, monkeypatch))
        store = open_store(clock.url)
        await store.open()
        stack.push_async_callback(store.close)
        await register(store, "w1", lease_ms=2 * HOUR_MS)
        before = (await store.snapshot()).now_at
        assert abs(before - time.time_ns() // 1_000_000) < 60_000
        clock.step(HOUR_MS)
        ahead = (await store.snapshot()).now_at
        assert ahead - before >= HOUR_MS
        delayed = await submit_one(store, a_job(delay_ms=500))
        clock.step(0)
        back = (await store.snapshot()).now_at
        assert ahead <= back <= ahead + 60_000
        began = time.monotonic()
        while not (leases := await claim(store, "w1")):
            assert time.monotonic() - began < 30, "the delay waits for the clock to come round again"
        assert [lease.job_id for lease in leases] == [delayed]
        clock.step(-HOUR_MS)
        again = (await store.snapshot()).now_at
        assert back <= again <= back + 60_000
        if store.abilities.shared:  # Another process goes by the same time.
            other = open_store(clock.url)
            await other.open()
            stack.push_async_callback(other.close)
            assert again <= (await other.snapshot()).now_at + 1_000 <= again + 60_000


READINGS = (0, 500, 700, 400, 2_000, -HOUR_MS, 3, -HOUR_MS - 500, 20_000 - HOUR_MS, 40_000 - HOUR_MS, 65_000, 70_000,
            HOUR_MS, HOUR_MS - 999, HOUR_MS - 5_000, HOUR_MS + 30_000, 5_000)  # fmt: skip


async def test_lua_and_sql_follow_the_rule_of_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = 1_760_000_000_000
    readings = [start + step for step in READINGS]
    clock, expected = StoreClock(), []
    for raw_at in readings:
        now_at, clock = step_clock(clock, raw_at)
        expected.append(now_at)
    with clock_of("postgres", tmp_path, monkeypatch) as place:
        store = open_store(place.url)
        await store.open()
        await store.close()
        schema = re.sub(r"\W", "_", tmp_path.name)[:60]
        with psycopg.connect(postgres().url, autocommit=True) as connection:
            found = [
                connection.execute(f'SELECT "{schema}".now_ms_{FUNCTIONS_VERSION}(%s)'.encode(), [raw_at]).fetchone()
                for raw_at in readings
            ]
        assert [row[0] for row in found if row is not None] == expected
    manual = ManualClock(readings[0])
    redis = open_store(f"{valkey().url}?prefix={tmp_path.name}", clock=manual)
    await redis.open()
    told = []
    for manual.now_at in readings:
        told.append((await redis.snapshot()).now_at)
    await redis.close()
    # A server remembers each moment, not one a second, so it waits out small steps back to the millisecond.
    assert all(0 <= theirs - ours <= 1_000 for theirs, ours in zip(told, expected, strict=True))
    assert told == sorted(told)
