"""Bytes that a waiting job takes in its store."""

from __future__ import annotations

from benchmarks.run import Run

PART = "memory"
JOBS, OF_A_PEER = 100_000, 10_000  # More would take long with a peer that has no bulk call.
TEXT = "x" * 200  # The payload.


def measure_memory(run: Run) -> None:
    for contender in run.contenders:
        with run.trying(contender, PART), run.stand(contender) as stand:
            run.note(stand)
            stand.ask("fill", count=100, text=TEXT)  # Creates tables and other fixed structures first.
            before, jobs = stand.place.size(stand.url), JOBS if contender.ours else OF_A_PEER
            stand.ask("fill", count=jobs, text=TEXT, patience=120)
            run.keep(contender, "job_bytes", (stand.place.size(stand.url) - before) / jobs, min)
