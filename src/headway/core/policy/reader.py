"""Reads a policy file, and reports every problem in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from glob import escape
from types import MappingProxyType
from typing import Any

from headway.core.errors import PolicyError, PolicyProblem
from headway.core.policy import keys
from headway.core.policy.document import (
    BUILT_IN,
    ELASTIC,
    INTERACTIVE,
    LIMIT_SCOPES,
    SECOND,
    TENANT,
    Keep,
    Ladder,
    Lane,
    LimitRule,
    Policy,
    Reserve,
    Rung,
    TaskRule,
    Tenants,
)
from headway.core.policy.enforced import task_limit_name
from headway.core.policy.key_positions import FindPosition
from headway.core.policy.table_reader import TableReader, read_text
from headway.core.policy.units import COUNT_MAX, found, parse_rate, write_seconds
from headway.core.suggest import did_you_mean
from headway.core.text_position import place_in

_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,30})?)\s*%")
_USUAL_LANE = Lane(level=0, weight=1, max_retries=3, timeout_ms=600 * SECOND)


def read_policy(
    data: Mapping[str, Any], where: str, positions: Callable[[], FindPosition] = lambda: lambda key: None
) -> Policy:
    """Return the policy in the mapping of a TOML or JSON file. Missing keys are as in the built-in policy.

    ``where`` names the file in messages, and ``positions`` scans its text for the lines and columns of problems.
    Raises ``PolicyError`` with every problem.
    """
    problems: list[PolicyProblem] = []
    policy = _read(TableReader(data, "", problems))
    if problems:
        find = positions()
        problems = [problem._replace(position=find(problem.key)) for problem in problems]
        lines = (f"{place_in(where, problem.position)}: {problem}" for problem in problems)
        raise PolicyError("\n".join(lines), problems=problems, where=where)
    return policy


def _read(table: TableReader) -> Policy:
    promotion = table.read("promotion", BUILT_IN.promotion, partial(keys.word, known=("share", "absolute")))
    release = table.read("release", BUILT_IN.release, partial(keys.word, known=("front", "back")))
    lanes = _read_lanes(table)
    last = max(lanes, key=lambda name: (lanes[name].level, name))
    default = BUILT_IN.default_lane if BUILT_IN.default_lane in lanes else last
    default_lane = table.read("default_lane", default, partial(keys.word, known=list(lanes), what="a lane: "))
    reserve = _read_reserve(table.table("reserve"), list(lanes))
    bounds = table.fields(keys.POLICY, BUILT_IN)
    retries = table.table("retry")
    retry = BUILT_IN.retry._replace(**retries.fields(keys.RETRY, BUILT_IN.retry))
    growth = retries.close(retries.fields(keys.GROWTH, BUILT_IN))
    ladder = _read_ladder(table.table("ladder"))
    tenants, keep = _read_tenants(table.table("tenants")), table.table("keep")
    limits = {name: _read_limit(name, limit) for name, limit in table.tables("limits")}
    tasks = {name: _read_task(name, task, list(lanes), ladder, limits) for name, task in table.tables("tasks")}
    return table.close(
        Policy(
            lanes=MappingProxyType(lanes),
            default_lane=default_lane,
            promotion=promotion,
            release=release,
            reserve=reserve,
            ladder=ladder,
            tenants=tenants,
            retry=retry,
            keep=keep.close(Keep(**keep.fields(keys.KEEP, BUILT_IN.keep))),
            limits=MappingProxyType(limits),
            tasks=MappingProxyType(tasks),
            **bounds,
            **growth,
        )
    )


def _read_lanes(table: TableReader) -> dict[str, Lane]:
    """Read the lanes. They replace all built-in lanes."""
    lanes = {name: _read_lane(lane) for name, lane in table.tables("lanes")}
    if not table.has("lanes"):
        return dict(BUILT_IN.lanes)
    if table.raw("lanes") == {}:
        table.error("lanes", "expected at least one lane")
    return lanes or dict(BUILT_IN.lanes)


def _read_lane(table: TableReader) -> Lane:
    table.need("level", f"a whole number from 0 to {keys.LEVEL_MAX}")
    fields = table.fields(keys.LANE, _USUAL_LANE)
    return table.close(Lane(**fields, promote_after_ms=_read_thresholds(table, "promote_after")))


def _read_thresholds(table: TableReader, key: str) -> tuple[int, ...]:
    """Read a list of lengths of time, none shorter than the one before."""
    read: list[int] = []
    for at, value in table.items(key):
        note = ", like the one before it" if at else ""
        length_ms = table.check(key, value, None, partial(keys.length, least_ms=max([1, *read]), note=note), at)
        if length_ms is not None:
            read.append(length_ms)
    return tuple(read)


def _read_reserve(table: TableReader, lanes: Sequence[str]) -> Reserve:
    """Read the reserve. The built-in one does not apply without the lane that it is for."""
    usual = BUILT_IN.reserve
    given = table.texts("lanes") if table.has("lanes") else tuple(usual.lanes.intersection(lanes))
    slots = table.read("slots", usual.slots if given else 0, keys.whole)
    for at, name in enumerate(given):
        if name not in lanes:
            table.error("lanes", f"expected a lane: {', '.join(lanes)}, found {name!r}{did_you_mean(name, lanes)}", at)
    if slots and not given:
        table.error("lanes", "expected the lanes that may fill the reserved slots, found none")
    return table.close(Reserve(frozenset(given), slots, **table.fields(keys.RESERVE, usual)))


def _read_ladder(table: TableReader) -> Ladder:
    rungs: list[Rung] = []
    for row in table.rows("rungs"):
        rung = _read_rung(row)
        _check_rung(row, rung, rungs)
        rungs.append(rung)
    return table.close(Ladder(tuple(rungs), **table.fields(keys.LADDER, BUILT_IN.ladder)))


def _read_rung(table: TableReader) -> Rung:
    table.need("name", "a name")
    table.need("seconds", "a length")
    name, length_ms = table.read("name", "", read_text), table.read("seconds", 0, keys.TIMEOUT)
    if name in (ELASTIC, INTERACTIVE):
        table.error("name", f"expected another name: {name!r} is a built-in duration")
    limit, percent = table.read("limit", (None, None), _read_rung_limit)
    return table.close(Rung(name, length_ms, limit, percent))


def _read_rung_limit(value: Any) -> tuple[int | None, float | None]:
    """Return the limit of a rung as a number of jobs or as a percentage of the slots."""
    if isinstance(value, str) and (match := _PERCENT.fullmatch(value.strip())) and 0 < float(match[1]) <= 100:
        return None, float(match[1])
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= COUNT_MAX):
        return value, None
    raise ValueError(f"expected a whole number of at least 1, or a part such as '60%', found {found(value)}")


def _check_rung(table: TableReader, rung: Rung, shorter: Sequence[Rung]) -> None:
    """Check that a rung is longer than those before it and that its limit is no greater, since limits are nested."""
    if rung.name and any(rung.name == other.name for other in shorter):
        table.error("name", f"expected a name of its own, found {rung.name!r} again")
    longest_ms = max((other.length_ms for other in shorter), default=0)
    if rung.length_ms and rung.length_ms <= longest_ms:
        seconds = f"{write_seconds(longest_ms):g}"
        table.error("seconds", f"expected more than {seconds}, the rung before, found {found(table.raw('seconds'))}")
    for limit, others in (
        (rung.limit, [other.limit for other in shorter]),
        (rung.percent, [other.percent for other in shorter]),
    ):
        least = min((other for other in others if other is not None), default=None)
        if limit is not None and least is not None and limit > least:
            text = f"expected at most {least:g}, the limit of a shorter rung, found {limit:g}"
            table.error("limit", f"{text}: jobs of this rung count there too")


def _read_tenants(table: TableReader) -> Tenants:
    weights, depths = table.table("weights"), table.table("max_depths")
    return table.close(
        Tenants(
            default_weight=table.read("default_weight", 1, keys.WEIGHT),
            weights=MappingProxyType({name: weights.read(name, 1, keys.WEIGHT) for name in weights.names()}),
            max_depth=table.read("max_depth", 0, keys.whole),
            max_depths=MappingProxyType({name: depths.read(name, 0, keys.whole) for name in depths.names()}),
        )
    )


def _read_limit(name: str, table: TableReader) -> LimitRule:
    if "=" in name:
        table.wrong_here(f"expected a name without '=', found {name!r}")
    return _read_limit_rule(table, table.texts("tasks"))


def _read_limit_rule(table: TableReader, tasks: tuple[str, ...]) -> LimitRule:
    concurrency = table.read("concurrency", None, partial(keys.whole, least=1))
    count, period_ms = table.read("rate", (None, 0), parse_rate)
    burst = table.read("burst", 1, partial(keys.whole, least=1))
    if table.has("burst") and not table.has("rate"):
        table.error("burst", "expected none without a rate; a burst is how many jobs may start at once")
    if not table.has("concurrency") and not table.has("rate"):
        table.wrong_here("expected concurrency, rate or both, found neither")
    by = table.read("by", None, read_text)
    if by is not None and not by.isidentifier():
        table.error("by", f"expected the name of a parameter, or 'tenant', found {by!r}")
    scope = table.read("scope", LIMIT_SCOPES[0], partial(keys.word, known=LIMIT_SCOPES))
    if table.has("scope") and by in (None, TENANT):
        table.error("scope", "expected none without a parameter in by; a scope says whose values are counted together")
    return table.close(LimitRule(concurrency, count, period_ms, burst, by, tasks, scope))


def _read_task(
    name: str, table: TableReader, lanes: Sequence[str], ladder: Ladder, limits: dict[str, LimitRule]
) -> TaskRule:
    """Read the table of a task, and add its limits to all limits, by the names that the task's own would have."""
    if "*" in name:
        table.wrong_here("expected the name of one task: only the tasks of a limit may be a pattern")
    durations = [*(rung.name for rung in ladder.rungs), ELASTIC, INTERACTIVE]
    for row in table.rows("limits"):
        rule = _read_limit_rule(row, (escape(name),))
        if (limit := task_limit_name(name, rule)) in limits:
            row.wrong_here(f"expected no second limit named {limit!r}: two of the same kind, of which the lower counts")
        limits[limit] = rule
    return table.close(TaskRule(**table.fields(keys.task_keys(lanes, durations), TaskRule())))
