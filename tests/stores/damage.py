"""Functions that damage the row of a job from outside, as another program or a bad disk may."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import apsw
import psycopg

from tests.conftest import postgres, valkey

Damage = Callable[[Path, int], None]


def in_sqlite(change: str) -> Damage:
    def damage(folder: Path, seq: int) -> None:
        connection = apsw.Connection(f"{folder}/headway.db")
        connection.execute(f"UPDATE job SET {change} WHERE seq = ?", (seq,))
        connection.close()

    return damage


def in_postgres(change: str) -> Damage:
    def damage(_: Path, seq: int) -> None:
        with psycopg.connect(postgres().url) as connection:
            connection.execute(f"UPDATE headway.job SET {change} WHERE seq = %s".encode(), (seq,))

    return damage


def in_redis(script: str) -> Damage:
    def damage(folder: Path, seq: int) -> None:
        prefix = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
        key = f"{{{prefix}:default}}:job"
        words = f"local was = redis.call('HGET', KEYS[1], ARGV[1]); redis.call('HSET', KEYS[1], ARGV[1], {script})"
        assert valkey().ask("EVAL", words, "1", key, str(10**15 + seq)) == b"$-1\r\n"

    return damage


DAMAGES = {
    "sqlite": {
        "retry is no JSON": in_sqlite("retry = 'nonsense'"),
        "retry of another release": in_sqlite("retry = '{\"what\": 1}'"),
        "limits are no JSON": in_sqlite("limits = '{'"),
        "task is a blob": in_sqlite("task = x'01ff'"),
        "tenant is a blob": in_sqlite("tenant = x'01ff'"),
        "payload is text": in_sqlite("payload = 'text'"),
        "task is not UTF-8": in_sqlite("task = CAST(x'ff41' AS TEXT)"),
        "trace id is not UTF-8": in_sqlite("trace_id = CAST(x'41ff' AS TEXT)"),
        "retry is not UTF-8": in_sqlite("retry = CAST(x'ff' AS TEXT)"),
    },
    "postgres": {
        "retry is no JSON": in_postgres("retry = 'nonsense'"),
        "retry of another release": in_postgres("retry = '{\"what\": 1}'"),
        "limits are no JSON": in_postgres("limits = '{'"),
    },
    "redis": {
        "empty": in_redis("''"),
        "overwritten": in_redis("'nonsense'"),
        "overwritten at length": in_redis("string.rep('x', 300)"),
        "all bits": in_redis("string.rep(string.char(255), 300)"),
        "cut in its head": in_redis("string.sub(was, 1, 19)"),
        "cut in its id": in_redis("string.sub(was, 1, 30)"),
        "cut in its texts": in_redis("string.sub(was, 1, 70)"),
        "another body": in_redis("(string.gsub(was, 'exponential', string.rep(string.char(255), 11)))"),
    },
}
