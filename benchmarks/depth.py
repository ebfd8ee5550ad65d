"""Speed of deep queues beside shallow ones, and of the last tenth of a drain beside the first."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from benchmarks.contenders import Contender
from benchmarks.drain import Meter, drain, timed
from benchmarks.places import PostgresPlace
from benchmarks.run import Figures, Run
from benchmarks.stand import ContenderError, Stand

SHALLOW = 1_000
CHUNK = 50_000
PATIENCE = 180.0  # Seconds for all tenths.


def measure_depth(run: Run) -> None:
    """Measure a drain at each depth, while the benchmark submits as many jobs as are done."""
    for contender in _ours(run):
        with run.trying(contender, "deep"):
            for name, waiting in (("shallow", SHALLOW), ("deep", run.deep)):
                with run.stand(contender) as stand:
                    run.note(stand)
                    fill(run, stand, waiting)
                    stand.start_worker("drain")
                    stand.need(stand.all_at_work, "the worker runs jobs")
                    run.keep(contender, name, held(stand, waiting, seconds=2 if run.quick else 5)["per_second"])
                    if name == "deep":
                        found = timed(stand, upto=waiting, seconds=2 if run.quick else 4)
                        run.keep(contender, "deep_drain", found["per_second"])
            # Nothing was submitted during that last one, so it compares with a plain drain made right after it.
            run.keep(contender, "usual_drain", drain(run, contender, workers=1)["per_second"])


def held(stand: Stand, waiting: int, *, seconds: float) -> Figures:
    """Measure for this many seconds, and submit as many jobs as are done."""
    meter, submitted = Meter(stand), waiting
    while time.perf_counter() - meter.began < seconds:
        if missing := (stand.done() - (submitted - waiting)) // 100 * 100:
            stand.ask("fill", count=missing)
            submitted += missing
        else:
            time.sleep(0.002)
    return meter.read()


def measure_tenths(run: Run) -> None:
    """Drain a deep queue to its end on PostgreSQL, alone and beside a session that is idle in a transaction."""
    for contender in _ours(run):
        if contender.store == "postgres":
            for name, beside in (("alone", False), ("idle_in_transaction", True)):
                with run.trying(contender, f"tenths, {name}"), run.stand(contender) as stand:
                    run.note(stand)
                    fill(run, stand, run.deep)
                    with _idle_transaction(stand) if beside else contextlib.nullcontext():
                        first, last = _tenths(run, stand, run.deep)
                    run.keep(contender, f"tenths_{name}", last / first)
                    run.keep(contender, f"tenths_{name}_first", first)
                    run.keep(contender, f"tenths_{name}_last", last)


def _tenths(run: Run, stand: Stand, waiting: int) -> tuple[float, float]:
    stand.start_worker("drain")
    stand.need(stand.all_at_work, "the worker runs jobs")
    rates: list[float] = []
    ends = time.monotonic() + PATIENCE
    for tenth in range(1, 11):
        found = timed(stand, upto=waiting * tenth // 10, seconds=ends - time.monotonic())
        rates.append(found["per_second"])
        costs = f"worker {found['worker_us']:.1f} µs, store {found['store_us']:.1f} µs a job"
        run.say(f"  tenth {tenth}: {found['per_second']:,.0f}/s, {costs}")
        if stand.done() < waiting * tenth // 10:
            raise ContenderError(f"{stand.done():,} of {waiting:,} jobs were done within {PATIENCE:.0f} s")
    return rates[0], rates[-1]


@contextlib.contextmanager
def _idle_transaction(stand: Stand) -> Iterator[None]:
    """Hold a transaction open, so that vacuum cannot remove any row that is deleted meanwhile."""
    import psycopg

    assert isinstance(stand.place, PostgresPlace)
    with psycopg.connect(stand.url) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT txid_current()")
        yield
        connection.rollback()


def fill(run: Run, stand: Stand, waiting: int) -> None:
    for start in range(0, waiting, CHUNK):
        stand.ask("fill", count=min(CHUNK, waiting - start))
        if start:
            run.say(f"  {start + CHUNK:,} submitted")
    stand.place.settle()


def _ours(run: Run) -> list[Contender]:
    return [contender for contender in run.contenders if contender.ours]
