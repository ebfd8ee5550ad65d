"""Conditions on a report, for checks in CI: ``low.p99 > 600``."""

from __future__ import annotations

import operator
import re
from typing import NamedTuple

from headway.core.errors import ConfigError
from headway.core.policy.units import parse_length
from headway.core.suggest import did_you_mean
from headway.simulate.groups import BY, METRICS
from headway.simulate.report import ScenarioResult, SimulationReport

_OPERATORS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_FORM = re.compile(r"(?:(?P<by>[a-z]+):)?(?P<key>.+)\.(?P<metric>\w+)\s*(?P<sign>>=|<=|>|<)\s*(?P<bound>.+)")
COUNTS = ("jobs", "waiting", "busy")
TOTALS = ("busy", "reserve_idle", "never_started", "expired", "dead_letter", "timeouts", "lowered", "retried")


class Condition(NamedTuple):
    """A condition: ``by``, the group's key and the metric; ``key`` ``all`` is the whole simulation."""

    text: str
    by: str
    key: str
    metric: str
    sign: str
    bound: float


def parse_condition(text: str) -> Condition:
    """Read a condition such as ``low.p99 > 600``, ``tenant:acme.p90 > 5m`` or ``all.never_started > 0``."""
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"--fail-if takes GROUP.METRIC > NUMBER, for example 'low.p99 > 600', got {text!r}")
    by, key, metric = match["by"] or "lane", match["key"].strip(), match["metric"]
    if by not in BY:
        raise ConfigError(f"--fail-if {text!r}: groups are by {', '.join(BY)}, got {by!r}")
    known = TOTALS if key == "all" and by == "lane" else (*METRICS, *COUNTS)
    if metric not in known:
        raise ConfigError(
            f"--fail-if {text!r}: no figure {metric!r}{did_you_mean(metric, known)} (known: {', '.join(known)})"
        )
    return Condition(text, by, key, metric, match["sign"], _bound(text, match["bound"].strip()))


def failed_conditions(report: SimulationReport, conditions: list[Condition]) -> list[str]:
    """Return a line for each condition that holds, which fails the check. Only what is new is checked."""
    checked = [comparison.result for comparison in report.comparisons] or [report.base]
    failed = []
    for condition in conditions:
        for result in checked:
            value = _value(condition, result)
            if _OPERATORS[condition.sign](value, condition.bound):
                failed.append(f"{result.scenario.name}: {condition.text}, found {value:.6g}")
    return failed


def _value(condition: Condition, result: ScenarioResult) -> float:
    if condition.key == "all" and condition.by == "lane":
        if condition.metric in ("busy", "reserve_idle"):
            return float(getattr(result, condition.metric))
        return result.totals[condition.metric]
    figures = result.groups.get((condition.by, condition.key))
    if figures is None:
        known = [key for by, key in result.groups if by == condition.by]
        if condition.by == "lane" and condition.key in result.scenario.policy.lanes:
            return 0.0  # A lane of the policy that had no job.
        raise ConfigError(
            f"--fail-if {condition.text!r}: no {condition.by} {condition.key!r}"
            f"{did_you_mean(condition.key, known)} (known: {', '.join(known[:20])})"
        )
    return float(getattr(figures, condition.metric))


def _bound(text: str, bound: str) -> float:
    try:
        if bound.endswith("%"):
            return float(bound[:-1]) / 100
        try:
            return float(bound)
        except ValueError:
            return parse_length(bound) / 1_000
    except ValueError as problem:
        raise ConfigError(f"--fail-if {text!r}: {problem}") from None
