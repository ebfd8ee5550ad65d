"""Tasks in a module that no ``tasks`` imports."""

from __future__ import annotations

from headway.integrations.django import io_task


@io_task
def bill(order_id: int) -> str:
    return f"billed {order_id}"


@io_task(executor="process")
def bill_apart(order_id: int) -> str:
    return f"billed {order_id} apart"


def helper(order_id: int) -> str:
    return f"no task {order_id}"
