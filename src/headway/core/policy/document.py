"""The policy as a value: lanes, reserve, limits, ladder, tenants, retries and retention."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from headway.core.job import RetryRule

SECOND = 1_000
HOUR = 3_600 * SECOND
DAY = 24 * HOUR

ELASTIC = "default"  # The duration of a job that declares none: it is assigned the longest rung with room.
INTERACTIVE = "interactive"  # The duration of a session, which never queues: admitted at once or denied.
TENANT = "tenant"  # The value of a limit's ``by`` for the tenant of a job, even if a parameter has this name.
LIMIT_SCOPES = ("tenant", "global")  # Whether a limit by a parameter counts each tenant's values separately.
HALTED = "halted"  # The rung of a session that was told to stop. Its budget is 0.


def _none() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Lane:
    """A priority level with its rules. Level 0 is served first.

    ``promote_after_ms``: the ages of its oldest waiting job at which the lane rises by one level each.
    """

    level: int
    weight: float
    max_retries: int
    timeout_ms: int
    promote_after_ms: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Reserve:
    """Slots that only some lanes may fill.

    ``scope``: ``slots`` is a number in each ``worker``, or in the whole ``pool`` of live workers.
    ``rule``: with ``cap`` the other lanes may fill all slots but these, wherever the lanes of the reserve run. With
    ``leave_free`` they start a job only while more than these slots are free.
    """

    lanes: frozenset[str] = frozenset({"high"})
    slots: int = 1
    scope: str = "worker"
    rule: str = "cap"

    def outside(self, lanes: Collection[str]) -> int:
        """Return how many jobs, given by their lanes, count against the slots outside the reserve."""
        return len(lanes) if self.rule == "leave_free" else sum(lane not in self.lanes for lane in lanes)


@dataclass(frozen=True, slots=True)
class Rung:
    """A duration with a limit on the jobs of this and all longer durations: a number, or a percentage of all slots."""

    name: str
    length_ms: int
    limit: int | None = None
    percent: float | None = None

    def most(self, slots: int) -> int | None:
        """Return the limit for a number of live slots, at least 1, or None for no limit."""
        if self.percent is not None:
            return max(1, int(slots * self.percent / 100 + 1e-9))
        return self.limit


@dataclass(frozen=True, slots=True)
class Ladder:
    """Durations, shortest first, and how room is made when a limit is reached.

    ``victim``: which elastic job is lowered, ``least_elapsed`` or ``random``. ``lower``: as many jobs as ``needed``, or
    ``all``.
    """

    rungs: tuple[Rung, ...] = ()
    victim: str = "least_elapsed"
    lower: str = "needed"

    def find(self, name: str | None) -> Rung | None:
        return next((rung for rung in self.rungs if rung.name == name), None)

    def longer(self, name: str | None) -> Rung | None:
        """Return the next longer rung, or None if this is the longest or not on the ladder."""
        names = [rung.name for rung in self.rungs]
        return self.rungs[names.index(name) + 1] if name in names[:-1] else None


@dataclass(frozen=True, slots=True)
class Tenants:
    """How the tenants of a class share it, and how many jobs of each may wait. A depth of 0 means no bound."""

    default_weight: float = 1
    weights: Mapping[str, float] = field(default_factory=_none)
    max_depth: int = 0  # For every tenant that ``max_depths`` does not name.
    max_depths: Mapping[str, int] = field(default_factory=_none)

    def depth_of(self, tenant: str) -> int:
        """Return how many jobs of a tenant may wait, or 0 for any number."""
        return self.max_depths.get(tenant, self.max_depth)


@dataclass(frozen=True, slots=True)
class LimitRule:
    """A limit on jobs that run at once, or on how often they start: over all jobs, or for each value of a parameter.

    ``tasks`` are names that may contain ``*``; without them the limit applies to every task. ``by`` is a parameter, or
    ``tenant``. A limit by a parameter counts each tenant's values separately, unless ``scope`` is ``global``.
    A rate allows ``count`` starts in ``period_ms``, evenly spaced except for a ``burst`` at once. Any period then has
    at most ``count + burst - 1`` starts.
    """

    concurrency: int | None = None
    count: int | None = None
    period_ms: int = 0
    burst: int = 1
    by: str | None = None
    tasks: tuple[str, ...] = ()
    scope: str = "tenant"  # Or global.

    @property
    def interval_us(self) -> int:
        """Return the microseconds between two starts, rounded up so that the rate is never exceeded."""
        return -(-self.period_ms * 1_000 // self.count) if self.count else 0


@dataclass(frozen=True, slots=True)
class TaskRule:
    """The options that the policy sets for a task, before those of its decorator. None keeps the decorator's option."""

    priority: str | None = None
    duration: str | None = None
    timeout_ms: int | None = None
    max_retries: int | None = None
    fair_by: str | None = None


@dataclass(frozen=True, slots=True)
class Keep:
    """How long a store keeps ended jobs and idempotency keys after the end, and how many jobs of each state.

    A store removes the oldest jobs of a state beyond its ``max``, however young they are. 0 means no bound.
    """

    completed_ms: int = DAY
    failed_ms: int = 7 * DAY
    cancelled_ms: int = DAY
    dead_letter_ms: int = 30 * DAY
    idempotency_ms: int = DAY
    completed_max: int = 0
    failed_max: int = 0
    cancelled_max: int = 0
    dead_letter_max: int = 0


def _built_in_lanes() -> Mapping[str, Lane]:
    return MappingProxyType(
        {
            "high": Lane(level=0, weight=6, max_retries=5, timeout_ms=300 * SECOND),
            "medium": Lane(1, 3, max_retries=3, timeout_ms=600 * SECOND, promote_after_ms=(1_200 * SECOND,)),
            "low": Lane(2, 1, max_retries=2, timeout_ms=900 * SECOND, promote_after_ms=(600 * SECOND, 1_200 * SECOND)),
        }
    )


@dataclass(frozen=True, slots=True)
class Policy:
    """Everything that decides which job runs next and what happens after a run.

    ``promotion``: with ``share`` an overdue lane gets its share of the level it has risen to. With ``absolute`` its
    aged jobs go before all jobs that came later.
    """

    lanes: Mapping[str, Lane] = field(default_factory=_built_in_lanes)
    default_lane: str = "medium"
    promotion: str = "share"
    release: str = "front"  # Where a job goes that waited for other jobs: ``front``, its own place, or ``back``.
    reserve: Reserve = field(default_factory=Reserve)
    ladder: Ladder = field(default_factory=Ladder)
    tenants: Tenants = field(default_factory=Tenants)
    limits: Mapping[str, LimitRule] = field(default_factory=_none)
    tasks: Mapping[str, TaskRule] = field(default_factory=_none)
    max_depth: int = 0  # How many jobs may wait before a submit is refused. 0: any number.
    crash_limit: int = 3
    retry: RetryRule = field(default_factory=RetryRule)
    timeout_growth: float = 1.5
    timeout_growth_cap: float = 4.0
    keep: Keep = field(default_factory=Keep)


BUILT_IN = Policy()


def reserved_slots(policy: Policy, slots: int, asked: int | None) -> int:
    """Return how many slots a worker reserves: the number asked for, or the policy's, but never all of them."""
    if policy.reserve.scope == "pool":
        return 0
    return max(0, min(policy.reserve.slots if asked is None else asked, slots - 1))
