"""Quotas of a token in one server process: how often it submits, and how much it holds open."""

from __future__ import annotations

import math
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headway.client.settings import UNLIMITED, Settings
from headway.core.policy.units import parse_rate
from headway.security.tickets import TICKET_MS
from headway.server.auth import Principal
from headway.server.problems import Problem

TOKENS_KEPT = 10_000  # Tokens whose rates a process tracks.


@dataclass(slots=True)
class Bucket:
    """A token bucket. It fills at ``per_second`` up to ``capacity``, and each submit takes one token.

    A bulk larger than the capacity needs a full bucket. The bucket must then refill beyond the debt.
    """

    capacity: float
    per_second: float
    level: float
    filled: float

    @classmethod
    def of(cls, rate: str, now: float) -> Bucket:
        count, period_ms = parse_rate(rate)
        return cls(count, count * 1_000 / period_ms, count, now)

    def take(self, number: int, now: float, *, spend: bool = True) -> float:
        """Take this many tokens and return 0.0, or take none and return the seconds until they are available.

        Without ``spend`` only check whether they are available.
        """
        self.level = min(self.capacity, self.level + (now - self.filled) * self.per_second)
        self.filled = now
        wanted = min(number, self.capacity)
        if self.level < wanted:
            return (wanted - self.level) / self.per_second
        self.level -= number if spend else 0
        return 0.0


class Quotas:
    """Counts what each token uses. Callers without a token, on a server without tokens, have no quota.

    Each process counts for itself, so with N processes a token has up to N times as much.
    """

    def __init__(self, settings: Callable[[], Settings], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._buckets: OrderedDict[tuple[str, str], Bucket] = OrderedDict()
        self._held: Counter[str] = Counter()
        self._tickets: dict[str, deque[float]] = {}  # By token: when its unused tickets expire.

    def submit(self, caller: Principal, number: int = 1, *, spend: bool = True) -> None:
        """Count this many submits, or refuse all of them. Raises ``Problem``. Without ``spend`` only check them."""
        rate = caller.rate or self._settings().token_rate
        if caller.token_id is None or rate == UNLIMITED:
            return
        now, key = self._clock(), (caller.token_id, rate)
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = Bucket.of(rate, now)
            if len(self._buckets) > TOKENS_KEPT:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(key)
        if wait := bucket.take(number, now, spend=spend):
            raise Problem(
                "rate_exceeded",
                f"this token may submit {rate}; try again in {wait:.1f} s",
                headers={"Retry-After": str(math.ceil(wait))},
            )

    @contextmanager
    def hold(self, token_id: str | None) -> Iterator[None]:
        """Count a stream, a session or a long poll while it is open."""
        if token_id is None:
            yield
            return
        self._held[token_id] += 1
        try:
            yield
        finally:
            self._held[token_id] -= 1
            if not self._held[token_id]:
                del self._held[token_id]

    def check_held(self, token_id: str | None) -> None:
        """Raise ``Problem`` if a token has as many streams as it may."""
        most = self._settings().token_streams
        if token_id is not None and self._held[token_id] >= most:
            raise Problem("too_many_streams", f"this token has {most:,} streams, sessions and long polls open here")

    def open_ticket(self, token_id: str | None) -> None:
        """Count a ticket until it is used or expires. Raises ``Problem``."""
        if token_id is None:
            return
        now, most = self._clock(), self._settings().token_streams
        tickets = self._tickets.setdefault(token_id, deque())
        while tickets and tickets[0] <= now:
            tickets.popleft()
        if len(tickets) >= most:
            raise Problem("too_many", f"this token has {most:,} tickets that were not used yet; each lasts a minute")
        tickets.append(now + TICKET_MS / 1_000)

    def use_ticket(self, token_id: str | None) -> None:
        """Stop counting a ticket that was used."""
        tickets = self._tickets.get(token_id or "")
        if tickets:
            tickets.popleft()
        if token_id is not None and not tickets:
            self._tickets.pop(token_id, None)
