"""Answer a submit with what would happen to its task, and keep nothing."""

from __future__ import annotations

from typing import Any

from headway.client.dry_run import DryRun, dry_run_values
from headway.core.policy.why import why
from headway.estimates.forecaster import estimate_held
from headway.server.service import Service
from headway.server.submit import CallSet, describe_waiting, estimate_from
from headway.stores.paging import get_in_steps


async def dry_run(service: Service, wanted: CallSet) -> dict[str, Any]:
    """Return what would happen to the call of a request."""
    [call], batch, tenant = wanted
    batch_id = None if batch is None else batch.batch_id
    job, preview = await service.app.submitter.preview(call, batch_id=batch_id, tenant=tenant)
    if preview.existing is not None:
        found = [one async for one in get_in_steps(service.client.read_jobs, [preview.existing])]
        existing = found[0] if found else None
        estimate, reasons = (None, []) if existing is None else await describe_waiting(service, existing)
        return dry_run_values(DryRun(job, preview, estimate, reasons, existing))
    diagnosis = preview.diagnosis
    if diagnosis is None:
        return dry_run_values(DryRun(job, preview))
    policy, forecast = await service.policy(), await service.forecast()
    if diagnosis.job.held:
        estimate = await estimate_held(await service.store(), forecast, diagnosis)
    else:
        estimate = estimate_from(diagnosis, forecast, policy)
    return dry_run_values(DryRun(job, preview, estimate, why(diagnosis, policy)))
