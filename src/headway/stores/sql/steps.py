"""Steps: what a running job has done under a name."""

from __future__ import annotations

from headway.core.job import JobId
from headway.core.workflow import Step, check_step
from headway.stores.sql.transaction import Transaction
from headway.stores.texts import is_writable


async def record_step(tx: Transaction, step: Step) -> bool:
    """Keep a step under the lease of its job. Return False if the lease has ended."""
    if await tx.db.first("lease_token", step.seq) != step.token:
        return False
    key = tx.rows.text(step.key)
    if await tx.db.first("step_known", step.seq, key) is None:
        number, size = await tx.db.row("step_last", step.seq) or (0, 0)
        check_step(step.key, step.value, number, size)
        await tx.db.run("step_add", step.seq, number + 1, key, step.value, size + len(step.value))
    return True


async def read_steps(tx: Transaction, job_id: JobId) -> dict[str, bytes]:
    """Return the steps of a job, in the order in which they were kept."""
    if not is_writable(job_id):
        return {}
    found = await tx.db.run("steps", job_id, tx.namespace_id)
    return {tx.rows.read_text(key) or "": value for key, value in found}
