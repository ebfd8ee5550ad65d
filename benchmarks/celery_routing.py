"""Simulation of Celery routing rules for users who share the queues with a bulk. Every machine computes the same.

Workers read all queues in turn and take one task at a time, as Celery's do on Redis with ``--prefetch-multiplier 1``.
Run it with ``python -m benchmarks.celery_routing``; docs/explain/celery-routing.md shows what it prints.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from headway.integrations.celery.sharding import shard_of

QUEUES = 20
SLOTS = 8
BULK = 1_000
BULK_AT = 60.0
LENGTH = 1.0  # Seconds that a task takes.
LOAD = 0.5  # The part of the slots that other users keep busy.
USERS = 40
UNTIL = 600.0


class Waits(NamedTuple):
    """Seconds that tasks of other users waited after the bulk arrived, and seconds until the bulk was done."""

    p50: float
    p95: float
    worst: float
    bulk_done: float


class Arrival(NamedTuple):
    at: float
    user: str


Choose = Callable[[str, list[int]], int]


def simulate(choose: Choose, *, seed: int = 7) -> Waits:
    """Simulate arrivals, the choice of queues, and workers. Each choice sees exact loads."""
    chance = random.Random(seed)
    arrivals: list[Arrival] = []
    at = 0.0
    while at < UNTIL:
        at += chance.expovariate(LOAD * SLOTS / LENGTH)
        arrivals.append(Arrival(at, f"user:{chance.randrange(USERS)}"))
    arrivals += [Arrival(BULK_AT, "bulk")] * BULK
    arrivals.sort(key=lambda arrival: arrival.at)
    queues: list[deque[Arrival]] = [deque() for _ in range(QUEUES)]
    loads = [0] * QUEUES
    order = deque(range(QUEUES))
    running: list[tuple[float, int]] = []  # The end of each running task, and its queue.
    waited: list[float] = []
    bulk_done = 0.0
    coming = iter(arrivals)
    following = next(coming, None)
    now = 0.0
    while following is not None or running:
        if following is not None and (not running or following.at <= running[0][0]):
            now = following.at
            queue = choose(following.user, loads)
            queues[queue].append(following)
            loads[queue] += 1
            following = next(coming, None)
        else:
            now, queue = heapq.heappop(running)
            loads[queue] -= 1
        while len(running) < SLOTS and (taken := _next(order, queues)) is not None:
            arrival = queues[taken].popleft()
            ends = now + LENGTH
            heapq.heappush(running, (ends, taken))
            if arrival.user == "bulk":
                bulk_done = max(bulk_done, ends - BULK_AT)
            elif arrival.at >= BULK_AT:
                waited.append(now - arrival.at)
    waited.sort()
    return Waits(waited[len(waited) // 2], waited[int(len(waited) * 0.95)], waited[-1], bulk_done)


def _next(order: deque[int], queues: list[deque[Arrival]]) -> int | None:
    """Return the next queue with a task, or None, and move that queue to the end of the order."""
    for queue in order:
        if queues[queue]:
            order.remove(queue)
            order.append(queue)
            return queue
    return None


def _least(loads: list[int], among: tuple[int, ...]) -> int:
    return min(among, key=lambda queue: (loads[queue], queue))


def _one_queue(user: str, loads: list[int]) -> int:
    return 0


def _least_loaded(user: str, loads: list[int]) -> int:
    return _least(loads, tuple(range(QUEUES)))


def _shards(width: int) -> Choose:
    return lambda user, loads: _least(loads, shard_of(user, queues=QUEUES, width=width))


def _bulk_in(width: int) -> Choose:
    """Return a rule that keeps the bulk on a few queues. Any other task goes to the least loaded of all queues."""
    return lambda user, loads: _shards(width)(user, loads) if user == "bulk" else _least_loaded(user, loads)


RULES: dict[str, Choose] = {
    "one queue (Celery's default)": _one_queue,
    "20 queues, each task to the least loaded": _least_loaded,
    '20 queues, users hashed to one (`route="hash"`)': _shards(1),
    'the bulk in one queue, others least loaded (`bulk="together"`)': _bulk_in(1),
    "the bulk in 4 queues, others least loaded (the default)": _bulk_in(4),
    'users in 4 of 20 queues (`by="user_id"`)': _shards(4),
}


def table() -> str:
    """Return the simulated waits as a Markdown table."""
    lines = [
        "| rule | others wait, median | 95th percentile | worst | the bulk is done after |",
        "|---|---|---|---|---|",
    ]
    for name, choose in RULES.items():
        p50, p95, worst, done = simulate(choose)
        lines.append(f"| {name} | {p50:.1f} s | {p95:.1f} s | {worst:.1f} s | {done:.0f} s |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
