"""The targets, and the verdict of a run on each: reached, missed, or not measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.features.table import FEATURES

Rows = dict[str, dict[str, Any]]

ENOUGH = 0.9  # From this busy share on, the store or machine is the limit.


@dataclass(frozen=True)
class Verdict:
    """A verdict on one target. ``ratio``: the measured value relative to the target, where more than 1 is better."""

    target: str
    asked: str
    measured: str
    ratio: float | None
    outcome: str  # reached | missed | not measured | not judged, and why

    def as_row(self) -> dict[str, Any]:
        return asdict(self)


def verdicts(rows: Rows, others: dict[str, Any] | None = None) -> list[Verdict]:
    """Return the verdicts on one run. ``others`` are the figures that belong to no contender."""
    return [*_redis(rows), *_postgres(rows), *_sqlite(rows), *_everywhere(rows), _plan(others or {})]


def _redis(rows: Rows) -> Iterator[Verdict]:
    ours, peers = _ours(rows, "redis"), _peers(rows, "redis")
    yield _times("Redis: drain", ours, "drain", peers, 10)
    yield _at_most("Redis: worker CPU of a job", ours, "drain_worker_us", 25, "µs")
    yield _at_most("Redis: store CPU of a job", ours, "drain_store_us", 15, "µs")
    yield _times("Redis: bulk enqueue", ours, "bulk", peers, 10)
    yield _times("Redis: one-by-one enqueue", ours, "enqueue", peers, 1.3)
    yield _not_above("Redis: start latency p50", ours, "p50_ms", peers)
    yield _not_above("Redis: start latency p99", ours, "p99_ms", peers)
    yield _at_least("Redis: naps, share of the ideal", ours, "naps", 0.97)


def _postgres(rows: Rows) -> Iterator[Verdict]:
    ours, peers = _ours(rows, "postgres"), _peers(rows, "postgres")
    pgqueuer = {name: row for name, row in peers.items() if name == "pgqueuer"}
    yield _times("PostgreSQL: drain", ours, "drain", pgqueuer, 3)
    yield _at_least("PostgreSQL: last tenth against the first", ours, "tenths_alone", 0.8)
    yield _at_least("PostgreSQL: the same beside an idle transaction", ours, "tenths_idle_in_transaction", 0.8)
    yield _times("PostgreSQL: bulk enqueue", ours, "bulk", peers, 2)
    yield _times("PostgreSQL: one-by-one enqueue", ours, "enqueue", peers, 1)
    yield _not_above("PostgreSQL: start latency p50", ours, "p50_ms", peers)
    yield _not_above("PostgreSQL: start latency p99", ours, "p99_ms", peers)


def _sqlite(rows: Rows) -> Iterator[Verdict]:
    ours, peers = _ours(rows, "sqlite"), _peers(rows, "sqlite")
    for title, name in (("SQLite: drain, as durable", "huey (sqlite, fsync)"), ("SQLite: drain", "huey (sqlite)")):
        yield _times(title, ours, "drain", {name: peers[name]} if name in peers else {}, 10)
    yield _at_most("SQLite: CPU of a job in all", ours, "drain_worker_us", 30, "µs")


def _everywhere(rows: Rows) -> Iterator[Verdict]:
    for store, title in (("redis", "Redis"), ("postgres", "PostgreSQL"), ("sqlite", "SQLite")):
        ours = _ours(rows, store)
        yield _at_least(f"{title}: deep queue against shallow", _share(ours, "deep", "shallow"), "deep", 0.8)
        yield _at_least(f"{title}: drain of a deep queue", _share(ours, "deep_drain", "usual_drain"), "deep_drain", 0.8)
        yield _two_workers(f"{title}: two workers against one", ours)
        yield _at_most(f"{title}: idle worker, memory", ours, "idle_mib", 60, "MiB")
        yield _at_most(f"{title}: idle worker, CPU", _percent(ours, "idle_cpu"), "idle_cpu", 1, "%")
        if store != "sqlite":
            yield _at_most(f"{title}: idle worker, store operations", ours, "idle_ops", 3, "/s")
        for name, feature in FEATURES.items():
            if feature.most is not None:
                yield _at_most(f"{title}: {feature.title}", ours, f"feature_{name}", feature.most, "× plain")


def _plan(others: dict[str, Any]) -> Verdict:
    costs = others.get("plan_us") or others.get("policy", {}).get("plan_us", {})
    return _at_most(
        "Plan over 200 classes", {f"{name}".split()[0]: cost for name, cost in costs.items()}, "200", 200, "µs"
    )


def _ours(rows: Rows, store: str) -> dict[str, Any]:
    return next((row for row in rows.values() if row["ours"] and row["store"] == store), {})


def _peers(rows: Rows, store: str) -> Rows:
    return {name: row for name, row in rows.items() if not row["ours"] and row["store"] == store}


def best_peer(peers: Rows, figure: str, best: Callable[..., str] = max) -> str | None:
    """Return the name of the peer with the best figure."""
    named = [name for name, row in peers.items() if figure in row]
    return best(named, key=lambda name: peers[name][figure]) if named else None


def _times(target: str, ours: dict[str, Any], figure: str, peers: Rows, times: float) -> Verdict:
    """Judge whether the figure is at least this many times that of the fastest peer."""
    best = best_peer(peers, figure)
    asked = f"{times:g} × {best or 'the best peer'}"
    if best is None or figure not in ours:
        return Verdict(target, asked, _shown(ours.get(figure)), None, "not measured")
    held = peers[best][figure]
    found = ours[figure] / held
    measured = f"{ours[figure]:,.0f}/s against {held:,.0f}/s: {found:.2f} ×"
    return Verdict(target, asked, measured, found / times, _outcome(found >= times))


def _not_above(target: str, ours: dict[str, Any], figure: str, peers: Rows) -> Verdict:
    best = best_peer(peers, figure, min)
    asked = f"not above {best or 'the best peer'}"
    if best is None or figure not in ours:
        return Verdict(target, asked, _shown(ours.get(figure)), None, "not measured")
    held = peers[best][figure]
    measured = f"{ours[figure]:.2f} ms against {held:.2f} ms"
    return Verdict(target, asked, measured, held / ours[figure], _outcome(ours[figure] <= held))


def _at_most(target: str, ours: dict[str, Any], figure: str, most: float, unit: str) -> Verdict:
    asked = f"at most {most:g} {unit}"
    if figure not in ours:
        return Verdict(target, asked, "—", None, "not measured")
    found = ours[figure]
    ratio = most / found if found else None
    return Verdict(target, asked, f"{found:.2f} {unit}", ratio, _outcome(found <= most))


def _at_least(target: str, ours: dict[str, Any], figure: str, least: float) -> Verdict:
    asked = f"at least {least:.0%}"
    if figure not in ours:
        return Verdict(target, asked, "—", None, "not measured")
    found = ours[figure]
    return Verdict(target, asked, f"{found:.1%}", found / least, _outcome(found >= least))


def _two_workers(target: str, ours: dict[str, Any]) -> Verdict:
    """Judge two workers beside one, unless one already keeps the store or the machine busy."""
    asked = "at least 1.5 ×"
    if "drain" not in ours or "two" not in ours:
        return Verdict(target, asked, "—", None, "not measured")
    found = ours["two"] / ours["drain"]
    outcome = _outcome(found >= 1.5)
    if found < 1.5 and ours["store"] == "redis" and ours["two_store_share"] >= ENOUGH:
        outcome = f"not judged: the store is the limit ({ours['two_store_share']:.0%} of its core)"
    elif found < 1.5 and ours["two_machine_share"] >= ENOUGH:
        outcome = f"not judged: the machine is the limit ({ours['two_machine_share']:.0%} busy)"
    busy = f"machine {ours['two_machine_share']:.0%} busy"
    measured = f"{ours['two']:,.0f}/s against {ours['drain']:,.0f}/s: {found:.2f} ×, {busy}"
    return Verdict(target, asked, measured, found / 1.5, outcome)


def _share(ours: dict[str, Any], figure: str, of: str) -> dict[str, Any]:
    return {figure: ours[figure] / ours[of]} if figure in ours and of in ours else {}


def _percent(ours: dict[str, Any], figure: str) -> dict[str, Any]:
    return {figure: ours[figure] * 100} if figure in ours else {}


def _shown(value: float | None) -> str:
    return "—" if value is None else f"{value:,.4g}"


def _outcome(reached: bool) -> str:
    return "reached" if reached else "missed"
