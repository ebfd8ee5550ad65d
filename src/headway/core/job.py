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
    """Where a job stands."""

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
        raise IllegalMove(f"a job that is {before.value} cannot become {after.value}", before=before, after=after)


class RetryRule(NamedTuple):
    """What becomes of an attempt that failed: how long the job waits for the next one, and what a stop makes of it.

    ``on_stop``: a job stopped by its rung's length has failed, tries again on a longer rung (``retry_longer``), or
    has completed with what there was (``partial``).
    """

    backoff: str = "exponential"  # exponential | linear | fixed; or policy, for the waits that the policy says.
    base_ms: int = 1_000
    cap_ms: int = 60_000
    jitter: float = 0.0  # The part of the wait that is random, 0 to 1.
    on_stop: str = "fail"  # fail | retry_longer | partial


class ClassKey(NamedTuple):
    """The jobs of one lane, rung and needs: one sorted line. Transient jobs have lines of their own."""

    lane: str
    needs: tuple[str, ...] = ()
    rung: str | None = None
    persist: bool = True


class NewJob(NamedTuple):
    """A job as its submitter hands it to a store.

    ``due_at`` is a moment by any clock the caller trusts; ``delay_ms`` and ``expires_ms``
    count from the store's own clock at submission. ``digest`` stands for task and arguments
    when an idempotency key is seen again.
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
    limits: tuple[str, ...] = ()  # The counters that hang on its arguments: ``name=value``.

    @property
    def class_key(self) -> ClassKey:
        needs = self.needs if len(self.needs) < 2 else tuple(sorted(self.needs))
        return ClassKey(self.lane, needs, self.rung, self.persist)


class SubmitReply(NamedTuple):
    """What became of one submitted job: its own id, or the id of the job that stands in for it."""

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
    """Everything a store knows of a job."""

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
    due_at: int | None  # Set while it is delayed.
    eligible_at: int | None  # When it last began to wait for a slot.
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
    parked: str | None = None  # While it waits for room in one of its limits, or for a pause to end: which.
    parked_for: str | None = None  # Once it has started: what it had been put aside for (limit, rate, paused),
    parked_ms: int = 0  # and for how long.
    assigned: str | None = None  # While it runs: the rung it was assigned.
    seen_at: int = 0  # When this was read, by the store's clock.
