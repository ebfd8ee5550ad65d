"""``headway stats``: the store in numbers."""

from __future__ import annotations

from headway.cli import panels, show
from headway.cli.opening import HERE, JsonFlag, Place, opened, policy_of, run
from headway.core.policy.document import Policy
from headway.core.policy.rules import Paused
from headway.core.worker import WorkerState
from headway.engine.rules import read_paused
from headway.stores.base import Stats


def stats(*, json: JsonFlag = False, place: Place = HERE) -> int:
    """Show lanes, rates and totals."""

    async def read() -> tuple[Stats, Policy, Paused]:
        async with opened(place) as store:
            return await store.stats(), await policy_of(store), await read_paused(store)

    numbers, policy, paused = run(read())
    if json:
        show.print_json(show.stats_values(numbers, policy) | {"paused": paused.names()})
        return 0
    alive = sum(worker.state is not WorkerState.DEAD for worker in numbers.workers)
    console = show.console()
    console.print(panels.lanes_table(numbers, policy))
    console.print()
    console.print(
        show.facts(
            {
                "per minute": panels.counts_line(show.per_minute(numbers)),
                "ever": panels.counts_line(numbers.totals),
                "kept": panels.counts_line(numbers.kept),
                **({"paused": ", ".join(paused.names())} if paused.names() else {}),
                "workers": f"{alive} alive, {len(numbers.workers) - alive} dead",
            }
        )
    )
    return 0
