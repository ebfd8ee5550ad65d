"""``headway why``: what a job waits for, or what it had waited for."""

from __future__ import annotations

from typing import Any

from headway.cli import render
from headway.cli.operator import JobReport, Operator
from headway.cli.store_access import HERE, JobWord, JsonFlag, TargetOptions, ask, find_report
from headway.core.job import State
from headway.core.policy.document import Policy
from headway.core.policy.lanes import effective_lane
from headway.core.policy.why import length
from headway.stores.paging import PASSED_OVER_MAX


def why(job_id: JobWord, /, *, json: JsonFlag = False, place: TargetOptions = HERE) -> None:
    """Show why a job waits, with numbers, or why it waited if it has started.

    All reasons are listed in order of precedence. The first one holds the job
    back now; when it no longer applies, the next one does.
    """

    async def read(operator: Operator) -> tuple[JobReport, Policy, int]:
        found = await find_report(operator, job_id)
        return found, await operator.policy(), await operator.passed_over(found.job)

    report, policy, passed = ask(place, read)
    if json:
        render.print_json(_values(report, policy) | {"passed_over": passed})
    else:
        _print(report, policy, passed)


def _values(report: JobReport, policy: Policy) -> dict[str, Any]:
    job = report.job
    return {
        "id": job.job_id,
        "status": job.state.value,
        "lane": job.lane,
        "effective_priority": effective_lane(policy, job, job.seen_at),
        "reasons": [reason.as_values() for reason in report.reasons],
        "waited_s": {reason: ms / 1_000 for reason, ms in report.waited_ms.items()},
    }


def _print(report: JobReport, policy: Policy, passed: int) -> None:
    console, job, reasons = render.console(), report.job, report.reasons
    effective = effective_lane(policy, job, job.seen_at)
    lane = job.lane if effective == job.lane else f"{job.lane}, risen to {effective}"
    if job.state is not State.QUEUED:
        console.print(render.text(f"{job.task} is {job.state.value}; it does not wait."))
    elif job.eligible_at is None:
        console.print(render.text(f"{job.task} in lane {lane} does not wait for a slot yet."))
    else:
        waited = length((job.seen_at - job.eligible_at) / 1_000)
        console.print(render.text(f"{job.task} in lane {lane} has waited for {waited}."))
    if reasons:
        table = render.table("", "reason", "")
        for number, reason in enumerate(reasons, start=1):
            table.add_row(
                str(number), render.text(reason.code, "bold" if number == 1 else ""), render.text(reason.text)
            )
        console.print(table)
    elif job.state is State.QUEUED:
        console.print("Nothing holds it back: a worker is about to take it.")
    if passed:
        many = f"{passed} or more" if passed == PASSED_OVER_MAX else str(passed)
        console.print(render.text(f"Passed over: {many} later jobs of its lane and tenant have started."))
    if report.waited_ms:
        parts = ", ".join(f"{length(ms / 1_000)} {reason}" for reason, ms in report.waited_ms.items())
        console.print(render.text(f"Before it started it waited: {parts}."))
