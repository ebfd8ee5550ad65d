"""The lane and the need that a queue and a priority of Celery become."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from headway.core.policy.document import Policy

NEED = "queue:"  # Before the name of a queue: what its jobs need, and what `headway worker -Q` offers.
PRIORITIES = 10  # Celery's priorities are 0 to 9.
_BEST, _WORST = 3, 7  # Ranks below the first become the best lane, ranks from the second on the worst.
_LOW_IS_BEST = ("redis", "rediss", "valkey", "valkeys", "sentinel", "unix")  # Transports on which 0 goes first.


class QueueLine(NamedTuple):
    """One line of the map that a worker logs when it starts."""

    queue: str
    lane: str
    tasks: int


class QueueMap:
    """Turns queues and priorities into lanes and needs. ``lanes`` has the lanes that the app chose for queues."""

    def __init__(self, lanes: Mapping[str, str]) -> None:
        self._lanes = dict(lanes)

    def needs(self, queue: str) -> tuple[str, ...]:
        return (f"{NEED}{queue}",) if queue else ()

    def lane(self, queue: str, priority: int | None, policy: Policy, transport: str) -> str | None:
        """Return the lane of a job, or None if the policy decides."""
        if priority is not None:
            return lane_of_priority(priority, policy, transport)
        chosen = self._lanes.get(queue)
        return chosen if chosen is not None else queue if queue in policy.lanes else None

    def lines(self, tasks: Mapping[str, str], policy: Policy, queues: Iterable[str]) -> list[QueueLine]:
        """Return the map of all queues. ``tasks`` has the queue of each task."""
        found = dict.fromkeys([*queues, *tasks.values()])
        return [
            QueueLine(
                queue,
                self.lane(queue, None, policy, "") or policy.default_lane,
                sum(theirs == queue for theirs in tasks.values()),
            )
            for queue in found
        ]


def is_low_best(transport: str) -> bool:
    """Return whether 0 is the best priority of a transport. On RabbitMQ the best is 9."""
    return transport.partition("+")[0] in _LOW_IS_BEST


def lane_of_priority(priority: int, policy: Policy, transport: str) -> str:
    """Return the lane of a priority of Celery. Which end of the priorities is the best depends on the transport."""
    rank = min(max(int(priority), 0), PRIORITIES - 1)
    return lane_of_rank(rank if is_low_best(transport) else PRIORITIES - 1 - rank, policy)


def lane_of_rank(rank: int, policy: Policy) -> str:
    """Return the lane of a rank from 0, the best, to 9: the best lane, the default lane or the worst."""
    lanes = sorted(policy.lanes, key=lambda name: policy.lanes[name].level)
    if rank < _BEST:
        return lanes[0]
    return lanes[-1] if rank >= _WORST else policy.default_lane


def transport_of(app: Any) -> str:
    """Return the transport of an app's broker, such as ``redis`` or ``amqp``."""
    urls = app.conf.broker_write_url or app.conf.broker_url or ""
    first = urls if isinstance(urls, str) else next(iter(urls), "")
    return first.partition("://")[0].lower()


def routed_queue(app: Any, name: str) -> str:
    """Return the queue to which the app's routes and the task's options send a task."""
    task = app.tasks.get(name)
    options = {} if task is None else {k: v for k, v in task._get_exec_options().items() if v is not None}
    routed = app.amqp.router.route(options, name, (), {}, task)
    return queue_name(app, routed.get("queue"), routed.get("routing_key"))


def queue_name(app: Any, queue: Any, routing_key: str | None = None) -> str:
    """Return the name of a queue that is given by name, as an object, or not at all."""
    if queue is None:
        return str(routing_key or app.conf.task_default_queue)
    return str(getattr(queue, "name", queue))


def known_queues(app: Any) -> list[str]:
    """Return the queues that the app's settings name."""
    return list(app.amqp.queues)
