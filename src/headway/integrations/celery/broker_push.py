"""Choose a queue, count the task and send its message in one step, if broker and ledger share a server."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from celery import signals  # type: ignore[import-untyped]
from kombu.exceptions import OperationalError
from kombu.transport.redis import Channel
from kombu.utils.json import dumps

from headway.core.errors import StoreError
from headway.integrations.celery.ledger import CountedMessage, CountedTask, Ledger
from headway.integrations.celery.options import BalancerOptions

HERE = "headway:queue:here"  # Placeholder for the queue's name in a message. Its last occurrence is replaced.
CHUNK = 500  # Messages in one call, to bound how long the server is busy.


class BrokerPush:
    """Sends messages to the broker's lists through the ledger."""

    def __init__(self, ledger: Ledger, rules: BalancerOptions, key_prefix: str) -> None:
        self._ledger = ledger
        self._rules = rules
        self._key_prefix = key_prefix

    def quiet(self) -> bool:
        """Return whether no receiver of publish signals exists. A receiver would see the wrong queue name."""
        return not signals.before_task_publish.receivers and not signals.after_task_publish.receivers

    def way(self, producer: Any, message: Any) -> ListPush | None:
        """Return the hook of the channel, or None if Celery must send the message itself."""
        if message.sent_event or not self.quiet():
            return None
        try:
            channel = producer.channel
        except Exception:  # Celery's own send retries, as its settings say.
            return None
        if not isinstance(channel, Channel):
            return None
        put = vars(channel).get("_put")
        if not isinstance(put, ListPush):  # Apps share connection pools, so another app may have set the hook.
            put = vars(channel)["_put"] = ListPush(channel)
        return put

    @contextmanager
    def offering(
        self, put: ListPush, entry: CountedTask, gathered: list[CountedMessage] | None = None
    ) -> Generator[PushOffer]:
        """Offer a task to the hook while Celery sends it. With ``gathered``, the hook only appends its message."""
        put.offer = offer = PushOffer(self, entry, gathered)
        try:
            yield offer
        finally:
            put.offer = None

    def push(self, messages: Sequence[CountedMessage], *, together: bool = False) -> list[str]:
        """Send messages, at most ``CHUNK`` in one step. Return their queues."""
        rules, found = self._rules, list[str]()
        for first in range(0, len(messages), CHUNK):
            part = messages[first : first + CHUNK]
            if together and found:  # All parts go to the queue of the first part.
                part = [message.sent_to(message.entry.fixed or found[0]) for message in part]
            try:
                found += self._ledger.push(
                    part, queues=rules.queues, measure=rules.load, key_prefix=self._key_prefix, together=together
                )
            except StoreError as problem:  # Celery raises this error when its broker does not answer.
                raise OperationalError(str(problem)) from problem
        return found


class PushOffer:
    """A task whose message Celery is about to send to a channel."""

    def __init__(self, post: BrokerPush, entry: CountedTask, gathered: list[CountedMessage] | None) -> None:
        self.taken = False
        self._post = post
        self._entry = entry
        self._gathered = gathered

    def take(self, channel: Any, message: Any) -> None:
        """Send the message of the task, or gather it."""
        step = channel.priority(channel._get_message_priority(message, reverse=False))
        message["properties"]["delivery_info"]["routing_key"] = HERE
        before, _, behind = str(dumps(message)).rpartition(HERE)  # type: ignore[no-untyped-call]
        counted = CountedMessage(self._entry, f"{channel.sep}{step}" if step else "", before, behind)
        if self._gathered is not None:
            self._gathered.append(counted)
        else:
            self._post.push([counted])
        self.taken = True


class ListPush:
    """Replaces the method of a channel that puts a message into a list. One thread at a time uses a channel."""

    def __init__(self, channel: Any) -> None:
        self.offer: PushOffer | None = None
        self._channel = channel
        self._put = channel._put

    def __call__(self, queue: str, message: Any, **options: Any) -> Any:
        offer, self.offer = self.offer, None
        if offer is None or options.get("_publish_batch") or getattr(self._channel, "_expires", None):
            return self._put(queue, message, **options)
        return offer.take(self._channel, message)
