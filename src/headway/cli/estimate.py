"""``headway estimate``: when a job will start."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from headway.cli import render
from headway.cli.store_access import HERE, JobWord, JsonFlag, TargetOptions, ask, find_report
from headway.core.policy.estimate import Estimate

BASES = {
    "learned": "from the run times and arrivals of earlier jobs",
    "declared": "from declared durations; too few jobs have run to learn from",
}


def estimate(job_id: JobWord, /, *, json: JsonFlag = False, place: TargetOptions = HERE) -> int:
    """Estimate when a waiting job will start.

    Headway simulates the policy on the jobs that wait and run now. Half of
    all such jobs start within p50, nine of ten within p90. Exits with 1 if
    there is no estimate, because the job has started or too little is known.
    """
    report = ask(place, lambda operator: find_report(operator, job_id))
    job, found = report.job, report.estimate
    if json:
        render.print_json({"id": job.job_id, "status": job.state.value, "estimate": estimate_values(found)})
    elif found is None:
        print(render.clean(f"{job.task} is {job.state.value}; only a queued job has an estimate."))
    elif found.p50 is None or found.p90 is None:
        print(render.clean(f"{job.task}: {start_text(found)}"))
    else:
        facts = {
            "task": job.task,
            "starts in": f"{render.duration(found.p50 * 1_000)} (p50), {render.duration(found.p90 * 1_000)} (p90)",
            "position": _place(found.position),
            "basis": f"{found.basis}: {BASES[found.basis]}" if found.basis in BASES else found.basis,
        }
        render.console().print(render.facts(facts))
    return 0 if found is not None and found.p50 is not None else 1


def estimate_values(found: Estimate | None) -> dict[str, Any] | None:
    return None if found is None else asdict(found)


def start_text(found: Estimate, *, hint: bool = True) -> str:
    """Return an estimate as one line of text. ``hint``: name the command that says more of a job without one."""
    place = "" if found.position is None else f", {_place(found.position)}"
    if found.p50 is None or found.p90 is None:
        more = ": nothing can be said yet; `headway why` lists what the job waits for" if hint else ""
        return f"unknown{place}{more}"
    if found.p90 == 0:
        return f"at once{place}, {found.basis}"
    p50, p90 = render.duration(found.p50 * 1_000), render.duration(found.p90 * 1_000)
    return f"in {p50} (p50) to {p90} (p90){place}, {found.basis}"


def _place(position: int | None) -> str:
    if position is None:
        return render.NOTHING
    return "next in line" if position == 0 else f"{render.plural(position, 'job')} ahead"
