"""Parts of routes that name a task, read it, and choose the fields of lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import Path, Query

from headway.core.errors import JobNotFound
from headway.core.job import JobId, JobRecord
from headway.server.auth import Principal
from headway.server.service import Service
from headway.stores.paging import get_in_steps

TaskId = Annotated[str, Path(min_length=1, max_length=64, pattern=r"^[0-9A-Za-z_-]+$", description="The task's id.")]
Include = Annotated[
    str | None,
    Query(
        pattern=r"^(parameters|result)(,(parameters|result))*$",
        description="`parameters`, `result` or both with a comma: show them whatever their size.",
    ),
]
Redact = Annotated[
    bool,
    Query(
        description="Hide arguments whose names are in the setting `redact`, or that the task hides. The session of a "
        "browser gets no others."
    ),
]


async def find(service: Service, caller: Principal, task_id: str) -> JobRecord:
    """Read a task that the caller may see. Raises ``JobNotFound``, also for a task of another tenant."""
    job = (await service.client.read_jobs([JobId(task_id)]))[0]
    if job is None or (caller.tenant is not None and job.tenant != caller.tenant):
        raise JobNotFound(f"no task {task_id}; it may have been removed since it ended", job_id=task_id)
    return job


async def owned(service: Service, caller: Principal, job_ids: Sequence[JobId]) -> list[JobId]:
    """Return the ids that the caller may use: all, or the tasks of its tenant for a token of one tenant."""
    if caller.tenant is None:
        return list(job_ids)
    found = get_in_steps((await service.store()).get, job_ids)
    return [job.job_id async for job in found if job is not None and job.tenant == caller.tenant]


def read_include(include: str | None) -> list[str]:
    """Return the large fields to include in a list."""
    return [] if include is None else include.split(",")
