"""``headway submit --dry-run``: what would happen to a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headway.cli import render
from headway.cli.estimate import start_text
from headway.cli.operator import StoreOperator
from headway.client.dry_run import DryRun, dry_run_values
from headway.core.policy.estimate import Estimate
from headway.core.policy.positions import position
from headway.core.policy.why import why
from headway.estimates.forecaster import Forecaster

if TYPE_CHECKING:
    from headway.client.app import Headway
    from headway.client.task import Call
    from headway.stores.base import Store


async def preview_call(app: Headway, call: Call[Any], batch: str | None, store: Store | None) -> dict[str, Any]:
    """Return what would happen to a call, by the store of an app. ``store``: in its place, if it does not exist yet."""
    record = None if batch is None else await app.batch_of(batch).arecord()
    batch_id, tenant = (None, None) if record is None else (record.batch_id, record.tenant)
    store = store or await app.client.store()
    job, preview = await app.submitter.preview(call, store, batch_id=batch_id, tenant=tenant)
    if preview.existing is not None:
        report = await StoreOperator(store).report(preview.existing)
        if report is None:
            return dry_run_values(DryRun(job, preview))
        return dry_run_values(DryRun(job, preview, report.estimate, report.reasons, report.job))
    diagnosis = preview.diagnosis
    if diagnosis is None:
        return dry_run_values(DryRun(job, preview))
    estimate = await Forecaster().estimate(store, diagnosis, app.policy)
    if estimate is not None and not diagnosis.job.held:
        place = position(diagnosis, app.policy)
        estimate = Estimate(estimate.p50, estimate.p90, place, estimate.basis)
    return dry_run_values(DryRun(job, preview, estimate, why(diagnosis, app.policy)))


def print_dry_run(values: dict[str, Any], *, json: bool) -> int:
    """Print what would happen to a job. Returns the exit code."""
    if json:
        render.print_json(values)
        return 0
    task, existing = values["task_type"], values["task_id"]
    if existing is not None:
        state = values["status"] or "removed"
        text = f"A submit would return the existing job {existing}, which is {state}."
    elif values["status"] == "cancelled":
        text = f"The job of {task} would be cancelled at once."
    else:
        text = f"The job of {task} is valid."
    print(render.clean(f"{text} Nothing was submitted."))
    estimate = None if values["estimate"] is None else Estimate(**values["estimate"])
    facts = {
        "lane": values["priority"],
        **({} if values["tenant"] is None else {"tenant": values["tenant"]}),
        **({} if values["duration"] is None else {"duration": values["duration"]}),
        **({} if estimate is None else {"starts": start_text(estimate, hint=existing is not None)}),
        "waits for": "; ".join(one["text"] for one in values["reasons"]) or "nothing",
        "limits": "; ".join(map(_limit_text, values["limits"])) or "none",
    }
    render.console().print(render.facts(facts))
    return 0


def _limit_text(limit: dict[str, Any]) -> str:
    parts = [
        *([] if limit["concurrency"] is None else [f"{limit['running']} of {limit['concurrency']} run"]),
        *([] if limit["rate"] is None else [limit["rate"]]),
    ]
    return f"{limit['limit']}: {', '.join(parts)}"
