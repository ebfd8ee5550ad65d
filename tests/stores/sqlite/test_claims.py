"""Cost of claims in a SQLite file: the number of statements is the same for any number of jobs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headway.core.policy.document import BUILT_IN, LimitRule, Policy
from headway.core.policy.retry import Returned, judge
from headway.core.snapshot import Plan
from headway.policy_store.rule_documents import write_rules
from headway.stores.base import Exchange
from headway.stores.sqlite.own_file import OwnFileConnection
from headway.testing.clock import ManualClock
from tests.conformance.builders import a_job, claim, register, submit
from tests.stores.sqlite.conftest import OpenFile

# Statements that a claim executes for some of the queues that it reads at once.
BY_QUEUE = {"blocked_first"}


@pytest.mark.parametrize("tenants", [False, True])
async def test_blocked_jobs_are_claimed_by_as_many_statements_as_there_are_steps(
    open_file: OpenFile, path: Path, clock: ManualClock, executed: list[str], tenants: bool
) -> None:
    counts = []
    for accounts in (5, 40):
        store = await open_file(path.with_name(f"{accounts}.db"))
        await register(store, slots=100, reserved=0)
        await write_rules(store, Policy(limits={"account": LimitRule(concurrency=1, by="account")}))
        keys = [f"account={number}" for number in range(accounts)] * 2
        await submit(store, *(a_job(limits=(key,), tenant=key if tenants else None) for key in keys))
        held = await claim(store, free=100)
        assert len(held) == accounts
        clock.advance(1)
        executed.clear()
        reports = [judge(Returned(b"null"), lease, BUILT_IN) for lease in held]
        await store.exchange(Exchange("w1", b"released", reports, Plan()))
        taken = await claim(store, free=100)
        assert len(taken) == accounts
        counts.append(Counter(executed))
    few, many = ({name: count for name, count in found.items() if name not in BY_QUEUE} for found in counts)
    assert few == many
    assert {"blocked_release", "blocked_first", "blocked_close", "claim_lease", "claim_taken"} <= counts[0].keys()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[OwnFileConnection]:
    """Return a list to which new connections are added. The first of a store is the one that writes."""
    connections: list[OwnFileConnection] = []
    prepare = OwnFileConnection.__init__

    def note(connection: OwnFileConnection, *args: Any) -> None:
        prepare(connection, *args)
        connections.append(connection)

    monkeypatch.setattr(OwnFileConnection, "__init__", note)
    return connections


async def test_statements_stay_prepared_while_limits_hold_many_jobs_back(
    open_file: OpenFile, path: Path, clock: ManualClock, opened: list[OwnFileConnection]
) -> None:
    store = await open_file(path)
    await register(store, slots=100, reserved=0)
    await write_rules(store, Policy(limits={"account": LimitRule(concurrency=1, by="account")}))
    await submit(store, *(a_job(limits=(f"account={number % 60}",)) for number in range(600)))
    prepared = []
    for _ in range(8):
        held = await claim(store, free=100)
        assert held
        clock.advance(1)
        await store.exchange(Exchange("w1", finished=[judge(Returned(b"null"), lease, BUILT_IN) for lease in held]))
        prepared.append(opened[0].raw.cache_stats()["misses"])
    assert prepared[-1] - prepared[1] < len(prepared)  # None of the statements that every exchange executes.


async def test_many_jobs_are_written_by_few_executions(
    open_file: OpenFile, path: Path, opened: list[OwnFileConnection]
) -> None:
    counts: Counter[str] = Counter()
    store = await open_file(path)
    await register(store, slots=100, reserved=0)
    await write_rules(store, Policy(limits={"account": LimitRule(concurrency=1, by="account")}))
    opened[0].raw.set_exec_trace(lambda _, text, __: bool(counts.update([" ".join(text.split()[:3])])) or True)
    await submit(store, *(a_job(limits=(f"account={number}",)) for number in range(45)))
    held = await claim(store, free=100)
    await store.exchange(Exchange("w1", finished=[judge(Returned(b"null"), lease, BUILT_IN) for lease in held]))
    assert len(held) == 45
    # Twice 20 jobs together, and five alone.
    assert {table: counts[f"INSERT INTO {table}"] for table in ("job", "lease", "outcome")} == dict.fromkeys(
        ("job", "lease", "outcome"), 7
    )
