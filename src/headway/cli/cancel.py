"""``headway cancel`` and ``headway retry``: change what becomes of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from headway.cli import render
from headway.cli.help import option
from headway.cli.operator import Operator
from headway.cli.store_access import HERE, TargetOptions, change, whole_ids
from headway.core.job import JobId, JobRecord, State

First = Annotated[str, option("The id of a job, or its last characters.", name="ID")]
More = Annotated[str, option("Further ids.", name="MORE")]
NOT_FOUND = False, "not found; it may have been pruned"


def cancel(job_id: First, /, *more: More, place: TargetOptions = HERE) -> int:
    """Cancel jobs. Queued jobs end at once; running jobs are asked to stop.

    Exits with 1 if one of them does not exist or has ended otherwise.
    """

    async def move(operator: Operator) -> tuple[list[JobId], list[State | None]]:
        ids = await _ids(operator, [job_id, *more])
        return ids, await operator.cancel(ids)

    ids, states = change(place, move)
    return print_answers(ids, [_cancelled(state) for state in states])


def retry(job_id: First, /, *more: More, place: TargetOptions = HERE) -> int:
    """Retry jobs that failed, were cancelled or are dead letters.

    Their attempts count from zero again. Exits with 1 if one of them does not
    exist, completed, or cannot be queued.
    """

    async def move(operator: Operator) -> tuple[list[JobId], list[tuple[bool, str]]]:
        ids = await _ids(operator, [job_id, *more])
        return ids, await retry_jobs(operator, ids, await operator.get(ids))

    return print_answers(*change(place, move))


async def retry_jobs(
    operator: Operator, ids: Sequence[JobId], before: Sequence[JobRecord | None]
) -> list[tuple[bool, str]]:
    """Retry jobs. Returns for each whether it was queued again, and the text to print."""
    states = await operator.retry(ids)
    return [_retried(job, state) for job, state in zip(before, states, strict=True)]


def print_answers(ids: Sequence[str], answers: Sequence[tuple[bool, str]]) -> int:
    """Print what became of each job. Returns the exit code."""
    for job_id, (_, answer) in zip(ids, answers, strict=True):
        print(f"{render.clean(job_id)}  {answer}")
    return 0 if all(done for done, _ in answers) else 1


async def _ids(operator: Operator, words: Sequence[str]) -> list[JobId]:
    return list(dict.fromkeys(await whole_ids(operator, words)))


def _cancelled(state: State | None) -> tuple[bool, str]:
    match state:
        case None:
            return NOT_FOUND
        case State.CANCELLED:
            return True, "cancelled"
        case State.EXECUTING:
            return True, "executing; it was asked to stop"
        case _:
            return False, f"{state.value} already; it cannot be cancelled"


def _retried(before: JobRecord | None, state: State | None) -> tuple[bool, str]:
    if before is None or state is None:
        return NOT_FOUND
    if not before.state.ended:
        return False, f"{before.state.value} already; there is nothing to retry"
    if state is State.COMPLETED:
        return False, "completed; it cannot be retried"
    if state.ended:
        return False, f"{state.value}; another live job has its unique key"
    return True, "queued again"
