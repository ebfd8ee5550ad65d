"""The task queues that the benchmarks measure, and the stores they use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Contender:
    """A task queue on a store. ``jobs``: the number that it drains in a few seconds."""

    name: str
    module: str
    store: str
    jobs: int
    variant: str = ""

    @property
    def ours(self) -> bool:
        return not self.module.startswith("benchmarks.peers.")


OURS = (
    Contender("headway (redis)", "benchmarks.ours", "redis", 100_000),
    Contender("headway (postgres)", "benchmarks.ours", "postgres", 100_000),
    Contender("headway (sqlite)", "benchmarks.ours", "sqlite", 100_000),
)
PEERS = (
    Contender("celery", "benchmarks.peers.celery", "redis", 3_000),
    Contender("dramatiq", "benchmarks.peers.dramatiq", "redis", 8_000),
    Contender("rq", "benchmarks.peers.rq", "redis", 1_000),
    Contender("huey", "benchmarks.peers.huey", "redis", 8_000),
    Contender("arq", "benchmarks.peers.arq", "redis", 4_000),
    Contender("saq", "benchmarks.peers.saq", "redis", 4_000),
    Contender("taskiq (list)", "benchmarks.peers.taskiq", "redis", 7_000, "list"),
    Contender("taskiq (stream)", "benchmarks.peers.taskiq", "redis", 7_000, "stream"),
    Contender("procrastinate", "benchmarks.peers.procrastinate", "postgres", 2_000),
    Contender("pgqueuer", "benchmarks.peers.pgqueuer", "postgres", 40_000),
    # With the same durability as Headway on SQLite, and without any.
    Contender("huey (sqlite, fsync)", "benchmarks.peers.huey", "sqlite", 5_000, "fsync"),
    Contender("huey (sqlite)", "benchmarks.peers.huey", "sqlite", 10_000),
)
# The peers with the best figure for some target. A quick run measures only these.
STRONG = ("dramatiq", "rq", "huey", "taskiq", "pgqueuer")
STORES = ("redis", "postgres", "sqlite")
