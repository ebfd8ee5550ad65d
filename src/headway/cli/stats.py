"""``headway stats``: the store in numbers."""

from __future__ import annotations

from dataclasses import asdict

from headway.cli import render, tables
from headway.cli.operator import Operator
from headway.cli.store_access import HERE, JsonFlag, TargetOptions, ask
from headway.core.policy.document import Policy
from headway.core.policy.enforced import PauseSet
from headway.estimates.accuracy import AccuracySummary
from headway.stores.base import Stats


def stats(*, json: JsonFlag = False, place: TargetOptions = HERE) -> None:
    """Show lanes, rates and totals."""

    async def read(operator: Operator) -> tuple[Stats, Policy, PauseSet, dict[str, AccuracySummary]]:
        numbers, policy, paused = await operator.stats(), await operator.policy(), await operator.paused()
        return numbers, policy, paused, await operator.accuracy()

    numbers, policy, paused, scores = ask(place, read)
    if json:
        estimates = {lane: asdict(summary) for lane, summary in sorted(scores.items())}
        render.print_json(
            render.stats_values(numbers, policy) | {"paused": paused.names(), "estimates": estimates}
        )  # fmt: skip
        return
    alive = len(numbers.live_workers)
    console = render.console()
    console.print(tables.lanes_table(numbers, policy))
    console.print()
    console.print(
        render.facts(
            {
                render.lately(numbers): tables.counts_line(numbers.last_minute),
                "ever": tables.counts_line(numbers.totals),
                "unsuccessful": tables.counts_line(numbers.kept, "no jobs"),
                "kept for": f"completed jobs {render.duration(policy.keep.completed_ms)}, "
                f"failed {render.duration(policy.keep.failed_ms)}, "
                f"dead letters {render.duration(policy.keep.dead_letter_ms)}",
                **({"paused": ", ".join(paused.names())} if paused.names() else {}),
                **{f"estimates, {lane}": _accuracy_text(summary) for lane, summary in sorted(scores.items())},
                "workers": f"{alive} alive, {len(numbers.workers) - alive} dead",
            }
        )
    )


def _accuracy_text(summary: AccuracySummary) -> str:
    """Write how the estimates of a lane turned out."""
    off = "" if summary.error is None else f", off by {summary.error:.0%} in the middle"
    return f"p50 held for {summary.within_p50:.0%} of {summary.scored:,}, p90 for {summary.within_p90:.0%}{off}"
