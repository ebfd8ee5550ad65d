"""Bare SQLite: batches of rows through apsw."""

from __future__ import annotations

import time
from pathlib import Path

import apsw

PAYLOAD = b'\x01{"number":123456,"text":"' + b"x" * 40 + b'"}'


def _open(path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "mmap_size = 0", "cache_size = -16384"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    connection.execute(
        "CREATE TABLE job (seq INTEGER PRIMARY KEY, job_id TEXT, state INTEGER, payload BLOB);"
        "CREATE INDEX job_waiting ON job (state, seq) WHERE state = 0"
    )
    return connection


def bare_sqlite(folder: Path, *, jobs: int = 40_000, batch: int = 100) -> dict[str, float]:
    """Insert, then claim and finish, in batches at synchronous=FULL. Return jobs per second for each."""
    connection = _open(folder / "bare.db")
    began = time.perf_counter()
    for start in range(0, jobs, batch):
        rows = [(f"{number:036d}", 0, PAYLOAD) for number in range(start, start + batch)]
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO job (job_id, state, payload) VALUES (?, ?, ?)", rows)
        connection.execute("COMMIT")
    inserted = time.perf_counter() - began
    began = time.perf_counter()
    for _ in range(0, jobs, batch):
        connection.execute("BEGIN IMMEDIATE")
        claimed = connection.execute(
            "UPDATE job SET state = 1 WHERE seq IN (SELECT seq FROM job WHERE state = 0 ORDER BY seq LIMIT ?)"
            " RETURNING seq, payload",
            (batch,),
        ).fetchall()
        connection.execute("COMMIT")
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("UPDATE job SET state = 2 WHERE seq = ?", [(seq,) for seq, _ in claimed])
        connection.execute("COMMIT")
    drained = time.perf_counter() - began
    connection.close()
    return {
        "insert by batches of 100, FULL": jobs / inserted,
        "claim and finish by batches of 100, FULL": jobs / drained,
    }
