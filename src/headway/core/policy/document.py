"""The policy: lanes, retries, retention. Data, never code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from headway.core.job import RetryRule

SECOND = 1_000
HOUR = 3_600 * SECOND
DAY = 24 * HOUR


@dataclass(frozen=True, slots=True)
class Lane:
    """A priority level with its rules. Level 0 is served first."""

    level: int
    weight: int
    max_retries: int
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Keep:
    """How long ended jobs and idempotency keys are kept, from the moment they ended."""

    completed_ms: int = DAY
    failed_ms: int = 7 * DAY
    cancelled_ms: int = DAY
    dead_letter_ms: int = 30 * DAY
    idempotency_ms: int = DAY


def _built_in_lanes() -> Mapping[str, Lane]:
    return MappingProxyType(
        {
            "high": Lane(level=0, weight=6, max_retries=5, timeout_ms=300 * SECOND),
            "medium": Lane(level=1, weight=3, max_retries=3, timeout_ms=600 * SECOND),
            "low": Lane(level=2, weight=1, max_retries=2, timeout_ms=900 * SECOND),
        }
    )


@dataclass(frozen=True, slots=True)
class Policy:
    """Everything that decides who runs and what becomes of a run."""

    lanes: Mapping[str, Lane] = field(default_factory=_built_in_lanes)
    default_lane: str = "medium"
    reserve_lanes: frozenset[str] = frozenset({"high"})
    crash_limit: int = 3
    retry: RetryRule = field(default_factory=RetryRule)
    timeout_growth: float = 1.5
    timeout_growth_cap: float = 4.0
    keep: Keep = field(default_factory=Keep)


BUILT_IN = Policy()
