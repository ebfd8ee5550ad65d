"""``headway scale``: how many slots a lane wants."""

from __future__ import annotations

from typing import Annotated

from headway.cli import render
from headway.cli.estimate import BASES
from headway.cli.help import option
from headway.cli.store_access import HERE, JsonFlag, TargetOptions, ask
from headway.core.policy.units import write_length
from headway.estimates.scaling import ScaleAdvice, read_within


def scale(
    *,
    lane: Annotated[str, option("The lane whose jobs should start in time.", "LANE")],
    within: Annotated[str, option("How long its jobs may wait: 30, 30s or 5m.", "TIME")],
    json: JsonFlag = False,
    place: TargetOptions = HERE,
) -> None:
    """Show how many slots would let a lane start its jobs in time.

    Headway simulates the queue with more and more slots, until the last
    waiting job of the lane starts in time in nine of ten runs. The number is
    never below the number of running jobs. It is 0 only if no job of the lane
    waits, runs, is held or is due soon.
    """
    seconds = read_within(within)
    advice = ask(place, lambda operator: operator.scale(lane, seconds))
    if json:
        render.print_json(advice._asdict())
        return
    print(render.clean(_sentence(advice, lane, seconds)))
    facts = {
        "slots": f"{advice.slots:,} of live workers, {advice.busy:,} busy",
        "waiting": f"{render.plural(advice.waiting, 'job')} of {lane}",
        "last starts in": "unknown" if advice.wait_p90 is None else f"{render.duration(advice.wait_p90 * 1_000)} (p90)",
        "basis": f"{advice.basis}: {BASES[advice.basis]}" if advice.basis in BASES else advice.basis,
    }
    render.console().print(render.facts(facts))


def _sentence(advice: ScaleAdvice, lane: str, seconds: float) -> str:
    if not advice.slots_wanted:
        return f"No slot is wanted: no job of {lane} waits, runs, is held or is due soon."
    wanted = render.plural(advice.slots_wanted, "slot")
    if advice.basis == "unknown":
        return f"Keep {wanted}: too little is known to say how many would be enough."
    return f"{wanted} would let {lane} start its jobs within {write_length(round(seconds * 1_000))}."
