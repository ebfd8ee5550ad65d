"""Upper bounds of this machine: speeds of the stores, the disk and Python without Headway."""

from __future__ import annotations

from pathlib import Path

from benchmarks.limits.disk import bare_disk
from benchmarks.limits.postgres import bare_postgres
from benchmarks.limits.python import bare_python
from benchmarks.limits.redis import bare_redis
from benchmarks.limits.sqlite import bare_sqlite
from benchmarks.places import PostgresPlace, RedisPlace
from benchmarks.run import Run


def measure_limits(run: Run) -> None:
    """Measure the bounds that concern the stores of this run, as operations per second."""
    jobs = 10_000 if run.quick else 40_000
    folder = Path(run.folder / "limits")
    folder.mkdir()
    found = run.others.setdefault("limits", {})
    found |= bare_python() | bare_disk(folder)
    for place in run.places.values():
        run.say(f"limits: {place.name}")
        if isinstance(place, RedisPlace):
            found |= bare_redis(place, jobs=jobs)
        elif isinstance(place, PostgresPlace):
            found |= bare_postgres(place, jobs=jobs)
        else:
            found |= {f"sqlite, {title}": rate for title, rate in bare_sqlite(folder, jobs=jobs).items()}
