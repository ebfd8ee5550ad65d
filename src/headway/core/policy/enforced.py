"""The part of a policy that a store enforces, since it checks and counts in the same transaction as the jobs.

Four formulas work on it. They alone exist in every store beside core: the order key (``order.py``), the check of limits
and of the ladder, the choice of a blocked queue, and the rate step (``limits.py``, ``ladder.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from headway.core.policy.document import TENANT, Ladder, LimitRule, Policy, Reserve, Rung, TaskRule
from headway.core.policy.ladder import RunningJobs, fit_rung
from headway.core.policy.units import write_length

SECOND_US = 1_000_000
PAUSE = "=paused:"  # The prefix of the keys that paused jobs wait for. No limit's key can begin with it.
CACHED_MAX = 10_000  # Tasks, and jobs of one kind, whose limits are cached, so that memory stays bounded.
_NO_ROOM = LimitRule(concurrency=0)
_NO_RULE = TaskRule()


@dataclass(frozen=True, slots=True)
class PauseSet:
    """What an operator has paused: everything, or some lanes, tasks and tenants."""

    everything: bool = False
    lanes: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()

    def names(self) -> list[str]:
        """Return the names of what is paused, for people."""
        return [
            *(["everything"] if self.everything else []),
            *(f"lane {name}" for name in self.lanes),
            *(f"task {name}" for name in self.tasks),
            *(f"tenant {name}" for name in self.tenants),
        ]

    def holding(self, lane: str, task: str, tenant: str | None) -> list[str]:
        """Return the names of the pauses that hold back a job."""
        own = {"everything", f"lane {lane}", f"task {task}", *([] if tenant is None else [f"tenant {tenant}"])}
        return [name for name in self.names() if name in own]


def pausing(lane: str | None, task: str | None, tenant: str | None) -> Callable[[PauseSet], PauseSet]:
    """Return the change that pauses these, or everything if none is named."""
    if lane is None and task is None and tenant is None:
        return lambda paused: replace(paused, everything=True)
    return lambda paused: replace(
        paused, lanes=_with(paused.lanes, lane), tasks=_with(paused.tasks, task), tenants=_with(paused.tenants, tenant)
    )


def resuming(lane: str | None, task: str | None, tenant: str | None) -> Callable[[PauseSet], PauseSet]:
    """Return the change that resumes these, or everything if none is named."""
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
    """The rules that a store enforces. A store keeps them in parts, one for each writer, and ``join`` merges them."""

    limits: Mapping[str, LimitRule] = field(default_factory=dict)
    rungs: tuple[Rung, ...] = ()
    pool_reserve: Reserve | None = None
    default_weight: float = 1
    weights: Mapping[str, float] = field(default_factory=dict)
    costs_us: Mapping[str, int] = field(default_factory=dict)  # Expected microseconds by task.
    paused: PauseSet = field(default_factory=PauseSet)


def rules_of(policy: Policy) -> EnforcedRules:
    """Return the part of a policy that a store enforces."""
    return EnforcedRules(
        limits=dict(policy.limits),
        rungs=policy.ladder.rungs,
        pool_reserve=policy.reserve if policy.reserve.scope == "pool" else None,
        default_weight=policy.tenants.default_weight,
        weights=dict(policy.tenants.weights),
    )


def join(parts: Iterable[EnforcedRules]) -> EnforcedRules:
    """Return the parts as one. Where two parts name the same limit, the later one counts."""
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
    """Return whether new rules may let a job start that the old ones held back. Costs and weights never do."""
    return any(getattr(old, name) != getattr(new, name) for name in ("limits", "rungs", "pool_reserve", "paused"))


def limit_key(name: str, value: str) -> str:
    """Return the key of one counter of a limit: its name and the value that it counts by."""
    return f"{counter_name(name)}={value}"


def parameter_key(name: str, value: str, tenant: str | None) -> str:
    """Return the key of a limit's counter for one value of a parameter and one tenant."""
    if tenant is None:
        return limit_key(name, _escaped(value))
    return limit_key(name, f"{_escaped(tenant)}={value}")


def parameter_value(key: str) -> str:
    """Return the parameter's value in the key of a counter."""
    rest = key.partition("=")[2]
    _, of_tenant, value = rest.partition("=")
    return value if of_tenant else rest.replace("%3D", "=").replace("%25", "%")


def _escaped(text: str) -> str:
    """Return a text without equals signs, so that the next one in a key ends it."""
    return text.replace("%", "%25").replace("=", "%3D")


def task_limit_name(task: str, rule: LimitRule) -> str:
    """Return the name of a limit of one task. A limit in the policy replaces a limit of the task with the same name."""
    kinds = ["concurrency"] if rule.concurrency is not None else []
    kinds += [f"rate/{write_length(rule.period_ms)}"] if rule.count is not None else []
    of = [*([rule.by] if rule.by else []), *(["global"] if rule.scope == "global" else [])]
    return ":".join([counter_name(task), "+".join(kinds), *of])


