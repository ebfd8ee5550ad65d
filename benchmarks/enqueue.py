"""Speed of submits: one by one, each waiting for its reply, and by the bulk call."""

from __future__ import annotations

from benchmarks.run import Run

PART = "enqueue"


def measure_enqueue(run: Run) -> None:
    """Measure each contender of a store three times in turn, because its figures drift over time."""
    for store in run.places:
        with run.opened(run.on(store), PART) as stands:
            for stand in stands:
                run.note(stand)
                with run.trying(stand.contender, PART):
                    stand.ask("one_by_one", count=100)
            for _ in range(2 if run.quick else 4):
                for stand in stands:
                    with run.trying(stand.contender, PART):
                        count = 300 if run.quick else 1_000
                        run.keep(stand.contender, "enqueue", count / stand.ask("one_by_one", count=count)["seconds"])
            for stand in stands:
                if stand.contender.ours:
                    with run.trying(stand.contender, "together"):
                        run.keep(stand.contender, "together", 2_000 / stand.ask("together", count=2_000)["seconds"])
            for _ in range(1 if run.quick else 3):
                for stand in stands:
                    if stand.facts["bulk"]:
                        with run.trying(stand.contender, "bulk"):
                            count = (20_000 if stand.contender.ours else 5_000) // (2 if run.quick else 1)
                            seconds = stand.ask("bulk", count=count)["seconds"]
                            run.keep(stand.contender, "bulk", count / seconds)
