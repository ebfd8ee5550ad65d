"""Measure a submit in a view beside ``Model.objects.create``, in a process of its own, and print JSON."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable

import django

django.setup()

from django.db import connection, transaction  # noqa: E402

from benchmarks.django_shop import tasks  # noqa: E402
from benchmarks.django_shop.models import Order  # noqa: E402

TEXT = "x" * 100


def measure(count: int, turns: int) -> dict[str, float]:
    """Return the microseconds of one call of each kind, as the median of alternating turns."""
    ways: dict[str, Callable[[int], object]] = {
        "submit": lambda number: tasks.noop(number, TEXT),
        "create": lambda number: Order.objects.create(
            article="book", state="new", payload={"number": number, "text": TEXT}
        ),
    }
    found: dict[str, list[float]] = {}
    for turn in range(turns + 1):
        for name, way in ways.items():
            alone = timed(way, count)
            with transaction.atomic():
                within = timed(way, count)
            if turn:  # The first is for warming up.
                found.setdefault(name, []).append(alone)
                found.setdefault(f"{name} within", []).append(within)
    return {name: statistics.median(times) for name, times in found.items()}


def timed(way: Callable[[int], object], count: int) -> float:
    began = time.perf_counter()
    for number in range(count):
        way(number)
    return (time.perf_counter() - began) / count * 1e6


def fill(task: str, count: int) -> None:
    """Submit jobs for a worker to drain."""
    for start in range(0, count, 500):
        with transaction.atomic():
            for number in range(start, min(start + 500, count)):
                getattr(tasks, task)(number, TEXT)


if __name__ == "__main__":
    connection.ensure_connection()
    if sys.argv[1] == "measure":
        print(json.dumps(measure(int(sys.argv[2]), int(sys.argv[3]))))
    else:
        fill(sys.argv[2], int(sys.argv[3]))
