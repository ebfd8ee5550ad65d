"""Checks a policy before it is applied: what it guarantees, and which rules will surprise an operator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from headway.core.policy.document import LimitRule, Policy
from headway.core.policy.guarantees import Guarantee, Pool, best_level, guarantees_of
from headway.core.policy.table_reader import key_path
from headway.core.policy.units import plural, write_length, write_rate


@dataclass(frozen=True, slots=True)
class OfferedLoad:
    """The known load, in seconds of slot time a second.

    By rung, by lane, and by limit: a limit's name, or ``name=value`` for one value that it counts by.
    """

    rungs: Mapping[str, float] = field(default_factory=dict)
    lanes: Mapping[str, float] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)


class Finding(NamedTuple):
    """A warning about a policy. ``code`` is stable; ``key`` is the path in the file."""

    code: str
    key: str
    text: str


@dataclass(frozen=True, slots=True)
class PolicyReport:
    """The result of a check: the guarantee of each lane in the order of service, and the warnings."""

    guarantees: tuple[Guarantee, ...]
    findings: tuple[Finding, ...]


def check_policy(policy: Policy, *, slots: int, workers: int = 1, load: OfferedLoad | None = None) -> PolicyReport:
    """Check a policy for ``workers`` workers with ``slots`` slots each, and for the load if it is known."""
    pool = Pool(policy, slots, workers)
    guarantees = tuple(guarantees_of(policy, pool))
    findings = [
        *_check_lanes(policy, pool, guarantees),
        *_check_reserve(policy, pool),
        *_check_ladder(policy, pool),
        *_check_limits(policy, pool),
        *_check_rest(policy),
        *(() if load is None else _check_load(policy, pool, load)),
    ]
    return PolicyReport(guarantees, tuple(findings))


def _check_lanes(policy: Policy, pool: Pool, guarantees: Iterable[Guarantee]) -> Iterator[Finding]:
    if policy.promotion == "absolute":
        yield Finding(
            "absolute",
            "promotion",
            "with absolute promotion one old backlog goes before all new jobs of every lane; "
            "use 'share' to give an aged lane its share instead",
        )
    best = best_level(policy, policy.lanes)
    for sure in guarantees:
        lane, rise = policy.lanes[sure.lane], sure.level - best
        reached = len(lane.promote_after_ms) >= rise
        if sure.after_ms is None and reached:
            yield Finding("starves", "reserve", f"lane {sure.lane} can wait for ever: {_shut_out(policy, pool)}")
        elif sure.after_ms is None:
            yield Finding(
                "starves",
                key_path("lanes", sure.lane, "promote_after"),
                f"lane {sure.lane} can wait for ever while better lanes have work: it never rises to level {best}, "
                f"for which it needs {plural(rise, 'threshold')}",
            )
        useful = lane.level if policy.promotion == "absolute" else rise
        if len(lane.promote_after_ms) > useful:
            yield Finding(
                "threshold_unused",
                f"{key_path('lanes', sure.lane, 'promote_after')}[{useful}]",
                f"lane {sure.lane} has nowhere to rise at its {plural(len(lane.promote_after_ms), 'threshold')}: "
                f"{plural(useful, 'level')} above it",
            )


def _shut_out(policy: Policy, pool: Pool) -> str:
    if pool.kept == pool.total:
        return "the reserve leaves it no slot"
    return f"with {policy.reserve.rule!r} it never starts while lanes of the reserve fill every slot that becomes free"


def _check_reserve(policy: Policy, pool: Pool) -> Iterator[Finding]:
    reserve = policy.reserve
    if not reserve.slots or not pool.inside:
        return
    if not pool.outside:
        yield Finding("reserve_unused", "reserve.lanes", "every lane is in the reserve, so it keeps no lane out")
        return
    if reserve.scope == "worker" and reserve.slots >= pool.slots:
        text = f"a worker never reserves all its slots: {pool.slots - 1} of {pool.slots} will be reserved"
        yield Finding("reserve_too_large", "reserve.slots", text)
    elif reserve.scope == "pool" and reserve.slots >= pool.total:
        text = f"the reserve takes all {plural(pool.total, 'slot')} and leaves none to {', '.join(pool.outside)}"
        yield Finding("reserve_too_large", "reserve.slots", text)
    worst = max(policy.lanes[name].level for name in pool.inside)
    better = ", ".join(sorted(name for name in pool.outside if policy.lanes[name].level < worst))
    if better:
        names = ", ".join(sorted(pool.inside))
        text = f"slots are reserved for {names}, but other lanes are served before: {better}"
        yield Finding("reserve_inverted", "reserve.lanes", text)


def _check_ladder(policy: Policy, pool: Pool) -> Iterator[Finding]:
    least: int | None = None
    slots = plural(pool.total, "slot")
    for at, rung in enumerate(policy.ladder.rungs):
        most, key = rung.most(pool.total), f"ladder.rungs[{at}].limit"
        if most is None:
            continue
        if at and most >= pool.total:
            text = f"rung {rung.name} may take all {slots}, so its limit keeps none for shorter work"
            yield Finding("limit_unused", key, text)
        elif least is not None and most > least:
            text = f"with {slots} rung {rung.name} may take {most}, but a shorter rung {least}, which limits both"
            yield Finding("limits_cross", key, text)
        least = most if least is None else min(least, most)


def _check_limits(policy: Policy, pool: Pool) -> Iterator[Finding]:
    for name, rule in policy.limits.items():
        if rule.concurrency is not None and rule.concurrency >= pool.total:
            text = f"limit {name} can never be reached: {rule.concurrency} jobs at once on {plural(pool.total, 'slot')}"
            yield Finding("limit_unused", key_path("limits", name, "concurrency"), text)
        if rule.count is not None and rule.burst > rule.count:
            rate = write_rate(rule.count, rule.period_ms)
            text = f"limit {name} lets {rule.burst} jobs start at once, more than its rate of {rate}"
            yield Finding("burst_over_rate", key_path("limits", name, "burst"), text)


def _check_rest(policy: Policy) -> Iterator[Finding]:
    for name, rule in policy.tasks.items():
        rung = policy.ladder.find(rule.duration)
        if rung is not None and rule.timeout_ms is not None and rule.timeout_ms > rung.length_ms:
            text = f"task {name} is stopped after the {write_length(rung.length_ms)} of its rung {rung.name}"
            yield Finding("timeout_unused", key_path("tasks", name, "timeout"), f"{text}, before its timeout")
    if policy.retry.base_ms > policy.retry.cap_ms:
        text = f"every retry waits the cap of {write_length(policy.retry.cap_ms)}, because the base is longer"
        yield Finding("backoff_flat", "retry.base", text)


def _check_load(policy: Policy, pool: Pool, load: OfferedLoad) -> Iterator[Finding]:
    """Compare limits with the load. A limit below it makes its queue grow without end, whatever the order."""
    rungs = policy.ladder.rungs
    for at, rung in enumerate(rungs):
        most = rung.most(pool.total)
        offered = sum(load.rungs.get(longer.name, 0.0) for longer in rungs[at:])
        if most is not None and offered > most:
            yield _overload(f"ladder.rungs[{at}].limit", f"rung {rung.name} and longer", offered, most)
    for name, offered in load.limits.items():
        limit, one_value, _ = name.partition("=")
        rule = policy.limits.get(limit, LimitRule())
        if rule.concurrency is not None and (one_value or rule.by is None) and offered > rule.concurrency:
            yield _overload(key_path("limits", limit, "concurrency"), f"limit {name}", offered, rule.concurrency)
    everything = sum(load.lanes.values())
    outside = sum(load.lanes.get(name, 0.0) for name in pool.outside)
    if everything > pool.total:
        yield _overload("", "all lanes", everything, pool.total)
    elif pool.kept and outside > pool.total - pool.kept:
        yield _overload("reserve.slots", "lanes outside the reserve", outside, pool.total - pool.kept)


def _overload(key: str, what: str, offered: float, most: int) -> Finding:
    text = f"the load on {what} is {offered:.3g} slots, and {most} may be used: waits grow without end"
    return Finding("below_load", key, text)
