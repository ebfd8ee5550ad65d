"""A job: one request to run a task, and the table of moves its state may make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, NewType

from headway.core.errors import IllegalMove, JobError

PAYLOAD_VERSION = b"\x01"  # The first byte of every payload and result.
JobId = NewType("JobId", str)


class State(StrEnum):
    """The state of a job."""

    QUEUED = "queued"
    EXECUTING = "executing"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DEAD_LETTER = "dead_letter"

    @property
    def ended(self) -> bool:
        """Return whether only an operator's retry can move the job again."""
        return self not in _LIVE


_LIVE = frozenset({State.QUEUED, State.EXECUTING})

ENDED_STATES = tuple(state for state in State if state.ended)
FAILED_STATES = (State.FAILED, State.DEAD_LETTER)
RETRYABLE_STATES = (State.FAILED, State.CANCELLED, State.DEAD_LETTER)  # An operator may queue these jobs again.

# The one table of legal moves. Stores in SQL and Lua are tested against it.
MOVES: Mapping[State, frozenset[State]] = {
    State.QUEUED: frozenset({State.EXECUTING, State.CANCELLED}),
    State.EXECUTING: frozenset({State.QUEUED, State.COMPLETED, State.FAILED, State.CANCELLED, State.DEAD_LETTER}),
    State.COMPLETED: frozenset(),
    State.FAILED: frozenset({State.QUEUED}),
    State.CANCELLED: frozenset({State.QUEUED}),
    State.DEAD_LETTER: frozenset({State.QUEUED}),
}


def check_move(before: State, after: State) -> None:
    """Raise ``IllegalMove`` unless a job may go from one state to the other."""
    if after not in MOVES[before]:
        raise IllegalMove(f"a job in state {before.value} cannot become {after.value}", before=before, after=after)


class RetryRule(NamedTuple):
    """How long a job waits after a failed attempt, and what happens when its rung's length stops it.

    ``on_stop``: a stopped job fails, is retried on a longer rung (``retry_longer``), or completes with its partial
    result (``partial``).
    """

    backoff: str = "exponential"  # exponential | linear | fixed | policy (the policy's own rule).
    base_ms: int = 1_000
    cap_ms: int = 60_000
    jitter: float = 0.0  # The random part of the wait, 0 to 1.
    on_stop: str = "fail"  # fail | retry_longer | partial


class ClassKey(NamedTuple):
    """A class: the jobs of one lane, rung and needs, in one sorted queue. Transient jobs have classes of their own."""

    lane: str
    needs: tuple[str, ...] = ()
    rung: str | None = None
    persist: bool = True


class NewJob(NamedTuple):
    """A job as a client submits it to a store.

    ``due_at`` is a moment by any clock the client trusts. ``delay_ms`` and ``expires_ms`` count from the store's own
    clock at submission. ``digest`` identifies task and arguments when an idempotency key is used again.
    """

    job_id: JobId
    task: str
    payload: bytes
    digest: bytes
    lane: str
    max_retries: int
    timeout_ms: int
    needs: tuple[str, ...] = ()
    rung: str | None = None
    tenant: str | None = None
    retry: RetryRule | None = None
    delay_ms: int = 0
    due_at: int | None = None
    expires_ms: int | None = None
    idempotency_key: str | None = None
    idempotency_ms: int = 86_400_000
    unique_key: str | None = None
    trace_id: str | None = None
    persist: bool = True
    limits: tuple[str, ...] = ()  # The limit counters chosen by its arguments: ``name=value``.

    @property
    def class_key(self) -> ClassKey:
        needs = self.needs if len(self.needs) < 2 else tuple(sorted(self.needs))
        return ClassKey(self.lane, needs, self.rung, self.persist)


class SubmitReply(NamedTuple):
    """The id of one submitted job, or of the existing job that a key made the store return instead."""

    job_id: JobId
    deduplicated: bool = False


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of a job that did not complete it."""

    number: int
    epoch: int
    worker_id: str | None
    started_at: int
    ended_at: int
    reason: str
    error: JobError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """Everything that a store keeps about a job."""

    job_id: JobId
    seq: int
    task: str
    payload: bytes
    state: State
    lane: str
    needs: tuple[str, ...]
    rung: str | None
    tenant: str | None
    max_retries: int
    timeout_ms: int
    retry: RetryRule | None
    attempts: int
    crashes: int
    epoch: int
    submitted_at: int
    due_at: int | None  # Set while the job is delayed.
    eligible_at: int | None  # When the job last began to wait for a slot.
    started_at: int | None
    finished_at: int | None
    expires_at: int | None
    cancel_requested_at: int | None
    worker_id: str | None
    progress: float | None
    note: str | None
    result: bytes | None
    result_error: str | None
    error: JobError | None
    reason: str | None
    idempotency_key: str | None
    unique_key: str | None
    trace_id: str | None
    history: tuple[Attempt, ...]
    limits: tuple[str, ...] = ()
    blocked_by: str | None = None  # The limit counter or pause that the job waits for in a blocked queue.
    blocked_for: str | None = None  # Once it has started: why it waited in a blocked queue (limit, rate, paused),
    blocked_ms: int = 0  # and for how many milliseconds.
    assigned: str | None = None  # While it runs: the rung it was assigned.
    held: bool = False  # It is queued and waits for other jobs. ``due_at`` is then None.
    batch_id: str | None = None
    seen_at: int = 0  # When this record was read, by the store's clock.
