"""``headway stats``: the store in numbers."""

from __future__ import annotations

from headway.cli import panels, show
from headway.cli.opening import HERE, JsonFlag, Place, opened, run
from headway.core.worker import WorkerState
from headway.stores.base import Stats


def stats(*, json: JsonFlag = False, place: Place = HERE) -> int:
    """Show lanes, rates and totals."""

    async def read() -> Stats:
        async with opened(place) as store:
            return await store.stats()

    numbers = run(read())
    if json:
        show.print_json(show.stats_values(numbers))
        return 0
    alive = sum(worker.state is not WorkerState.DEAD for worker in numbers.workers)
    console = show.console()
    console.print(panels.lanes_table(numbers))
    console.print()
    console.print(
        show.facts(
            {
                "per minute": panels.counts_line(show.per_minute(numbers)),
                "ever": panels.counts_line(numbers.totals),
                "kept": panels.counts_line(numbers.kept),
                "workers": f"{alive} alive, {len(numbers.workers) - alive} dead",
            }
        )
    )
    return 0
