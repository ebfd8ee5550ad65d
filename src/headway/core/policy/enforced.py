"""The part of a policy that a store must know, since it is checked or counted together with the jobs.

Four formulas work on it, and they alone exist in every store beside core: the order key (``order.py``), the check of
caps and of the ladder, parking, and the rate step (``limits.py``, ``ladder.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from headway.core.policy.document import TENANT, Ladder, LimitRule, Policy, Reserve, Rung, TaskRule
from headway.core.policy.ladder import RunningJobs, fit_rung

SECOND_US = 1_000_000
PAUSE = "=paused:"  # Begins the keys under which paused jobs wait; no limit's key begins so.
_SHUT = LimitRule(concurrency=0)
_UNSAID = TaskRule()


@dataclass(frozen=True, slots=True)
class PauseSet:
    """What must not start: everything, or these."""

    everything: bool = False
    lanes: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()

    def names(self) -> list[str]:
        """Name what is paused, for people."""
        return [
            *(["everything"] if self.everything else []),
            *(f"lane {name}" for name in self.lanes),
            *(f"task {name}" for name in self.tasks),
            *(f"tenant {name}" for name in self.tenants),
        ]


def pausing(lane: str | None, task: str | None, tenant: str | None) -> Callable[[PauseSet], PauseSet]:
    """Return the change that pauses these, or everything if none is named."""
    if lane is None and task is None and tenant is None:
        return lambda paused: replace(paused, everything=True)
    return lambda paused: replace(
        paused,
        lanes=_with(paused.lanes, lane),
        tasks=_with(paused.tasks, task),
        tenants=_with(paused.tenants, tenant),
    )


def resuming(lane: str | None, task: str | None, tenant: str | None) -> Callable[[PauseSet], PauseSet]:
    """Return the change that resumes these, or everything that was paused in any way if none is named."""
    if lane is None and task is None and tenant is None:
        return lambda _: PauseSet()
    return lambda paused: replace(
        paused,
        lanes=tuple(known for known in paused.lanes if known != lane),
        tasks=tuple(known for known in paused.tasks if known != task),
        tenants=tuple(known for known in paused.tenants if known != tenant),
    )


def _with(known: tuple[str, ...], name: str | None) -> tuple[str, ...]:
    return known if name is None else tuple(sorted({*known, name}))


@dataclass(frozen=True, slots=True)
class EnforcedRules:
    """What a store checks. Kept in parts, each written by the process that knows it; ``join`` makes one of them."""

    limits: Mapping[str, LimitRule] = field(default_factory=dict)
    rungs: tuple[Rung, ...] = ()
    pool_reserve: Reserve | None = None
    default_weight: float = 1
    weights: Mapping[str, float] = field(default_factory=dict)
    costs_us: Mapping[str, int] = field(default_factory=dict)  # Expected microseconds by task.
    paused: PauseSet = field(default_factory=PauseSet)


def rules_of(policy: Policy) -> EnforcedRules:
    """Return the part of a policy that a store must know."""
    return EnforcedRules(
        limits=dict(policy.limits),
        rungs=policy.ladder.rungs,
        pool_reserve=policy.reserve if policy.reserve.scope == "pool" else None,
        default_weight=policy.tenants.default_weight,
        weights=dict(policy.tenants.weights),
    )


def join(parts: Iterable[EnforcedRules]) -> EnforcedRules:
    """Make one of the parts; where two name the same limit, the later stands."""
    whole = EnforcedRules()
    for part in parts:
        whole = replace(
            whole,
            limits={**whole.limits, **part.limits},
            rungs=part.rungs or whole.rungs,
            pool_reserve=part.pool_reserve or whole.pool_reserve,
            default_weight=part.default_weight if part.default_weight != 1 else whole.default_weight,
            weights={**whole.weights, **part.weights},
            costs_us={**whole.costs_us, **part.costs_us},
            paused=part.paused if part.paused != PauseSet() else whole.paused,
        )
    return whole


def lets_start(old: EnforcedRules, new: EnforcedRules) -> bool:
    """Return whether new rules may let a job start that the old ones held back: costs and weights never do."""
    return any(getattr(old, name) != getattr(new, name) for name in ("limits", "rungs", "pool_reserve", "paused"))


def limit_key(name: str, value: str) -> str:
    """Name one counter of a limit: the limit's name, or that and the value it is counted by."""
    return f"{counter_name(name)}={value}"


