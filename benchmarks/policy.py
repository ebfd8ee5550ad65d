"""Cost of the policy: a plan by the number of classes; submit and claim by tenants, limits and depth."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

from headway.core.job import ClassKey, JobId, NewJob
from headway.core.lease import Report
from headway.core.policy.document import BUILT_IN, LimitRule
from headway.core.policy.enforced import EnforcedRules
from headway.core.policy.lanes import ShareClocks, plan
from headway.core.policy.retry import Returned, judge
from headway.core.snapshot import ClassView, Snapshot
from headway.core.worker import WorkerInfo
from headway.stores.base import RULES, Exchange, Heartbeat
from headway.stores.rule_codec import rules_body
from headway.stores.sqlite.store import make_store

Figures = dict[str, Any]
NOW_AT = 1_760_000_000_000
BATCH = 100
LANES = ("high", "medium", "low")

_numbers = count(1)


def plan_cost(classes: int, *, fair: bool = False, free: int = 5) -> float:
    """Return the microseconds that a plan over this many classes takes. All have waiting jobs and overdue lanes."""
    views = tuple(
        ClassView(ClassKey(LANES[n % 3], () if n < 3 else (f"need-{n}",)), 10, NOW_AT - 1_300_000, n, fair)
        for n in range(classes)
    )
    offers = frozenset(f"need-{n}" for n in range(classes))
    snapshot, clocks = Snapshot(NOW_AT, views), ShareClocks()
    rounds = max(20, 4_000 // classes)
    began = time.process_time()
    for _ in range(rounds):
        plan(snapshot, free=free, free_below=free, offers=offers, policy=BUILT_IN, clocks=clocks)
    return (time.process_time() - began) / rounds * 1e6


async def store_cost(
    path: Path,
    *,
    waiting: int,
    tenants: int = 0,
    rules: EnforcedRules | None = None,
    limits: Callable[[int], tuple[str, ...]] = lambda _: (),
    measured: int = 10_000,
) -> Figures:
    """Return the CPU µs per job of a submit, and of a claim with a finish, behind this many waiting jobs."""
    store = make_store(path, "default", clock=lambda: time.time_ns() // 1_000_000, synchronous="OFF")
    await store.open()
    if rules is not None:
        await store.write(RULES, "policy", rules_body(rules))
    jobs = _jobs(tenants, limits)
    for _ in range(0, waiting, 1_000):
        await store.submit([next(jobs) for _ in range(1_000)])
    cpu = time.process_time()
    for _ in range(0, measured, BATCH):
        await store.submit([next(jobs) for _ in range(BATCH)])
    submit_us = (time.process_time() - cpu) / measured * 1e6
    worker = WorkerInfo(worker_id="w", host="h", pid=1, slots=BATCH, reserved=0, offers=(), version="1")
    await store.renew(Heartbeat(worker, 10_000_000, 10_000_000, register=True))
    finished: list[Report] = []
    cpu, claimed = time.process_time(), 0
    seen = await store.snapshot()
    while claimed < measured:
        takes = plan(seen, free=BATCH, free_below=BATCH, offers=frozenset(), policy=BUILT_IN)
        claim_id = next(_numbers).to_bytes(16, "big")
        answer = await store.exchange(Exchange("w", claim_id, finished, takes))
        if not answer.leases:
            raise RuntimeError("nothing could be claimed")
        finished = [judge(Returned(None), lease, BUILT_IN) for lease in answer.leases]
        claimed += len(answer.leases)
    claim_us = (time.process_time() - cpu) / claimed * 1e6
    await store.close()
    return {"submit_us": submit_us, "claim_and_finish_us": claim_us}


def _jobs(tenants: int, limits: Callable[[int], tuple[str, ...]]) -> Iterator[NewJob]:
    for number in count():
        yield NewJob(
            JobId(str(UUID(int=next(_numbers)))),
            "noop",
            b'{"number":1,"text":"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}',
            b"",
            "medium",
            3,
            600_000,
            tenant=f"tenant-{number * 7_919 % tenants}" if tenants else None,
            limits=limits(number),
        )


async def measure_policy(folder: Path, *, deep: int, tenants: int) -> Figures:
    """Return all figures of the policy."""
    wide = LimitRule(concurrency=1_000_000, by="account_id")
    cases: dict[str, dict[str, Any]] = {
        "10,000 waiting": {"waiting": 10_000},
        f"{deep:,} waiting": {"waiting": deep},
        "10,000 waiting, 1 tenant": {"waiting": 10_000, "tenants": 1},
        "10,000 waiting, 1,000 tenants": {"waiting": 10_000, "tenants": 1_000},
        f"{tenants:,} waiting, {tenants:,} tenants": {"waiting": tenants, "tenants": tenants},
        "a limit by argument that does not bind": {
            "waiting": 10_000,
            "rules": EnforcedRules(limits={"account": wide}),
            "limits": lambda number: (f"account={number % 50}",),
        },
        "a limit by task that does not bind": {
            "waiting": 10_000,
            "rules": EnforcedRules(limits={"all": LimitRule(concurrency=1_000_000)}),
        },
        "100 limits of other tasks": {
            "waiting": 10_000,
            "rules": EnforcedRules(
                limits={f"l{n}": LimitRule(concurrency=5, tasks=(f"other.{n}.*",)) for n in range(100)}
            ),
        },
        "a rate that does not bind": {
            "waiting": 10_000,
            "rules": EnforcedRules(limits={"all": LimitRule(count=1_000_000_000, period_ms=1_000, burst=1_000_000)}),
        },
    }
    figures: Figures = {
        "plan_us": {f"{n} classes": plan_cost(n) for n in (1, 3, 10, 50, 200)}
        | {f"{n} classes that tenants share": plan_cost(n, fair=True) for n in (3, 50)}
        | {"3 classes, 1,000 free slots": plan_cost(3, free=1_000)},
        "store": {},
    }
    for number, (title, case) in enumerate(cases.items()):
        figures["store"][title] = await store_cost(folder / f"{number}.db", **case)
    return figures


def lines(figures: Figures) -> list[str]:
    """Return the table: each figure beside that of the plain store."""
    found = [f"{'plan, ' + name:<56}{cost:>8.1f} µs" for name, cost in figures["plan_us"].items()]
    plain = figures["store"]["10,000 waiting"]
    for name, row in figures["store"].items():
        ratio = row["claim_and_finish_us"] / plain["claim_and_finish_us"]
        submit, claim = row["submit_us"], row["claim_and_finish_us"]
        found.append(f"{name:<56}{submit:>8.1f} submit {claim:>8.1f} claim and finish, CPU µs/job ({ratio:.0%})")
    return found
