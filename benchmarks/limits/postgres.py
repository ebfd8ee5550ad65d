"""Bare PostgreSQL: rows inserted, claimed and deleted through one blocking connection."""

from __future__ import annotations

import time

from benchmarks.limits.sqlite import PAYLOAD
from benchmarks.places import PostgresPlace

BATCH = 100
ONE_BY_ONE = 500
INSERT = "INSERT INTO job (body) SELECT unnest(%s::bytea[])"
CLAIM = """
    UPDATE job SET state = 1
     WHERE seq IN (SELECT seq FROM job WHERE state = 0 ORDER BY seq LIMIT %s FOR UPDATE SKIP LOCKED)
    RETURNING seq, body
"""


def bare_postgres(place: PostgresPlace, *, jobs: int) -> dict[str, float]:
    """Return jobs per second. Each batch is one transaction."""
    import psycopg

    url = place.fresh()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE job (seq bigserial PRIMARY KEY, state smallint DEFAULT 0, body bytea)")
        connection.execute("CREATE INDEX waiting ON job (seq) WHERE state = 0")
        began = time.perf_counter()
        for _ in range(ONE_BY_ONE):
            connection.execute(INSERT, ([PAYLOAD],), prepare=True)
        single = ONE_BY_ONE / (time.perf_counter() - began)
        began = time.perf_counter()
        for _ in range(0, jobs, 1_000):
            connection.execute(INSERT, ([PAYLOAD] * 1_000,), prepare=True)
        bulk = jobs / (time.perf_counter() - began)
        connection.execute("VACUUM ANALYZE job")
        began = time.perf_counter()
        for _ in range(0, jobs, BATCH):
            claimed = connection.execute(CLAIM, (BATCH,), prepare=True).fetchall()
            seqs = [seq for seq, _ in claimed]
            connection.execute("DELETE FROM job WHERE seq = ANY(%s)", (seqs,), prepare=True)
        drained = jobs / (time.perf_counter() - began)
        began = time.perf_counter()
        for _ in range(2_000):
            connection.execute("SELECT 1", prepare=True)
        trips = 2_000 / (time.perf_counter() - began)
    place.drop(url)
    return {
        "postgres, round trips": trips,
        "postgres, insert one by one": single,
        "postgres, insert by batches of 1,000": bulk,
        "postgres, claim and delete by batches of 100": drained,
    }
