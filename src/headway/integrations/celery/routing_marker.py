"""Queues that stand for a choice: kombu's own, with a mark that only our sender reads."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from kombu.entity import Queue

from headway.integrations.celery.ledger import CountedMessage, CountedTask

_ATTRIBUTE = "headway_mark"


class BulkItem(NamedTuple):
    """A task of a bulk: its entry is made already, and its message is to be gathered with the others."""

    entry: CountedTask
    messages: list[CountedMessage]


# A queue is to be chosen, or was chosen for a task that is counted there already.
Mark = Literal["to_be_chosen", "counted"] | BulkItem


def make_queue(name: str, mark: Mark | None = None) -> Any:
    """Make a queue, marked or plain. One that is to be chosen bears a real name, so that no message can go astray."""
    queue: Any = Queue(name, routing_key=name)  # type: ignore[no-untyped-call]
    if mark is not None:
        setattr(queue, _ATTRIBUTE, mark)
    return queue


def mark_of(queue: object) -> Mark | None:
    """Read a queue's mark, if it has one."""
    mark: Mark | None = getattr(queue, _ATTRIBUTE, None)
    return mark
