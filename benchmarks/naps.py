"""Utilisation of 100 slots: 2,000 jobs that sleep for 50 ms take a second at best."""

from __future__ import annotations

from functools import partial

from benchmarks.jobs import NAP
from benchmarks.run import Run
from benchmarks.stand import Stand

PART = "naps"
NAPS, SLOTS = 2_000, 100


def _all_done(stand: Stand) -> bool:
    return stand.done() >= NAPS


def measure_naps(run: Run) -> None:
    for _ in range(1 if run.quick else 2):
        for store in run.places:
            for contender in run.on(store):
                if contender.module == "benchmarks.peers.rq":
                    continue  # It runs one job at a time.
                if run.out_of_the_running(contender, "naps"):
                    continue
                with run.trying(contender, PART), run.stand(contender) as stand:
                    run.note(stand)
                    stand.ask("naps", count=NAPS, patience=120)
                    stand.start_worker("naps")
                    stand.need(stand.all_at_work, "the worker runs jobs")
                    stand.wait(partial(_all_done, stand), 4 if run.quick else 12)
                    run.keep(contender, "naps", stand.done() * NAP / SLOTS / stand.nap_seconds())