def parameter_key(name: str, value: str, tenant: str | None) -> str:
    """Name the counter of a limit by a parameter: one for each value, and each tenant has its own."""
    if tenant is None:
        return limit_key(name, _escaped(value))
    return limit_key(name, f"{_escaped(tenant)}={value}")


def parameter_value(key: str) -> str:
    """Return the value of the parameter that such a counter is for."""
    rest = key.partition("=")[2]
    _, of_tenant, value = rest.partition("=")
    return value if of_tenant else rest.replace("%3D", "=").replace("%25", "%")


def _escaped(text: str) -> str:
    """Write a text without equals signs, so that it ends at the next one."""
    return text.replace("%", "%25").replace("=", "%3D")


def counter_name(name: str) -> str:
    """Write a name so that the first equals sign of a key is the one that ends it."""
    return name.replace("=", "%3D")


class RuleIndex:
    """Rules, made quick to ask. It changes nothing and remembers only what follows from the rules."""

    def __init__(self, rules: EnforcedRules = EnforcedRules()) -> None:  # noqa: B008  (it is frozen)
        self.rules = rules
        self.ladder = Ladder(rules.rungs)
        self._by_task: dict[str, tuple[tuple[str, LimitRule], ...]] = {}
        # Whether no job is held back but by keys of its own.
        self.has_no_limits = not (rules.limits or rules.paused.tasks or rules.paused.tenants)

    def keys(self, task: str, tenant: str | None, bound: Iterable[str] = ()) -> list[tuple[str, LimitRule]]:
        """Return the counters that a job needs room in, with their rules: pauses first, then caps, then rates.

        ``bound`` are those that hang on its arguments, known since its submission; the others follow from
        its task and tenant, so that a limit set today holds for what was submitted yesterday.
        """
        found: list[tuple[str, LimitRule]] = []
        paused = self.rules.paused
        if task in paused.tasks:
            found.append((f"{PAUSE}task:{task}", _SHUT))
        if tenant is not None and tenant in paused.tenants:
            found.append((f"{PAUSE}tenant:{tenant}", _SHUT))
        limited: list[tuple[str, LimitRule]] = []
        for name, rule in self._of_task(task):
            limited.append((name if rule.by is None else limit_key(name, tenant or ""), rule))
        for key in bound:
            known = self.rules.limits.get(key.partition("=")[0])
            if known is not None:
                limited.append((key, known))
        if len(limited) > 1:
            limited.sort(key=lambda pair: (pair[1].count is not None, pair[0]))
        return found + limited

    def may_limit(self, task: str, tenant: str | None) -> bool:
        """Return whether a job with no bound keys may be held back by any rule of this book."""
        paused = self.rules.paused
        return bool(self._of_task(task)) or task in paused.tasks or tenant in paused.tenants

    def _of_task(self, task: str) -> tuple[tuple[str, LimitRule], ...]:
        known = self._by_task.get(task)
        if known is None:
            known = tuple(
                (name, rule)
                for name, rule in self.rules.limits.items()
                if rule.by in (None, TENANT) and applies(rule, task)
            )
            if len(self._by_task) > 10_000:
                self._by_task.clear()
            self._by_task[task] = known
        return known

    def lane_paused(self, lane: str) -> bool:
        """Return whether a whole lane is paused."""
        paused = self.rules.paused
        return paused.everything or lane in paused.lanes

    def blocked_reason(self, lane: str, rung: str | None, floor: RunningJobs | None) -> str | None:
        """Return why no job of a lane and rung can start now, whatever a worker does."""
        if self.lane_paused(lane):
            return "paused"
        return None if fit_rung(self.ladder, floor, rung)[0] else "ladder"

    def step_us(self, task: str, tenant: str) -> int:
        """Return how far apart two jobs of this task and tenant are in virtual time: expected cost by weight."""
        rules = self.rules
        cost_us = rules.costs_us.get(limit_key(task, tenant)) or rules.costs_us.get(task, SECOND_US)
        return max(1, int(cost_us / rules.weights.get(tenant, rules.default_weight)))


def task_rule(policy: Policy, task: str) -> TaskRule:
    """Return what a policy sets for a task."""
    return policy.tasks.get(task, _UNSAID)


def applies(rule: LimitRule, task: str) -> bool:
    """Return whether a limit is about a task."""
    return not rule.tasks or any(fnmatchcase(task, pattern) for pattern in rule.tasks)
