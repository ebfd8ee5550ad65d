"""The short way of a message: chosen, counted and sent in one step, where broker and ledger are on one server."""

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

HERE = "headway:queue:here"  # Stands in a message for its queue's name. Only its last place in it is looked at.
CHUNK = 500  # Messages that are sent at once.


class BrokerPush:
    """Takes messages that an app offers on their way to the broker's lists."""

    def __init__(self, ledger: Ledger, rules: BalancerOptions, key_prefix: str) -> None:
        self._ledger = ledger
        self._rules = rules
        self._key_prefix = key_prefix

    def quiet(self) -> bool:
        """Return whether no listener follows what is published: it would see the wrong queue's name."""
        return not signals.before_task_publish.receivers and not signals.after_task_publish.receivers

    def way(self, producer: Any, message: Any) -> ListPush | None:
        """Return the way of a message, if it may be short."""
        if message.sent_event or not self.quiet():
            return None
        try:
            channel = producer.channel
        except Exception:  # The long way tries again, as Celery's settings say.
            return None
        if not isinstance(channel, Channel):
            return None
        put = vars(channel).get("_put")
        if not isinstance(put, ListPush):  # Otherwise another app's messages went this way before: pools are shared.
            put = vars(channel)["_put"] = ListPush(channel)
        return put

    @contextmanager
    def offering(
        self, put: ListPush, entry: CountedTask, gathered: list[CountedMessage] | None = None
    ) -> Generator[PushOffer]:
        """Offer a task whose message is sent on this way meanwhile; with a list, it is only gathered there."""
        put.offer = offer = PushOffer(self, entry, gathered)
        try:
            yield offer
        finally:
            put.offer = None

    def push(self, messages: Sequence[CountedMessage], *, together: bool = False) -> list[str]:
        """Send messages, all or (beyond some hundreds) in large parts; gives their queues."""
        rules, found = self._rules, list[str]()
        for first in range(0, len(messages), CHUNK):
            part = messages[first : first + CHUNK]
            if together and found:  # All go where the first part went.
                part = [message.sent_to(message.entry.fixed or found[0]) for message in part]
            try:
                found += self._ledger.push(
                    part, queues=rules.queues, measure=rules.load, key_prefix=self._key_prefix, together=together
                )
            except StoreError as problem:  # What Celery raises when its broker does not answer.
                raise OperationalError(str(problem)) from problem
        return found


class PushOffer:
    """A task that is on its way to a channel."""

    def __init__(self, post: BrokerPush, entry: CountedTask, gathered: list[CountedMessage] | None) -> None:
        self.taken = False
        self._post = post
        self._entry = entry
        self._gathered = gathered

    def take(self, channel: Any, message: Any) -> None:
        """Send its message, or gather it."""
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
    """Takes the place of a channel's own way to put a message into a list. A channel is one thread's at a time."""

    def __init__(self, channel: Any) -> None:
        self.offer: PushOffer | None = None
        self._channel = channel
        self._put = channel._put

    def __call__(self, queue: str, message: Any, **options: Any) -> Any:
        offer, self.offer = self.offer, None
        if offer is None or options.get("_publish_batch") or getattr(self._channel, "_expires", None):
            return self._put(queue, message, **options)
        return offer.take(self._channel, message)
