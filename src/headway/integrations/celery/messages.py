"""Read what the ledger needs from a task's message, in either of Celery's protocols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headway.integrations.celery.ledger import member_of

USER_HEADER = "headway_by"  # Names the user of a task, so that tasks which it sends belong to the same user.


class Envelope(NamedTuple):
    """A task's message before it is sent."""

    member: str
    task_id: str
    group_id: str | None
    root_id: str | None
    parent_id: str | None
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    headers: Mapping[str, Any]


def read_message(message: Any) -> Envelope:
    """Read a message that ``create_task_message`` built."""
    headers, body = message.headers or {}, message.body
    if isinstance(body, Mapping):  # Protocol 1.
        return Envelope(
            member_of(body["id"], body.get("retries")), body["id"], body.get("taskset"), None, None,
            body.get("args") or (), body.get("kwargs") or {}, headers,
        )  # fmt: skip
    return Envelope(
        member_of(headers["id"], headers.get("retries")), headers["id"], headers.get("group"),
        headers.get("root_id"), headers.get("parent_id"), body[0] or (), body[1] or {}, headers,
    )  # fmt: skip


def read_request(request: Any) -> tuple[str, str]:
    """Return the member of a request in a worker, and the queue it came from ('' if that is not known)."""
    delivery = getattr(request, "delivery_info", None) or {}
    return member_of(request.id, getattr(request, "retries", 0)), str(delivery.get("routing_key") or "")


def read_delivered(message: Any) -> str | None:
    """Return the member of a message that the worker could not turn into a request."""
    headers = message.headers or {}
    if "id" in headers:
        return member_of(headers["id"], headers.get("retries"))
    payload = message.payload if isinstance(message.payload, Mapping) else {}
    return member_of(payload["id"], payload.get("retries")) if "id" in payload else None
