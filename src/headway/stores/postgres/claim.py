"""The exchange, statement by statement: where limits, the ladder or a reserve hold jobs back, and for what is rare."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from headway.core.job import ClassKey, JobId
from headway.core.lease import Lease, ReportStatus
from headway.core.policy.ladder import budget_of, counts_on, fit_rung
from headway.core.policy.wait_reasons import park_reason
from headway.core.snapshot import Plan, Take
from headway.core.worker import WorkerState
from headway.stores.base import DUE_BATCH_MAX, SKIPPED_MAX, Exchange, ExchangeReply
from headway.stores.postgres import fast_path, rows
from headway.stores.postgres.finish import cancel, finish
from headway.stores.postgres.limits import PostgresLimitCheck, block, unblock_head
from headway.stores.postgres.ordering import PostgresOrdering, Requeue
from headway.stores.postgres.query import snapshot
from headway.stores.postgres.transaction import ALL, LOWEST, PostgresTransaction, Row
from headway.stores.unreadable import read_worker_state


async def exchange(tx: PostgresTransaction, request: Exchange) -> ExchangeReply:
    """End leases, note progress, make due jobs eligible, claim by the plan."""
    refused = await _finish(tx, request) if request.finished else []
    if request.progress:
        notes = [(note.seq, note.token, note.fraction, rows.text(note.note)) for note in request.progress]
        await tx.db.run("progress", *map(list, zip(*notes, strict=True)))
    await _pump(tx)
    leases: list[Lease] = []
    more = False
    state = WorkerState.DEAD
    classes = await tx.classes() if request.plan is not None else {}
    known = None if request.plan is None else request.plan.known
    outdated = known is not None and known < len(classes)
    if request.worker_id is not None:
        worker = await tx.db.row("claiming_worker", request.worker_id, tx.namespace_id)
        if worker is not None:
            state = read_worker_state(worker["state"])
            able = state is WorkerState.ACTIVE and worker["lease_ends_at"] > tx.now_at
            if state is WorkerState.ACTIVE and not able:
                tx.rung.append(request.worker_id)  # It is alive, so the clock has stepped: let it renew.
            if request.plan is not None and able and not outdated:
                leases, more = await _claim(tx, request, request.plan, worker)
    tx.changed += [report.job_id for report in request.finished]
    tx.changed += [lease.job_id for lease in leases]
    tx.changed += [note.job_id for note in request.progress]
    picture = await snapshot(tx) if request.want_snapshot or outdated else None
    return ExchangeReply(tx.now_at, leases, refused, picture, more, state)


async def _finish(tx: PostgresTransaction, request: Exchange) -> list[tuple[JobId, ReportStatus]]:
    """Carry out reports: in one step if nobody waits for what their jobs held."""
    if (
        not tx.parked
        and not tx.rule_index.rules.rungs
        and tx.rule_index.rules.pool_reserve is None
        and fast_path.is_eligible(request)
    ):
        refused = await fast_path.finish(tx.db, tx.memory, request, tx.now_at)
        if refused is not None:
            return refused
    return await finish(tx, request.finished, request.worker_id)


async def _claim(tx: PostgresTransaction, request: Exchange, plan: Plan, worker: Row) -> tuple[list[Lease], bool]:
    worker_id = request.worker_id or ""
    if worker["claim_id"] == request.claim_id:
        again = await tx.db.run("leases_of", worker_id, tx.namespace_id, ALL)
        return [rows.lease(row, tx.rule_index.ladder) for row in again if row["token"] == request.claim_id], False
    lanes = None if request.wait_lanes is None else list(request.wait_lanes)
    leases, more = await _take_all(tx, request, plan, worker)
    if not leases and not more and request.wait and not (worker["waiting"] and lanes == worker["wait_lanes"]):
        # Whoever submits from now on sees that this worker waits; what was submitted before, it sees now.
        await tx.db.run("lock_waiters", tx.namespace_id)
        leases, more = await _take_all(tx, request, plan, worker)
        if not leases and not more:
            await tx.db.run("worker_wait", lanes, worker_id)
    elif not leases and worker["waiting"] and (more or not request.wait):
        await tx.db.run("worker_unwait", worker_id)
    return leases, more


async def _take_all(tx: PostgresTransaction, request: Exchange, plan: Plan, worker: Row) -> tuple[list[Lease], bool]:
    """Go through the takes of a plan."""
    worker_id = request.worker_id or ""
    caps = PostgresLimitCheck(tx)
    free = min(plan.free, worker["slots"] - worker["running"])
    below = min(plan.free_below, await caps.pool_room())
    leases: list[Lease] = []
    counts: Counter[str] = Counter()
    more = False
    for take in plan.takes:
        want = min(take.most, free, below if take.below_reserve else free)
        if want <= 0 or tx.rule_index.lane_paused(take.key.lane):
            continue
        class_id = tx.memory.class_ids.get(take.key)
        if class_id is None:
            continue
        got, unseen = await _ClassClaim(tx, caps, take, class_id, worker_id, request.claim_id).run(want)
        more = more or unseen
        leases += got
        if take.over is not None and got:
            counts[f"promoted.{take.key.lane}.{take.over}"] += len(got)
        free -= len(got)
        below -= len(got) if take.below_reserve or plan.leave_free else 0
    await caps.settle()
    if leases:
        await tx.db.run("worker_claimed", request.claim_id, sum(lease.persist for lease in leases), worker_id)
        tx.count(counts | {"claimed": len(leases)})
    return leases, more


class _ClassClaim:
    """One take of a plan, under all caps."""

    def __init__(
        self, tx: PostgresTransaction, caps: PostgresLimitCheck, take: Take, class_id: int, worker_id: str, token: bytes
    ) -> None:
        self._tx = tx
        self._caps = caps
        self._take = take
        self._class_id = class_id
        self._worker_id = worker_id
        self._token = token
        self._leases: list[Lease] = []
        self._taken: list[tuple[Any, ...]] = []  # The columns of the new leases.
        self._reached = LOWEST  # Where tenants share: the highest key among them.

    async def run(self, want: int) -> tuple[list[Lease], bool]:
        """Lease up to ``want`` jobs of a class. Expired ones are cancelled on the way, and those that their own limits
        hold back are put aside; gives also whether it stopped for having passed over too many.
        """
        if not self._take.key.persist:
            return await self._take_transient(want), False
        key, tx = self._take.key, self._tx
        on_ladder = counts_on(tx.rule_index.ladder, key.rung)
        passed = 0
        more = False
        async for park, row in self._waiting(want):
            if self._take.until_at is not None and row["eligible_at"] > self._take.until_at:
                break
            if passed == SKIPPED_MAX:
                more = True
                break
            if row["expires_at"] is not None and row["expires_at"] <= tx.now_at:
                await self._expire(row["seq"])
                passed += 1
                continue
            assigned: str | None = None
            if on_ladder:
                fits, assigned = fit_rung(tx.rule_index.ladder, await self._caps.floor(), key.rung)
                if not fits:
                    break
            held: str | None = None
            unreadable: str | None = None
            task, tenant = rows.read_text(row["task"]) or "", rows.read_text(row["tenant"])
            if row["limits"] is not None or tx.rule_index.may_limit(task, tenant):
                limits, unreadable = rows.try_strings(row["limits"])
                keys = tx.rule_index.keys(task, tenant, limits) if unreadable is None else ()  # It never runs.
                full = await self._caps.full_key(keys)
                if full is not None:
                    await block(tx, self._class_id, park, row["order_key"], row["seq"], full)
                    passed += 1
                    continue
                held = await self._caps.take(keys)
            if on_ladder:
                await self._caps.assign(assigned)
            await self._start(park, row, held, assigned, unreadable)
            if len(self._leases) == want:
                break
        await self._keep()
        return self._leases, more

    async def _start(
        self, park: str, row: Row, held: str | None, assigned: str | None, unreadable: str | None
    ) -> None:  # fmt: skip
        tx, key = self._tx, self._take.key
        parked_for, parked_ms = None, None
        if park:
            rule = tx.rule_index.rules.limits.get(park.partition("=")[0])
            parked_for = park_reason(park, is_rate=rule is not None and rule.concurrency is None)
            parked_ms = tx.now_at - row["parked_at"]
        epoch, attempts = row["epoch"] + 1, row["attempts"] + 1
        self._taken.append((row["spot"], row["seq"], held, assigned, parked_for, parked_ms))
        if row["sharer"] is not None:
            self._reached = max(self._reached, row["order_key"])
        timeout_ms = row["timeout_ms"] if row["grown_timeout_ms"] is None else row["grown_timeout_ms"]
        retry, why = rows.try_retry(row["retry"])
        self._leases.append(
            Lease(
                JobId(row["job_id"]), row["seq"], self._token, rows.read_text(row["task"]) or "", row["payload"],
                key.lane, rows.read_text(row["tenant"]), rows.read_text(row["trace_id"]), epoch, attempts,
                row["crashes"], row["max_retries"], timeout_ms, row["timeout_ms"],
                retry, tx.now_at, False, key.needs, self._worker_id, key.rung, assigned,
                budget_of(tx.rule_index.ladder, assigned), row["submitted_at"], row["eligible_at"], unreadable or why,
            )
        )  # fmt: skip
        if park:  # Another is first in its park now, and must be seen before the next is asked for.
            await self._keep()
            await unblock_head(tx, self._class_id, park)

    async def _keep(self) -> None:
        """Write the leases gathered so far, and remove their jobs from where they waited."""
        if not self._taken:
            return
        tx = self._tx
        columns = [column if any(column) else None for column in zip(*self._taken, strict=True)]
        await tx.db.run("claim_leases", self._worker_id, self._token, tx.now_at, *columns)
        if self._reached > LOWEST:
            await tx.db.run("class_clock", self._reached, self._class_id)
        self._taken = []

    async def _expire(self, seq: int) -> None:
        [found] = await self._tx.db.run("get_by_seq", [seq])
        await cancel(self._tx, found, "expired")
        self._tx.changed.append(found["job_id"])

    async def _waiting(self, count: int) -> AsyncIterator[tuple[str, Row]]:
        """Yield the jobs of a class in order, each with the park it waits in: the line merged with the parks that are
        open. Each must be dealt with before the next is asked for.
        """
        tx = self._tx
        opened = tx.parked and bool(await tx.db.first("park_first", self._class_id))
        after = (LOWEST, 0)
        line: list[Row] = []
        exhausted = False
        while True:
            if not line and not exhausted:
                line = (await tx.db.run("claim_head", self._class_id, "", *after, count))[::-1]
                exhausted = len(line) < count
            park = await tx.db.row("park_first", self._class_id) if opened else None
            opened = park is not None
            if park is not None and (
                not line or (park["head_key"], park["head_seq"]) < (line[-1]["order_key"], line[-1]["seq"])
            ):
                place = (park["head_key"], park["head_seq"] - 1)
                head = await tx.db.row("claim_head", self._class_id, park["park"], *place, 1)
                if head is None:  # Somebody cancels it just now.
                    return
                yield park["park"], head
            elif line:
                row = line.pop()
                after = (row["order_key"], row["seq"])
                yield "", row
            else:
                return

    async def _take_transient(self, want: int) -> list[Lease]:
        paused = rows.texts(list(self._tx.rule_index.rules.paused.tasks))
        taken = await self._tx.db.run("claim_transient", self._class_id, paused, want)
        key = self._take.key
        return [
            transient_lease(row, key, self._worker_id, self._tx.now_at)
            for row in sorted(taken, key=lambda row: int(row["seq"]))
        ]


async def _pump(tx: PostgresTransaction) -> None:
    """Make a bounded batch of due jobs eligible, and open the parks whose time has come."""
    if tx.parked:
        await tx.db.run("park_due", tx.namespace_id, tx.now_at)
    due = await tx.db.run("delayed_due", tx.namespace_id, tx.now_at, DUE_BATCH_MAX)
    if not due:
        return
    numbers = await tx.db.run("next_sequence", len(due))
    lines = PostgresOrdering(tx)
    for row, (number,) in zip(due, numbers, strict=True):
        back = Requeue(
            row["class_id"], row["seq"], row["task"], row["tenant"], row["expires_at"], row["unique_key"], row["epoch"],
            row["attempts"], row["crashes"], row["timeout_ms"], row["token"], row["error"], row["reason"],
        )  # fmt: skip
        await lines.put(back, tx.now_at, number)


def transient_lease(row: Row, key: ClassKey, worker_id: str, now_at: int) -> Lease:
    return Lease(
        JobId(row["job_id"]), row["seq"], b"", rows.read_text(row["task"]) or "", row["payload"], key.lane,
        rows.read_text(row["tenant"]), rows.read_text(row["trace_id"]), 1, 1, 0, 0, row["timeout_ms"],
        row["timeout_ms"], None, now_at, False, key.needs, worker_id,
    )  # fmt: skip
