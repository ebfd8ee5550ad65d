"""Claims that found no job and stay open. The server answers one with a lease of the next job that is submitted alone.

The lease comes with the wake-up, which saves the worker a call. If the message is lost or late, the next exchange
repeats the open claim, and a repeated claim returns the same leases.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

from headway.core.worker import WorkerState
from headway.stores.base import Exchange, ExchangeReply
from headway.stores.redis.codec import LeasedJobs
from headway.stores.redis.layout import DIRECT_LEASE, read_text

_CLOCK_DRIFT = 1.0  # Seconds by which the clocks of server and worker may differ more than at the claim.


@dataclass(slots=True)
class WaitingClaim:
    """An open claim, its time by the clocks of worker and server, and the message of the server since then."""

    claim_id: bytes
    asked: float = 0.0
    asked_at: int = 0
    message: bytes = b""


class DirectLease(NamedTuple):
    """The lease that the server gave to an open claim, and when."""

    claim_id: bytes
    now_at: int
    given: LeasedJobs


class WaitingClaims:
    """The open claims of the workers in one process."""

    def __init__(self) -> None:
        self._open: dict[str, WaitingClaim] = {}

    def any_of(self, worker_id: str | None) -> bool:
        return worker_id in self._open

    def claim(self, request: Exchange) -> WaitingClaim:
        """Return the open claim of the worker, or a new one."""
        worker_id = request.worker_id or ""
        claim = self._open.get(worker_id)
        if claim is None:
            claim = WaitingClaim(request.claim_id)
            if request.handover:  # The message may arrive before the caller reads the reply.
                self._open[worker_id] = claim
        return claim

    def record_reply(self, request: Exchange, answer: ExchangeReply, asked: float) -> None:
        """Keep a claim open that found no job. ``asked`` is when the exchange was sent."""
        worker_id = request.worker_id or ""
        claim = self._open.get(worker_id)
        if claim is None:
            return
        if request.handover and not answer.leases and not answer.more and answer.worker_state is WorkerState.ACTIVE:
            claim.asked, claim.asked_at = asked, answer.now_at
        else:
            del self._open[worker_id]

    def on_message(self, worker_id: str, message: bytes) -> None:
        """Record the lease that the server has sent to an idle worker."""
        if (claim := self._open.get(worker_id)) is not None:
            claim.message = message

    def take(self, worker_id: str, younger_ms: int) -> DirectLease | None:
        """Close a claim and return its lease, or None if the worker needs an exchange to learn of one."""
        claim = self._open.get(worker_id)
        if claim is None or not claim.message:
            return None
        message = claim.message
        told, claim_id, member = DIRECT_LEASE.unpack(message)
        now_at = int(told)
        age = time.monotonic() - claim.asked - (now_at - claim.asked_at) / 1_000  # At most.
        kind, at = read_text(message, DIRECT_LEASE.size)
        assigned, at = read_text(message, at)
        held, at = read_text(message, at)
        if (
            claim_id != claim.claim_id
            or not -_CLOCK_DRIFT < age < younger_ms / 1_000 - _CLOCK_DRIFT
            or assigned  # The rules have its budget.
        ):
            return None
        del self._open[worker_id]
        return DirectLease(
            claim_id, now_at, LeasedJobs([message[at:]], member, [b"0", held] if held else [], [kind, b"1", b""])
        )