def counter_name(name: str) -> str:
    """Return a limit's name such that the first equals sign of a key ends it."""
    return name.replace("=", "%3D")


class RuleIndex:
    """Rules, indexed for fast queries. It caches limits and never changes the rules."""

    def __init__(self, rules: EnforcedRules = EnforcedRules()) -> None:  # noqa: B008  (it is frozen)
        self.rules = rules
        self.ladder = Ladder(rules.rungs)
        self._by_task: dict[str, tuple[tuple[str, LimitRule], ...]] = {}
        self._by_job: dict[tuple[str, str | None, tuple[str, ...]], tuple[tuple[str, LimitRule], ...]] = {}
        self._steps_us: dict[tuple[str, str], int] = {}
        # Whether a pause or the ladder can hold back all jobs of a class.
        self.may_block_classes = bool(rules.paused.everything or rules.paused.lanes or rules.rungs)
        # Whether no counter can hold back any job.
        self.has_no_limits = not (rules.limits or rules.paused.tasks or rules.paused.tenants)

    def keys(
        self, task: str, tenant: str | None, bound: tuple[str, ...] = ()
    ) -> tuple[tuple[str, LimitRule], ...]:  # fmt: skip
        """Return the counters that a job needs room in, with their rules: pauses first, then caps, then rates.

        ``bound`` are the counters chosen by the job's arguments, stored at its submission. The others follow from its
        task and tenant, so a limit set today applies to jobs that were submitted yesterday.
        """
        if self.has_no_limits:
            return ()
        job = (task, tenant, bound)
        known = self._by_job.get(job)
        if known is None:
            if len(self._by_job) > CACHED_MAX:
                self._by_job.clear()
            known = self._by_job[job] = tuple(self._find_keys(task, tenant, bound))
        return known

    def _find_keys(self, task: str, tenant: str | None, bound: tuple[str, ...]) -> list[tuple[str, LimitRule]]:
        found: list[tuple[str, LimitRule]] = []
        paused = self.rules.paused
        if task in paused.tasks:
            found.append((f"{PAUSE}task:{task}", _NO_ROOM))
        if tenant is not None and tenant in paused.tenants:
            found.append((f"{PAUSE}tenant:{tenant}", _NO_ROOM))
        limited: list[tuple[str, LimitRule]] = []
        for name, rule in self.task_limits(task):
            limited.append((name if rule.by is None else limit_key(name, tenant or ""), rule))
        for key in bound:
            known = self.rules.limits.get(key.partition("=")[0])
            if known is not None:
                limited.append((key, known))
        if len(limited) > 1:
            limited.sort(key=lambda pair: (pair[1].count is not None, pair[0]))
        return found + limited

    def may_limit(self, task: str, tenant: str | None) -> bool:
        """Return whether any rule may hold back a job without counters chosen by its arguments."""
        paused = self.rules.paused
        return bool(self.task_limits(task)) or task in paused.tasks or tenant in paused.tenants

    def task_limits(self, task: str) -> tuple[tuple[str, LimitRule], ...]:
        """Return the limits that follow from a job's task or tenant, with their names."""
        known = self._by_task.get(task)
        if known is None:
            known = tuple(
                (name, rule)
                for name, rule in self.rules.limits.items()
                if rule.by in (None, TENANT) and applies(rule, task)
            )
            if len(self._by_task) > CACHED_MAX:
                self._by_task.clear()
            self._by_task[task] = known
        return known

    def lane_paused(self, lane: str) -> bool:
        paused = self.rules.paused
        return paused.everything or lane in paused.lanes

    def blocked_reason(self, lane: str, rung: str | None, running: RunningJobs | None) -> str | None:
        """Return why no job of a lane and rung can start on any worker, or None."""
        if not self.may_block_classes:
            return None
        if self.lane_paused(lane):
            return "paused"
        if not self.ladder.rungs:
            return None
        return None if fit_rung(self.ladder, running, rung)[0] else "ladder"

    def step_us(self, task: str, tenant: str) -> int:
        """Return how far apart two jobs of a task and tenant are in virtual time: expected cost divided by weight."""
        known = self._steps_us.get((task, tenant))
        if known is None:
            if len(self._steps_us) > CACHED_MAX:
                self._steps_us.clear()
            rules = self.rules
            cost_us = rules.costs_us.get(limit_key(task, tenant)) or rules.costs_us.get(task, SECOND_US)
            known = max(1, int(cost_us / rules.weights.get(tenant, rules.default_weight)))
            self._steps_us[task, tenant] = known
        return known


def task_rule(policy: Policy, task: str) -> TaskRule:
    return policy.tasks.get(task, _NO_RULE)


def applies(rule: LimitRule, task: str) -> bool:
    return not rule.tasks or any(fnmatchcase(task, pattern) for pattern in rule.tasks)
