"""Assign tasks to queues, in the one function that sends every message of an app."""

from __future__ import annotations

import logging
from typing import Any

from celery import Celery  # type: ignore[import-untyped]

from headway.core.errors import StoreError
from headway.core.log_event import LogEvent
from headway.integrations.celery.adoption.adoption import find_adoption
from headway.integrations.celery.broker_push import BrokerPush
from headway.integrations.celery.ledger import CountedTask, Ledger
from headway.integrations.celery.messages import USER_HEADER, read_message
from headway.integrations.celery.options import BalancerOptions
from headway.integrations.celery.routing_marker import BulkItem, make_queue, mark_of
from headway.integrations.celery.senders import TaskSenders
from headway.integrations.celery.sharding import shard_of

log = logging.getLogger("headway.celery")


class Router:
    """Routes tasks that have no other route to our queues. It comes after the app's own routes."""

    def __init__(self, rules: BalancerOptions) -> None:
        self._placeholder = make_queue(rules.names[0], "to_be_chosen")

    def __call__(
        self, name: str, args: Any, kwargs: Any, options: dict[str, Any], task: Any = None, **_: Any
    ) -> dict[str, Any] | None:
        if options.get("queue") or options.get("exchange") or options.get("routing_key"):
            return None
        return {"queue": self._placeholder}


class SendHook:
    """Sends a task's message. Counts a task that goes to one of our queues, unless sending it fails.

    It replaces the app's ``amqp.send_task_message``, because a router does not know a task's id, and after this
    function no other code can change the queue.
    """

    def __init__(
        self, app: Celery, rules: BalancerOptions, ledger: Ledger, sources: TaskSenders, post: BrokerPush | None
    ) -> None:
        self._app = app
        self._rules = rules
        self._ledger = ledger
        self._sources = sources
        self._post = post
        self._send: Any = None

    def __call__(self, producer: Any, name: str, message: Any, **options: Any) -> Any:
        if self._send is None:
            self._send = self._app.amqp._create_task_sender()
        queue = options.get("queue")
        mark = mark_of(queue)
        adoption = find_adoption(self._app)
        if adoption is not None and adoption.adopts_call(name, message.body[1]):
            if mark is not None:  # Its queue would be chosen here, but Headway needs none.
                options.pop("queue")
            return self._send(producer, name, message, **options)
        fixed = queue if isinstance(queue, str) else str(getattr(queue, "name", ""))
        if mark is None and not self._rules.is_ours(fixed):
            return self._send(producer, name, message, **options)
        envelope = read_message(message)
        source = self._sources.of(name, envelope)
        if source.user and USER_HEADER not in envelope.headers:
            options["headers"] = {**(options.get("headers") or {}), USER_HEADER: source.user}
        if isinstance(mark, BulkItem):
            entry, messages = mark
        else:
            fixed = "" if mark == "to_be_chosen" else fixed
            entry, messages = (
                CountedTask(envelope.member, name, source.user, fixed, self._sources.queues_of(source)),
                None,
            )
        if mark == "counted":
            return self._send_counted(entry, producer, name, message, options)
        if self._post is not None and (way := self._post.way(producer, message)) is not None:
            with self._post.offering(way, entry, messages) as offer:
                sent = self._send(producer, name, message, **options)
            if not offer.taken:  # Celery reconnected meanwhile and sent the message past the hook.
                self._count(entry._replace(fixed=entry.fixed or self._rules.names[0]))
            return sent
        options["queue"] = self._app.amqp.queues[self._count(entry)]
        return self._send_counted(entry, producer, name, message, options)

    def _send_counted(self, entry: CountedTask, producer: Any, name: str, message: Any, options: dict[str, Any]) -> Any:
        try:
            return self._send(producer, name, message, **options)
        except BaseException:
            # If the message did arrive, the task is counted again when it starts or at the next reconciliation.
            self._ledger.uncount_soon([entry.member], "refused")
            raise

    def _count(self, entry: CountedTask) -> str:
        try:
            [queue] = self._ledger.count([entry], queues=self._rules.queues, measure=self._rules.load)
        except StoreError as problem:
            if self._rules.strict:
                raise
            self._ledger.errors += 1
            log.error(LogEvent("celery.uncounted", error=str(problem)))  # noqa: TRY400 - one line is enough
            return entry.fixed or self._choose_without_loads(entry)
        return queue

    def _choose_without_loads(self, entry: CountedTask) -> str:
        """Choose a queue without knowing the loads, by the hash of the task among the queues that it may use."""
        among = entry.among or tuple(range(self._rules.queues))
        [place] = shard_of(entry.member, queues=len(among), width=1)
        return f"{self._rules.prefix}{among[place]}"
