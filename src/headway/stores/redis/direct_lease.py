"""Claims that brought a worker nothing and are still open: the server answers one with the next job that comes alone.

The lease comes with the wake-up, so the worker need not ask for it. Should the message be lost, or be late, the next
exchange repeats the open claim, and a claim that is repeated gives the same leases.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from headway.core.worker import WorkerState
from headway.stores.base import Exchange, ExchangeReply
from headway.stores.redis.codec import LeasedJobs
from headway.stores.redis.layout import DIRECT_LEASE, LEASE, LeaseFlag, read_text

_DOUBT = 1.0  # Seconds by which the server's clock and ours may have gone apart since the claim.


class ParkedClaim:
    """A claim, when it was made by our clock and by the server's, and what the server has answered since."""

    __slots__ = ("asked", "asked_at", "claim_id", "message")

    def __init__(self, claim_id: bytes) -> None:
        self.claim_id = claim_id
        self.asked, self.asked_at = 0.0, 0
        self.message = b""


class DirectLease(NamedTuple):
    """What the server has leased to an open claim, and when."""

    claim_id: bytes
    now_at: int
    given: LeasedJobs


class ParkedClaims:
    """Those of the workers of one process."""

    def __init__(self) -> None:
        self._open: dict[str, ParkedClaim] = {}

    def any_of(self, worker_id: str | None) -> bool:
        return worker_id in self._open

    def claim(self, request: Exchange) -> ParkedClaim:
        """Return the claim that an exchange makes: the one its worker has left open, or a new one."""
        worker_id = request.worker_id or ""
        claim = self._open.get(worker_id)
        if claim is None:
            claim = ParkedClaim(request.claim_id)
            if request.handover:  # The message may be here before anybody reads the reply.
                self._open[worker_id] = claim
        return claim

    def answered(self, request: Exchange, answer: ExchangeReply, asked: float) -> None:
        """Keep a claim open that has brought nothing; ``asked`` is when that was sent."""
        worker_id = request.worker_id or ""
        claim = self._open.get(worker_id)
        if claim is None:
            return
        if request.handover and not answer.leases and not answer.more and answer.worker_state is WorkerState.ACTIVE:
            claim.asked, claim.asked_at = asked, answer.now_at
        else:
            del self._open[worker_id]

    def hear(self, worker_id: str, message: bytes) -> None:
        """The server has leased a job to a worker that waits."""
        if (claim := self._open.get(worker_id)) is not None:
            claim.message = message

    def take(self, worker_id: str, younger_ms: int) -> DirectLease | None:
        """Close a worker's claim with what it has brought; None if that is for an exchange to tell."""
        claim = self._open.get(worker_id)
        if claim is None or not claim.message:
            return None
        message = claim.message
        told, claim_id, member = DIRECT_LEASE.unpack(message)
        now_at = int(told)
        age = time.monotonic() - claim.asked - (now_at - claim.asked_at) / 1_000  # At most: it was asked before that.
        kind, at = read_text(message, DIRECT_LEASE.size)
        held, at = read_text(message, at)
        if (
            claim_id != claim.claim_id
            or not -_DOUBT < age < younger_ms / 1_000 - _DOUBT
            or (held and held[LEASE.at("flags")] & LeaseFlag.TERMS)  # Only the rules know these.
        ):
            return None
        del self._open[worker_id]
        return DirectLease(
            claim_id, now_at, LeasedJobs([message[at:]], member, [b"0", held] if held else [], [kind, b"1"])
        )
