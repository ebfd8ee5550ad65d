"""Tasks in the form of Django Tasks. ``tasks`` imports them, so a worker knows them."""

# pyright: reportAttributeAccessIssue=false
# (Django brings no types, and what pyright makes of its code is not always so.)

from __future__ import annotations

import os
import signal
import time
from typing import Any

from tests.integrations.django.names import task, task_finished
from tests.integrations.django.shop.models import Order


@task
def double(number: int, *, times: int = 1) -> int:
    return number * 2**times


@task(takes_context=True, queue_name="mail", priority=10)
def where(context: Any, text: str) -> dict[str, Any]:
    return {"attempt": context.attempt, "id": context.task_result.id, "text": text}


@task
async def adouble(number: int) -> int:
    return number * 2


@task
def explode() -> None:
    raise KeyError("nothing there")


@task
def odd_result() -> Any:
    return object()


@task
def give(value: Any) -> Any:
    return value


@task
def too_large() -> str:
    return "x" * (1 << 21)


@task
def not_a_number() -> float:
    return float("nan")


@task(backend="retrying", takes_context=True)
def third_time(context: Any) -> dict[str, Any]:
    """Fail twice, then return the values of the context."""
    if context.attempt < 3:
        raise LookupError(f"attempt {context.attempt}")
    result = context.task_result
    return {
        "enqueued_at": result.enqueued_at.isoformat(),
        "started_at": result.started_at.isoformat(),
        "last_attempted_at": result.last_attempted_at.isoformat(),
        "run_after": None if result.task.run_after is None else result.task.run_after.isoformat(),
        "errors": [error.traceback.splitlines()[-1] for error in result.errors],
        "worker_ids": result.worker_ids,
        "status": result.status,
        "backend": result.backend,
    }


@task(backend="hasty")
def overstay() -> str:
    time.sleep(0.6)
    return "too late"


@task
def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def write_down(task_result: Any, **_: Any) -> None:
    """Write the values of the signal into the database, from any process."""
    kinds = ",".join(error.exception_class.__name__ for error in task_result.errors)
    Order.objects.create(article=f"finished {task_result.id} {task_result.status} {kinds}".rstrip())


task_finished.connect(write_down)
