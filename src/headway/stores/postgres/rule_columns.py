"""The rules that claims check, as the columns that the function takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headway.core.policy.document import ELASTIC, INTERACTIVE, TENANT
from headway.core.policy.enforced import RuleIndex, counter_name
from headway.core.policy.ladder import counts_on, rung_index
from headway.core.snapshot import Take
from headway.stores.postgres.rows import rows

NO_RUNG, ELASTIC_RUNG, SESSION_RUNG = 0, -1, -2

STEPS_KNOWN = 1_000  # Pairs of a task and a tenant, since all of them go with every exchange.

_WILDCARDS = set("*?[")

Column = Sequence[object] | None


class RuleColumns:
    """The columns of one version of the rules. It learns by task which limits apply."""

    def __init__(self, rule_index: RuleIndex) -> None:
        self._rule_index = rule_index
        rules = rule_index.rules
        reserve = rules.pool_reserve
        self.binding = not rule_index.has_no_limits or bool(rules.rungs) or reserve is not None
        limits = list(rules.limits.items())
        self._numbers = {name: number for number, (name, _) in enumerate(limits, 1)}
        # By stored name of a task: the numbers of its limits, as an array's text. A task that no rule names has the
        # limits of all tasks, unless a pattern may match it; then the function asks for it.
        self._tasks: dict[str, str] = {}
        named = {pattern for _, rule in limits for pattern in rule.tasks}
        exact = {task for task in named if not _WILDCARDS & set(task)}
        self._default = self._limits_of("") if exact == named else None
        self.learn(rows.text(task) or "" for task in exact)
        self._rules: list[Column] = [None] * 6
        if limits:
            self._rules = [
                [name for name, _ in limits],
                [counter_name(name) for name, _ in limits],
                [rule.concurrency for _, rule in limits],
                [None if rule.count is None else rule.interval_us for _, rule in limits],
                [rule.burst for _, rule in limits],
                [rule.by == TENANT for _, rule in limits],
            ]
        # By stored names of a task and a tenant: how far apart two of their jobs are. Released jobs need it.
        self._steps: dict[tuple[str, str], int] = {}
        self._paused: list[Column] = [_texts(rules.paused.tasks), _texts(rules.paused.tenants)]
        self._ladder: list[Column] = [None] * 3
        if rules.rungs:
            self._ladder = [
                [rung.name for rung in rules.rungs],
                [rung.limit for rung in rules.rungs],
                [rung.percent for rung in rules.rungs],
            ]
        self._pool: tuple[int | None, Column] = (None, None)
        if reserve is not None:
            self._pool = (reserve.slots, sorted(reserve.lanes))

    @property
    def columns(self) -> Sequence[object]:
        if self._rule_index.has_no_limits:
            known: Sequence[object] = (None, None, None)
        else:
            known = (list(self._tasks), list(self._tasks.values()), self._default)
        return (*self._rules, *known, *self._paused, *self._ladder, *self._pool, *self.steps)

    @property
    def steps(self) -> Sequence[Column]:
        """How far apart two jobs of a task and a tenant are, where the function has asked for it."""
        if not self._steps:
            return (None, None, None)
        tasks, tenants = zip(*self._steps, strict=True)
        return (tasks, tenants, list(self._steps.values()))

    @property
    def rungs(self) -> Column:
        """The names of the rungs, shortest first."""
        return self._ladder[0]

    @property
    def uncounted_lanes(self) -> Column:
        """The lanes whose jobs do not count against the pool; None without a reserve of the pool."""
        reserve = self._rule_index.rules.pool_reserve
        return None if reserve is None else [] if reserve.rule == "leave_free" else sorted(reserve.lanes)

    def learn(self, tasks: Iterable[str]) -> None:
        """Look up the limits of tasks by the names that the store keeps."""
        for task in tasks:
            self._tasks[task] = self._limits_of(rows.read_text(task) or "")

    def learn_steps(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Look up how far apart two jobs of a task and a tenant are, by the names that the store keeps."""
        if len(self._steps) >= STEPS_KNOWN:
            self._steps.clear()
        for task, tenant in pairs:
            step_us = self._rule_index.step_us(rows.read_text(task) or "", rows.read_text(tenant) or "")
            self._steps[task, tenant] = step_us

    def _limits_of(self, task: str) -> str:
        return "{" + ",".join(str(self._numbers[name]) for name, _ in self._rule_index.task_limits(task)) + "}"

    def of_takes(self, takes: Sequence[Take]) -> tuple[Column, Column]:
        """Return for each take the rung of its class on the ladder, and whether its jobs count against the pool."""
        ladder, uncounted = self._rule_index.ladder, self.uncounted_lanes
        return (
            [self._rung(take.key.rung) for take in takes] if ladder.rungs else None,
            None if uncounted is None else [take.key.lane not in uncounted for take in takes],
        )

    def _rung(self, name: str | None) -> int:
        ladder = self._rule_index.ladder
        if not counts_on(ladder, name):
            return NO_RUNG
        if name in (ELASTIC, INTERACTIVE):
            return ELASTIC_RUNG if name == ELASTIC else SESSION_RUNG
        return (rung_index(ladder, name) or 0) + 1


def _texts(values: Iterable[str]) -> Column:
    return [rows.text(value) for value in values] or None
