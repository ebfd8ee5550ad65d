"""Mark kombu queues for the send hook: the queue is still to be chosen, or its task is counted already."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from kombu.entity import Queue

from headway.integrations.celery.ledger import CountedMessage, CountedTask

_ATTRIBUTE = "headway_mark"


class BulkItem(NamedTuple):
    """A task of a bulk. Its entry exists already, and its message is gathered with those of the other tasks."""

    entry: CountedTask
    messages: list[CountedMessage]


Mark = Literal["to_be_chosen", "counted"] | BulkItem


def make_queue(name: str, mark: Mark | None = None) -> Any:
    """Build a queue, marked or plain. A queue "to_be_chosen" has a real name too, so that no message can be lost."""
    queue: Any = Queue(name, routing_key=name)  # type: ignore[no-untyped-call]
    if mark is not None:
        setattr(queue, _ATTRIBUTE, mark)
    return queue


def mark_of(queue: object) -> Mark | None:
    """Return a queue's mark, or None."""
    mark: Mark | None = getattr(queue, _ATTRIBUTE, None)
    return mark
