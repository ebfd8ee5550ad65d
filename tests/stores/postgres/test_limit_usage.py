"""Running jobs are counted by limit, rung and pool: the counts equal a recount, and unused keys go."""

from __future__ import annotations

import pytest

from headway.core.policy.document import Keep, Ladder, LimitRule, Policy, Reserve, Rung
from headway.core.policy.ladder import Preemption
from headway.core.policy.retry import Raised
from headway.policy_store.rule_documents import write_rules
from headway.stores.postgres.statements import FUNCTIONS_VERSION
from tests.conformance.builders import BOOM, a_job, claim, end, register, submit
from tests.stores.postgres.conftest import OpenStore, Outside

POLICY = Policy(
    limits={"account": LimitRule(10, by="account"), "all": LimitRule(20)},
    ladder=Ladder((Rung("fast", 1_000), Rung("slow", 60_000, limit=50))),
    reserve=Reserve(frozenset({"high"}), 1, scope="pool"),
)


async def test_counts_equal_a_recount_of_the_leases_and_prune_removes_unused_keys(
    open_url: OpenStore, url: str, schema: str, outside: Outside
) -> None:
    async def counted() -> dict[str, int]:
        return await _counted(outside, schema)

    store = await open_url(url)
    await write_rules(store, POLICY)
    await register(store, slots=10)
    await submit(store, *(a_job(rung="default", limits=(f"account={number}",)) for number in range(3)))
    first, second, third = await claim(store, free=3)
    accounts = {f"account={number}": 1 for number in range(3)}
    assert await counted() == {**accounts, "all": 3, "=rung:slow": 3, "=pool": 3}
    assert await store.preempt([Preemption(first.job_id, "fast")]) == [True]
    assert await counted() == {**accounts, "all": 3, "=rung:slow": 2, "=rung:fast": 1, "=pool": 3}
    await end(store, first)
    await end(store, second, Raised(BOOM))  # Queued again, which Python does statement by statement.
    left = {"account=2": 1, "all": 1, "=rung:slow": 1, "=pool": 1}
    assert await counted() == {"account=0": 0, "account=1": 0, "=rung:fast": 0, **left}
    await store.prune(Keep())
    assert await counted() == left
    await write_rules(store, Policy(limits={"all": LimitRule(20)}))
    assert await counted() == {"all": 1}
    await end(store, third)
    await store.prune(Keep())
    assert await counted() == {}


@pytest.mark.parametrize("concurrency", [10, 1], ids=["all start", "a limit holds some back"])
async def test_the_starts_of_a_rate_are_not_counted_as_running_jobs(
    open_url: OpenStore, url: str, schema: str, outside: Outside, concurrency: int
) -> None:
    store = await open_url(url)
    limits = {"account": LimitRule(concurrency, by="account"), "rate": LimitRule(count=9, period_ms=1_000, burst=9)}
    await write_rules(store, Policy(limits=limits))
    await register(store, slots=10)
    await submit(store, *(a_job(limits=("account=1",)) for _ in range(3)))
    leases = await claim(store, free=3)
    assert len(leases) == min(3, concurrency)
    assert await _counted(outside, schema) == {"account=1": len(leases)}


async def test_new_keys_are_counted_without_a_look_at_all_other_keys(
    open_url: OpenStore, url: str, schema: str, outside: Outside
) -> None:
    await open_url(url)
    await outside.execute(f"ALTER TABLE {schema}.limit_usage SET (autovacuum_enabled = off)")
    await outside.execute(f"INSERT INTO {schema}.limit_usage SELECT 1, 'old=' || i, 1 FROM generate_series(1, 3000) i")
    read = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE schemaname = $1 AND relname = $2"
    async with outside.transaction():
        before = await outside.fetchval(read, schema, "limit_usage")
        await outside.execute(
            f"SELECT {schema}.count_usage_{FUNCTIONS_VERSION}(1, $1, $2)", ["old=1", "new=1", "new=2"], [1, 1, 1]
        )
        assert await outside.fetchval(read, schema, "limit_usage") - before == 2
    found = await outside.fetch(
        f"SELECT limit_key, count FROM {schema}.limit_usage WHERE limit_key IN ('old=1', 'old=2', 'new=1', 'new=2')"
    )
    assert dict(map(tuple, found)) == {"old=1": 2, "old=2": 1, "new=1": 1, "new=2": 1}


async def _counted(outside: Outside, schema: str) -> dict[str, int]:
    """Return the stored counts, after a check that a recount of the leases gives the same."""
    found = await outside.fetch(f"SELECT limit_key, count FROM {schema}.limit_usage")
    recount = await outside.fetch(
        f"SELECT k AS limit_key, count(*) FROM {schema}.lease CROSS JOIN LATERAL unnest(limit_keys) k GROUP BY 1"
    )
    counts = {row["limit_key"]: row["count"] for row in found}
    assert {key: count for key, count in counts.items() if count} == {row[0]: row[1] for row in recount}
    return counts
