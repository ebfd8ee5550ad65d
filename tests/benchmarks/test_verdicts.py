"""The verdicts of a benchmark on the targets follow from its figures."""

from typing import Any

from benchmarks.verdicts import Verdict, verdicts


def row(store: str, *, ours: bool = False, **figures: float) -> dict[str, Any]:
    return {"store": store, "ours": ours, "failed": {}, **figures}


def judged(target: str, **rows: dict[str, Any]) -> Verdict:
    [found] = [verdict for verdict in verdicts(rows) if verdict.target == target]
    return found


def test_a_rate_is_held_against_the_fastest_peer_of_the_same_store() -> None:
    rows = {
        "headway": row("redis", ours=True, drain=30_000),
        "slow": row("redis", drain=500),
        "fast": row("redis", drain=3_000),
        "elsewhere": row("postgres", drain=9_000),
    }
    found = judged("Redis: drain", **rows)
    assert (found.asked, found.ratio, found.outcome) == ("10 × fast", 1.0, "reached")
    rows["fast"]["drain"] = 3_001
    assert judged("Redis: drain", **rows).outcome == "missed"


def test_a_latency_is_held_against_the_lowest() -> None:
    rows = {"headway": row("redis", ours=True, p50_ms=0.8), "a": row("redis", p50_ms=1.6), "b": row("redis", p50_ms=2)}
    found = judged("Redis: start latency p50", **rows)
    assert (found.asked, found.ratio, found.outcome) == ("not above a", 2.0, "reached")
    assert judged("Redis: start latency p50", **rows | {"c": row("redis", p50_ms=0.7)}).outcome == "missed"


def test_postgresql_is_held_against_pgqueuer_where_the_target_says_so() -> None:
    rows = {
        "headway": row("postgres", ours=True, drain=24_000),
        "pgqueuer": row("postgres", drain=8_000),
        "other": row("postgres", drain=20_000),
    }
    assert judged("PostgreSQL: drain", **rows).outcome == "reached"


def test_a_deep_queue_is_held_against_a_shallow_one() -> None:
    assert (
        judged("SQLite: deep queue against shallow", h=row("sqlite", ours=True, deep=79, shallow=100)).outcome
        == "missed"
    )
    assert (
        judged("SQLite: deep queue against shallow", h=row("sqlite", ours=True, deep=81, shallow=100)).outcome
        == "reached"
    )


def test_two_workers_are_not_judged_where_the_store_or_the_machine_has_no_more_to_give() -> None:
    figures = {"drain": 100, "two": 110, "two_store_share": 0.5, "two_machine_share": 0.5}
    target = "Redis: two workers against one"
    assert judged(target, h=row("redis", ours=True, **figures)).outcome == "missed"
    assert "the store" in judged(target, h=row("redis", ours=True, **figures | {"two_store_share": 0.97})).outcome
    assert "the machine" in judged(target, h=row("redis", ours=True, **figures | {"two_machine_share": 0.97})).outcome
    assert judged(target, h=row("redis", ours=True, **figures | {"two": 150})).outcome == "reached"


def test_what_was_not_measured_is_neither_reached_nor_missed() -> None:
    assert {verdict.outcome for verdict in verdicts({})} == {"not measured"}
    rows = {"headway": row("redis", ours=True, drain=30_000), "failed": row("redis")}
    assert judged("Redis: drain", **rows).outcome == "not measured"
