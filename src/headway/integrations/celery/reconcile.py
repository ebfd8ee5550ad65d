"""Compare the ledger with the messages that the broker has, and repair the ledger.

A message on its way from a queue to a worker may be in neither for a moment. Only tasks that are missing or unknown in
two scans, ``PAUSE`` seconds apart, are repaired.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from celery import Celery  # type: ignore[import-untyped]
from kombu.transport.redis import PRIORITY_STEPS

from headway.core.log_event import LogEvent
from headway.integrations.celery.ledger import Ledger, QueueLoad, member_in
from headway.integrations.celery.options import BalancerOptions

GRACE_MS = 1_000  # Milliseconds; a task that was counted more recently may still be on its way to the broker.
PAUSE = 2.0
log = logging.getLogger("headway.celery")


class BrokerScan(NamedTuple):
    """The result of one scan: members without a message, with their queue, and messages that no sender counted."""

    missing: Mapping[str, str]
    unknown: Mapping[str, tuple[str, str]]  # Member to queue and task name.


class ReconcileReport(NamedTuple):
    """The result of a reconciliation: inconsistent counts, and the numbers of dropped and adopted tasks."""

    drift: int
    dropped: int
    adopted: int
    stranded: tuple[str, ...]  # Queues where tasks wait and which no worker reads.


class BrokerScanner(Protocol):
    """Scans a broker."""

    def scan(self, loads: Iterable[QueueLoad]) -> BrokerScan: ...


class Reconciler:
    """Repairs the ledger. One node at a time does this, but two are safe."""

    def __init__(self, ledger: Ledger, rules: BalancerOptions, scanner: BrokerScanner) -> None:
        self._ledger = ledger
        self._rules = rules
        self._scanner = scanner

    def run(self) -> ReconcileReport:
        """Compare the ledger with the broker and repair it. Raises ``StoreError``."""
        loads = self._ledger.loads(self._rules.names)
        drift = self._ledger.check()
        if drift:  # Another program wrote into our keys.
            log.error(LogEvent("celery.drift", corrected=drift))
            self._ledger.reset([load.queue for load in loads])
        found = self._scanner.scan(loads)
        dropped = adopted = 0
        if found.missing or found.unknown:
            time.sleep(PAUSE)
            second = self._scanner.scan(self._ledger.loads(self._rules.names))
            missing = [member for member in found.missing if member in second.missing]
            unknown = [(member, *second.unknown[member]) for member in found.unknown if member in second.unknown]
            dropped = self._ledger.uncount(missing, "dropped") if missing else 0
            adopted = self._ledger.adopt(unknown)
            if dropped or adopted:
                log.warning(LogEvent("celery.reconciled", not_in_broker=dropped, not_counted=adopted))
        stranded = tuple(load.queue for load in loads if load.pending and load.read is False)
        if stranded:
            log.warning(LogEvent("celery.stranded", queues=", ".join(stranded), hint="no worker reads them"))
        return ReconcileReport(drift, dropped, adopted, stranded)


class RedisScanner:
    """Scans a broker on the ledger's own server: its lists and the messages that workers have not acknowledged."""

    def __init__(self, app: Celery, ledger: Ledger, rules: BalancerOptions) -> None:
        options: Mapping[str, Any] = app.conf.broker_transport_options or {}
        self._ledger = ledger
        self._rules = rules
        self._key_prefix = str(options.get("global_keyprefix", ""))
        self._unacked = f"{self._key_prefix}{options.get('unacked_key', 'unacked')}"
        sep = options.get("sep", "\x06\x16")
        steps = options.get("priority_steps", PRIORITY_STEPS)
        self._endings = ["", *(f"{sep}{step}" for step in steps if step)]

    def lists_of(self, queue: str) -> list[str]:
        """Return the keys of a queue's lists, one for each priority step."""
        return [f"{self._key_prefix}{queue}{ending}" for ending in self._endings]

    def scan(self, loads: Iterable[QueueLoad]) -> BrokerScan:
        # Read lists first. Messages move from a list to the unacknowledged ones and rarely back, so none is missed.
        listed: dict[str, tuple[str, str]] = {}
        lengths: dict[str, int] = {}
        loads = list(loads)
        for load in loads:
            lengths[load.queue] = self._ledger.length(self.lists_of(load.queue))
        held = {
            member: (queue, name)
            for member, name, queue in self._ledger.unacked(self._unacked)
            if self._rules.is_ours(queue)
        }
        waiting_held = self._known(held)
        suspects = []
        for load in loads:
            expected = lengths[load.queue] + sum(held[member][0] == load.queue for member in waiting_held)
            if expected != load.pending:
                suspects.append(load.queue)
                for key in self.lists_of(load.queue):
                    listed.update((member, (load.queue, name)) for member, name in self._ledger.listed(key))
        seen = {**held, **listed}
        missing = {
            member: queue
            for queue in suspects
            for member, age_ms in self._ledger.waiting(queue)
            if member not in seen and age_ms >= GRACE_MS
        }
        runs = {member_in(lease) for lease in self._ledger.leases()}
        counted = self._known(seen)
        unknown = {member: where for member, where in seen.items() if member not in counted and member not in runs}
        return BrokerScan(missing, unknown)

    def _known(self, members: Iterable[str]) -> set[str]:
        asked = list(members)
        return {member for member, known in zip(asked, self._ledger.known(asked), strict=True) if known}


class DepthScanner:
    """Scans any other broker, which reports only the number of messages in a queue.

    Workers take the oldest messages first, so the missing tasks of a queue are its oldest, except those in workers.
    """

    def __init__(self, app: Celery, ledger: Ledger, rules: BalancerOptions) -> None:
        self._app = app
        self._ledger = ledger
        self._rules = rules

    def scan(self, loads: Iterable[QueueLoad]) -> BrokerScan:
        missing: dict[str, str] = {}
        with self._app.connection_for_read() as connection, connection.channel() as channel:
            depths = {load.queue: self._depth(channel, load.queue) for load in loads if load.pending}
        held = set(self._ledger.held())
        for queue, depth in depths.items():
            waiting = [(member, age_ms) for member, age_ms in self._ledger.waiting(queue) if member not in held]
            surplus = len(waiting) - depth
            old = [member for member, age_ms in waiting if age_ms >= GRACE_MS]
            missing.update((member, queue) for member in old[: max(0, surplus)])
        return BrokerScan(missing, {})

    def _depth(self, channel: Any, queue: str) -> int:
        return int(self._app.amqp.queues[queue](channel).queue_declare(passive=True).message_count)
