"""Reads a policy file, and reports every problem in it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from headway.core.errors import PolicyError, PolicyProblem
from headway.core.job import RetryRule
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
from headway.core.policy.retry import BACKOFFS, DELAY_MS_MAX
from headway.core.policy.table_reader import TableReader
from headway.core.policy.units import COUNT_MAX, found, write_seconds
from headway.core.policy.units import parse_length as parse_length
from headway.core.policy.units import parse_rate as parse_rate
from headway.core.policy.writer import policy_data as policy_data
from headway.core.suggest import did_you_mean

PROMOTIONS = ("share", "absolute")
SCOPES = ("worker", "pool")
RULES = ("cap", "leave_free")
VICTIMS = ("least_elapsed", "random")
LOWERS = ("needed", "all")

LEVEL_MAX = 1_000
RETRIES_MAX = 1_000_000
# Far enough apart for any use, and close enough for order keys, which are whole microseconds.
WEIGHT_MIN, WEIGHT_MAX = 0.001, 1_000_000
GROWTH_MAX = 1_000

_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,30})?)\s*%")


def read_policy(data: Mapping[str, Any], where: str) -> Policy:
    """Return the policy in the mapping of a TOML or JSON file. Missing keys are as in the built-in policy.

    ``where`` names the file in messages. Raises ``PolicyError`` with every problem.
    """
    problems: list[PolicyProblem] = []
    policy = _read(TableReader(data, "", problems))
    if problems:
        lines = (f"{where}: {problem}" for problem in problems)
        raise PolicyError("\n".join(lines), problems=problems, where=where)
    return policy


def _read(table: TableReader) -> Policy:
    promotion = table.word("promotion", BUILT_IN.promotion, PROMOTIONS)
    lanes = _read_lanes(table)
    default = BUILT_IN.default_lane if BUILT_IN.default_lane in lanes else _last(lanes)
    default_lane = table.word("default_lane", default, list(lanes), "a lane: ")
    reserve = _read_reserve(table.table("reserve"), list(lanes))
    max_depth = table.whole("max_depth", BUILT_IN.max_depth)
    crash_limit = table.whole("crash_limit", BUILT_IN.crash_limit, least=1)
    retry, growth, growth_cap = _read_retry(table.table("retry"))
    ladder = _read_ladder(table.table("ladder"))
    tenants = _read_tenants(table.table("tenants"))
    keep = _read_keep(table.table("keep"))
    limits = {name: _read_limit(name, limit) for name, limit in table.tables("limits")}
    tasks = {name: _read_task(name, task, list(lanes), ladder) for name, task in table.tables("tasks")}
    table.close()
    return Policy(
        lanes=MappingProxyType(lanes),
        default_lane=default_lane,
        promotion=promotion,
        reserve=reserve,
        ladder=ladder,
        tenants=tenants,
        limits=MappingProxyType(limits),
        tasks=MappingProxyType(tasks),
        max_depth=max_depth,
        crash_limit=crash_limit,
        retry=retry,
        timeout_growth=growth,
        timeout_growth_cap=growth_cap,
        keep=keep,
    )


# ---------------------------------------------------------------------- the parts


def _read_lanes(table: TableReader) -> dict[str, Lane]:
    """Read the lanes. They replace all built-in lanes."""
    lanes = {name: _read_lane(lane) for name, lane in table.tables("lanes")}
    if not table.has("lanes"):
        return dict(BUILT_IN.lanes)
    if table.raw("lanes") == {}:
        table.error("lanes", "expected at least one lane")
    return lanes or dict(BUILT_IN.lanes)


def _read_lane(table: TableReader) -> Lane:
    table.need("level", f"a whole number from 0 to {LEVEL_MAX}")
    lane = Lane(
        level=table.whole("level", 0, most=LEVEL_MAX),
        weight=_weight(table, "weight"),
        max_retries=table.whole("max_retries", 3, most=RETRIES_MAX),
        timeout_ms=table.length("timeout", 600 * SECOND, least_ms=1, most_ms=DELAY_MS_MAX),
        promote_after_ms=table.lengths("promote_after", least_ms=1),
    )
    table.close()
    return lane


def _last(lanes: Mapping[str, Lane]) -> str:
    return max(lanes, key=lambda name: (lanes[name].level, name))


def _read_reserve(table: TableReader, lanes: Sequence[str]) -> Reserve:
    """Read the reserve. The built-in one does not apply without the lane that it is for."""
    usual = BUILT_IN.reserve
    given = table.texts("lanes") if table.has("lanes") else tuple(usual.lanes.intersection(lanes))
    slots = table.whole("slots", usual.slots if given else 0)
    for at, name in enumerate(given):
        if name not in lanes:
            table.error("lanes", f"expected a lane: {', '.join(lanes)}, found {name!r}{did_you_mean(name, lanes)}", at)
    if slots and not given:
        table.error("lanes", "expected the lanes that may fill the reserved slots, found none")
    reserve = Reserve(
        lanes=frozenset(given),
        slots=slots,
        scope=table.word("scope", usual.scope, SCOPES),
        rule=table.word("rule", usual.rule, RULES),
    )
    table.close()
    return reserve


def _read_retry(table: TableReader) -> tuple[RetryRule, float, float]:
    usual = BUILT_IN.retry
    rule = RetryRule(
        backoff=table.word("backoff", usual.backoff, BACKOFFS),
        cap_ms=table.length("cap", usual.cap_ms, most_ms=DELAY_MS_MAX),
        base_ms=table.length("base", usual.base_ms, most_ms=DELAY_MS_MAX),
        jitter=table.number("jitter", usual.jitter, least=0, most=1),
    )
    growth = table.number("timeout_growth", BUILT_IN.timeout_growth, least=1, most=GROWTH_MAX)
    growth_cap = table.number("timeout_growth_cap", BUILT_IN.timeout_growth_cap, least=1, most=GROWTH_MAX)
    table.close()
    return rule, growth, growth_cap


def _read_ladder(table: TableReader) -> Ladder:
    rungs: list[Rung] = []
    for row in table.rows("rungs"):
        rung = _read_rung(row)
        _check_rung(row, rung, rungs)
        rungs.append(rung)
    ladder = Ladder(
        rungs=tuple(rungs),
        victim=table.word("victim", BUILT_IN.ladder.victim, VICTIMS),
        lower=table.word("lower", BUILT_IN.ladder.lower, LOWERS),
    )
    table.close()
    return ladder


def _read_rung(table: TableReader) -> Rung:
    table.need("name", "a name")
    table.need("seconds", "a length")
    name, length_ms = table.text("name", ""), table.length("seconds", 0, least_ms=1, most_ms=DELAY_MS_MAX)
    if name in (ELASTIC, INTERACTIVE):
        table.error("name", f"expected another name: {name!r} is a duration of its own")
    limit = table.raw("limit")
    percent: float | None = None
    if isinstance(limit, str) and (match := _PERCENT.fullmatch(limit.strip())) and 0 < float(match[1]) <= 100:
        limit, percent = None, float(match[1])
    elif limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= COUNT_MAX):
        table.error("limit", f"expected a whole number of at least 1, or a part such as '60%', found {found(limit)}")
        limit = None
    table.close()
    return Rung(name, length_ms, limit, percent)


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
    tenants = Tenants(
        default_weight=_weight(table, "default_weight"),
        weights=MappingProxyType({name: _weight(weights, name) for name in weights.names()}),
        max_depth=table.whole("max_depth", 0),
        max_depths=MappingProxyType({name: depths.whole(name, 0) for name in depths.names()}),
    )
    table.close()
    return tenants


def _weight(table: TableReader, key: str) -> float:
    return table.number(key, 1, least=WEIGHT_MIN, most=WEIGHT_MAX)


def _read_keep(table: TableReader) -> Keep:
    usual = BUILT_IN.keep
    keep = Keep(
        completed_ms=table.length("completed", usual.completed_ms),
        failed_ms=table.length("failed", usual.failed_ms),
        cancelled_ms=table.length("cancelled", usual.cancelled_ms),
        dead_letter_ms=table.length("dead_letter", usual.dead_letter_ms),
        idempotency_ms=table.length("idempotency", usual.idempotency_ms),
        completed_max=table.whole("completed_max", usual.completed_max),
        failed_max=table.whole("failed_max", usual.failed_max),
        cancelled_max=table.whole("cancelled_max", usual.cancelled_max),
        dead_letter_max=table.whole("dead_letter_max", usual.dead_letter_max),
    )
    table.close()
    return keep


def _read_limit(name: str, table: TableReader) -> LimitRule:
    if "=" in name:
        table.wrong_here(f"expected a name without '=', found {name!r}")
    concurrency = table.whole("concurrency", None, least=1)
    count, period_ms = table.rate("rate")
    burst = table.whole("burst", 1, least=1)
    if table.has("burst") and not table.has("rate"):
        table.error("burst", "expected none without a rate: it is how many may start at once within one")
    if not table.has("concurrency") and not table.has("rate"):
        table.wrong_here("expected concurrency, rate or both, found neither")
    by = table.text("by", None)
    if by is not None and not by.isidentifier():
        table.error("by", f"expected the name of a parameter, or 'tenant', found {by!r}")
    scope = table.word("scope", LIMIT_SCOPES[0], LIMIT_SCOPES)
    if table.has("scope") and by in (None, TENANT):
        table.error("scope", "expected none without a parameter in by: it says whose values are counted together")
    rule = LimitRule(concurrency, count, period_ms, burst, by, table.texts("tasks"), scope)
    table.close()
    return rule


def _read_task(name: str, table: TableReader, lanes: Sequence[str], ladder: Ladder) -> TaskRule:
    if "*" in name:
        table.wrong_here("expected the name of one task: only the tasks of a limit may be a pattern")
    durations = [*(rung.name for rung in ladder.rungs), ELASTIC, INTERACTIVE]
    rule = TaskRule(
        priority=table.word("priority", None, lanes, "a lane: "),
        duration=table.word("duration", None, durations, "a rung of the ladder: "),
        timeout_ms=table.length("timeout", None, least_ms=1, most_ms=DELAY_MS_MAX),
        max_retries=table.whole("max_retries", None, most=RETRIES_MAX),
    )
    table.close()
    return rule
