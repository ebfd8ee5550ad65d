"""Send many tasks at once. One round trip chooses the queues of all tasks and counts the tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from celery import group  # type: ignore[import-untyped]
from celery.utils import uuid  # type: ignore[import-untyped]

from headway.core.errors import ConfigError
from headway.integrations.celery.balancer import Balancer
from headway.integrations.celery.ledger import CountedMessage, CountedTask, member_of
from headway.integrations.celery.messages import Envelope
from headway.integrations.celery.options import Bulk
from headway.integrations.celery.routing_marker import BulkItem, make_queue, mark_of
from headway.integrations.celery.senders import TaskSenders

_WHERE = ("queue", "exchange", "routing_key")


class _Item(NamedTuple):
    """A task of a bulk. Its entry is None if it is routed to a queue that is not balanced."""

    signature: Any
    entry: CountedTask | None


def send_bulk(balancer: Balancer, tasks: Iterable[Any], *, bulk: Bulk | None = None) -> Any:
    """Send signatures, or the tasks of a group. Return a ``GroupResult``.

    ``bulk``: use a few queues (``shard``, which leaves queues free for other senders), one queue (``together``) or all
    queues (``spread``). Tasks with a route of their own follow that route. If the broker is on the ledger's server, the
    messages are sent in the same round trip. If the broker refuses a task, that task and all later ones are not
    counted, and the broker's error is raised.
    """
    app = balancer.app
    rules = balancer.rules if bulk is None else replace(balancer.rules, bulk=bulk)
    sources = TaskSenders(app, rules)
    group_id = uuid()
    given: Iterable[Any] = getattr(tasks, "tasks", None) or [] if isinstance(tasks, group) else tasks
    signatures = [task.clone() for task in given]
    results = [_freeze(signature, group_id) for signature in signatures]
    together = rules.bulk == "together"
    items = [
        _Item(signature, _entry(balancer, sources, signature, group_id, together=together)) for signature in signatures
    ]
    post = balancer.post
    if post is not None and post.quiet() and not app.conf.task_send_sent_event:
        messages: list[CountedMessage] = []
        with app.producer_or_acquire() as producer:
            _send(producer, items, group_id, lambda entry: make_queue(rules.names[0], BulkItem(entry, messages)))
        post.push(messages, together=together)
        return app.GroupResult(group_id, results)
    entries = [item.entry for item in items if item.entry is not None]
    queues = balancer.ledger.count(entries, queues=rules.queues, measure=rules.load, together=together)
    chosen = {entry.member: queue for entry, queue in zip(entries, queues, strict=True)}
    sent: list[str] = []
    try:
        with app.producer_or_acquire() as producer:
            _send(producer, items, group_id, lambda entry: make_queue(chosen[entry.member], "counted"), sent)
    finally:
        rest = chosen.keys() - set(sent)
        if rest:
            balancer.ledger.uncount(rest, "refused")
    return app.GroupResult(group_id, results)


def _send(
    producer: Any,
    items: Sequence[_Item],
    group_id: str,
    queue_for: Callable[[CountedTask], Any],
    sent: list[str] | None = None,
) -> None:
    for place, (signature, entry) in enumerate(items):
        options = {} if entry is None else {"queue": queue_for(entry)}
        signature.apply_async(producer=producer, group_id=group_id, group_index=place, **options)
        if sent is not None and entry is not None:
            sent.append(entry.member)


def _freeze(signature: Any, group_id: str) -> Any:
    if signature.subtask_type is not None:
        raise ConfigError("a bulk is made of plain tasks; send chains, chords and groups by themselves")
    return signature.freeze(group_id=group_id)


def _entry(
    balancer: Balancer, sources: TaskSenders, signature: Any, group_id: str, *, together: bool
) -> CountedTask | None:
    fixed = _fixed(balancer, signature)
    if fixed and not balancer.rules.is_ours(fixed):
        return None
    task_id, parent = signature.options["task_id"], balancer.app.current_worker_task
    envelope = Envelope(
        member_of(task_id, 0), task_id, group_id,
        None if parent is None else parent.request.root_id, None if parent is None else parent.request.id,
        signature.args, signature.kwargs, signature.options.get("headers") or {},
    )  # fmt: skip
    source = sources.of(signature.task, envelope)
    # A bulk is sent at once, so tasks that stay together can go to the least loaded queue instead of a hashed one.
    among = () if together and not source.user else sources.queues_of(source)
    return CountedTask(envelope.member, signature.task, source.user, fixed, among)


def _fixed(balancer: Balancer, signature: Any) -> str:
    """Return the queue that a task is routed to, or '' if the balancer chooses it."""
    app = balancer.app
    task = app.tasks.get(signature.task)
    own = {} if task is None else task._get_exec_options()
    options = {
        name: value for name, value in {**own, **signature.options}.items() if name in _WHERE and value is not None
    }
    route = app.amqp.router.route(options, signature.task, signature.args, signature.kwargs, task)
    queue = route.get("queue")
    if mark_of(queue) == "to_be_chosen":
        return ""
    return str(getattr(queue, "name", None) or route.get("routing_key") or route.get("exchange"))
