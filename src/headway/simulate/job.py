"""A job of a simulation: when it arrives, how long it runs, and what the policy decides by."""

from __future__ import annotations

from typing import NamedTuple

COMPLETED, FAILED, DEAD_LETTER, CANCELLED, EXPIRED = OUTCOMES = (
    "completed",
    "failed",
    "dead_letter",
    "cancelled",
    "expired",
)
ON_FAILURE = ("cancel", "run", "hold", "on_failure", "on_done")


class SimulatedJob(NamedTuple):
    """One job to replay. Lengths are milliseconds, and ``arrives_ms`` counts from the start of the simulation.

    ``run_ms`` is the length of its last attempt and ``failed_ms`` the lengths of those that failed before it.
    ``lane``, ``max_retries`` and ``timeout_ms`` are None where the policy decides.
    ``after`` names jobs and batches that it waits for. ``waited_ms`` is how long it really waited, if that is known.
    ``where`` is its line in a file, or 0. ``age_ms`` is how long it has waited already when it arrives. A job that is
    not ``counted`` fills a slot, but is in no figure: it runs already when the simulation begins.
    """

    arrives_ms: int
    run_ms: int
    task: str = "task"
    lane: str | None = None
    tenant: str | None = None
    duration: str | None = None
    needs: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    failed_ms: tuple[int, ...] = ()
    outcome: str = COMPLETED
    delay_ms: int = 0
    expires_ms: int | None = None
    max_retries: int | None = None
    timeout_ms: int | None = None
    name: str | None = None
    batch: str | None = None
    after: tuple[str, ...] = ()
    on_failure: str = "cancel"
    waited_ms: int | None = None
    where: int = 0
    age_ms: int = 0
    counted: bool = True
