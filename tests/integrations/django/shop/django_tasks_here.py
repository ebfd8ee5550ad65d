"""Tasks as Django Tasks declares them; ``tasks`` imports them, so that a worker knows them."""

from __future__ import annotations

from typing import Any

from tests.integrations.django.names import task


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
