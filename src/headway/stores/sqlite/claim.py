"""The exchange: finish jobs, record progress, claim jobs by the plan, read a snapshot of waiting jobs."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from headway.core.job import ClassKey
from headway.core.lease import Lease
from headway.core.policy.ladder import budget_of, counts_on
from headway.core.policy.wait_reasons import blocked_queue_reason
from headway.core.snapshot import Plan, PlanWalk, Take
from headway.core.worker import WorkerState
from headway.core.workflow import batch_reason
from headway.stores.base import Exchange, ExchangeReply
from headway.stores.claim_loop import claim_class, claim_takes
from headway.stores.sql.exchange import apply_reports, make_due_eligible
from headway.stores.sql.finish import cancel
from headway.stores.sql.transaction import ALL, LOWEST
from headway.stores.sqlite.blocked_queues import READ_AT_ONCE, BlockedQueues
from headway.stores.sqlite.limits import LimitCheck
from headway.stores.sqlite.transaction import SqliteTransaction, TakenJob
from headway.stores.unreadable import DAMAGE, read_worker_state, why_unreadable

CLEARED_AT_ONCE = 1_000  # Rows of an empty line that a claim deletes: many more than it has leased, in about 1 ms.

_as_lease = Lease._make  # Faster than by its fields, and this runs for every job.


async def exchange(tx: SqliteTransaction, request: Exchange) -> ExchangeReply:
    """Finish jobs, record progress, make due jobs eligible, and claim jobs by the plan."""
    refused = await apply_reports(tx, request)
    await tx.settle_edges()
    await make_due_eligible(tx)
    leases: list[Lease] = []
    more = False
    state = WorkerState.DEAD
    plan = request.plan
    outdated = plan is not None and await _is_outdated(tx, plan)
    if request.worker_id is not None:
        worker = await tx.db.row("claiming_worker", request.worker_id, tx.namespace_id)
        if worker is not None:
            state = read_worker_state(worker[0])
            able = state is WorkerState.ACTIVE and worker[1] > tx.now_at
            if state is WorkerState.ACTIVE and not able:
                tx.notify_worker(request.worker_id)  # It is alive, so the clock has jumped; let it renew.
            if plan is not None and able and not outdated:
                leases, more = await _claim(tx, request, plan, worker)
    more = await tx.settle_edges() or more
    tx.changed += [lease.job_id for lease in leases]
    snapshot = await tx.snapshot() if request.want_snapshot or outdated else None
    return ExchangeReply(tx.now_at, leases, refused, snapshot, more, state)


async def _is_outdated(tx: SqliteTransaction, plan: Plan) -> bool:
    """Return whether a class is newer than the plan."""
    count = await tx.count_classes()
    return plan.known is not None and plan.known < count


async def _claim(
    tx: SqliteTransaction, request: Exchange, plan: Plan, worker: Sequence[Any]
) -> tuple[list[Lease], bool]:
    _, _, slots, last_claim, waiting, wait_lanes, running = worker
    worker_id = request.worker_id or ""
    if last_claim == request.claim_id:
        again = await tx.db.rows("leases_of", worker_id, tx.namespace_id, ALL, True)
        return [tx.rows.lease(row, tx.rule_index.ladder) for row in again if row["token"] == request.claim_id], False
    leases, more = await _take_all(tx, request, plan, slots - running)
    if leases:
        return leases, more
    if request.wait and not more:
        lanes = None if request.wait_lanes is None else tx.rows.array(request.wait_lanes)
        if not waiting or lanes != wait_lanes:  # A repeated claim of a waiting worker writes nothing.
            if await tx.lock_waiters():
                leases, more = await _take_all(tx, request, plan, slots - running)
            if not leases and not more:
                await tx.db.run("worker_wait", lanes, worker_id)
    elif waiting:
        await tx.db.run("worker_unwait", worker_id)
    return leases, more


async def _take_all(tx: SqliteTransaction, request: Exchange, plan: Plan, slots: int) -> tuple[list[Lease], bool]:
    """Claim the takes of a plan. Return the leases, and whether more jobs may be left to claim."""
    worker_id = request.worker_id or ""
    limit_check = LimitCheck(tx)
    walk = PlanWalk(plan, slots=slots, room=await limit_check.pool_room())

    async def take_jobs(take: Take, want: int) -> tuple[list[Lease], bool]:
        class_id = await tx.find_class(take.key)
        if class_id is None:
            return [], False
        if not take.key.persist:
            return await _take_transient(tx, take.key, class_id, want, worker_id), False
        waiting = _WaitingRows(tx, limit_check, take.key, class_id, want, worker_id, request.claim_id)
        found = await claim_class(waiting, take, want, tx.now_at)
        await waiting.write()
        return found

    leases, more = await claim_takes(plan.takes, walk, tx.rule_index, take_jobs)
    await limit_check.settle()
    if leases:
        await tx.note_claim(request.claim_id, sum(lease.persist for lease in leases), worker_id)
        tx.count(walk.promoted | {"claimed": len(leases)})
    return leases, more


class _WaitingRows:
    """The waiting jobs of a class, merged in order from the class itself and its open blocked queues.

    While a blocked queue is open, ``next`` returns one job, because starting it may change which queue has the next.
    """

    times = itemgetter(2, 15)

    def __init__(
        self,
        tx: SqliteTransaction,
        limit_check: LimitCheck,
        key: ClassKey,
        class_id: int,
        count: int,
        worker_id: str,
        token: bytes,
    ) -> None:
        self.on_ladder = counts_on(tx.rule_index.ladder, key.rung)
        self._tx = tx
        self._rule_index = tx.rule_index
        self._limit_check = limit_check
        self._key = key
        self._class_id = class_id
        self._count = count
        self._worker_id = worker_id
        self._token = token
        self._queues = BlockedQueues(tx, class_id, limit_check)
        self._line: list[Any] = []  # Jobs read from the class itself, the next one last.
        self._after = (LOWEST, 0)
        self._exhausted = False
        self._blocked_by = ""  # The key that blocked the jobs that were returned last.
        self._room = 0  # How many more jobs the ladder lets start on the assigned rung.
        self._assigned: str | None = None
        self._budget_ms: int | None = None
        self._counted = 0  # How many of the taken jobs are counted on the ladder.
        self._taken: list[TakenJob] = []  # Leased together at the end.
        self._reached = LOWEST  # The highest order key taken in a fair class.

    def next(self) -> Sequence[Any]:
        if not self._line and not self._exhausted:
            count = max(self._count - len(self._taken), READ_AT_ONCE)
            found: list[Any] = self._tx.connection.run("claim_head", self._class_id, "", *self._after, count).fetchall()
            self._exhausted = len(found) < count
            if found:
                self._after = found[-1][:2]
            if self._queues.first() is None:
                self._blocked_by = ""
                return found
            found.reverse()
            self._line = found
        blocked = self._queues.first()
        if blocked is not None and (not self._line or blocked[0] < self._line[-1][:2]):
            place, self._blocked_by = blocked
            return [self._queues.row(place, self._blocked_by)]
        self._blocked_by = ""
        if blocked is None:
            rest, self._line = self._line[::-1], []
            return rest
        return [self._line.pop()]

    async def expire(self, row: Any) -> None:
        [found] = await self._tx.db.rows("get_by_seq", self._tx.rows.array([row[1]]))
        await cancel(self._tx, found, "expired" if row[15] else batch_reason(found["batch_id"]))
        self._tx.changed.append(found["job_id"])
        if self._blocked_by:
            self._queues.leave(self._blocked_by)

    def has_room(self) -> bool:
        if not self._room:
            self._count_starts()
            self._room, self._assigned = self._limit_check.room_on_rung(self._key.rung)
            self._budget_ms = budget_of(self._tx.rule_index.ladder, self._assigned)
        return self._room > 0

    def _count_starts(self) -> None:
        """Count the jobs on the ladder that were taken since the last count."""
        if self.on_ladder and len(self._taken) > self._counted:
            self._limit_check.assign(self._assigned, len(self._taken) - self._counted)
            self._counted = len(self._taken)

    def start(self, row: Any) -> Lease | None:
        (
            order_key, seq, eligible_at, epoch, attempts, crashes, timeout_ms, job_id, task, payload, tenant,
            trace_id, max_retries, asked_timeout_ms, retry, _, limits, sharer, blocked_at, submitted_at, batch_id,
            _, _, _,
        ) = row  # fmt: skip
        tx, key, rule_index, blocked_by = self._tx, self._key, self._rule_index, self._blocked_by
        held, again, unreadable, blocked_for, blocked_ms = None, None, None, None, None
        if retry is not None or not tx.rows.are_plain(task, payload, tenant, trace_id):
            run = tx.rows.read_run(task, payload, tenant, trace_id, retry)
            task, payload, tenant, trace_id, again, unreadable = run
        if limits is not None or (not rule_index.has_no_limits and rule_index.may_limit(task, tenant)):
            try:
                keys = rule_index.keys(task, tenant, tx.rows.read_strings(limits))
            except DAMAGE as problem:  # The job never runs, so no limit counts it.
                keys, unreadable = (), why_unreadable(problem)
            full, held = self._limit_check.start(keys)
            if full is not None:
                self._queues.block(blocked_by, order_key, seq, sharer, full)
                return None
        if blocked_by:
            self._queues.leave(blocked_by)
            rule = rule_index.rules.limits.get(blocked_by.partition("=")[0])
            is_rate = rule is not None and rule.concurrency is None
            blocked_for, blocked_ms = blocked_queue_reason(blocked_by, is_rate=is_rate), tx.now_at - blocked_at
        self._room -= 1
        assigned = self._assigned
        self._taken.append((blocked_by, row, held, assigned, blocked_for, blocked_ms))
        if sharer is not None and order_key > self._reached:
            self._reached = order_key
        return _as_lease(
            (job_id, seq, self._token, task, payload, key.lane, tenant, trace_id, epoch + 1, attempts + 1, crashes,
             max_retries, timeout_ms, asked_timeout_ms, again, tx.now_at, False, key.needs, self._worker_id, key.rung,
             assigned, self._budget_ms, submitted_at, eligible_at, batch_id, unreadable)
        )  # fmt: skip

    async def write(self) -> None:
        """Write what became of the jobs: moves to blocked queues, leases, and the clock of a fair class."""
        self._count_starts()
        await self._queues.write_moves()
        if self._taken:
            await self._tx.write_leases(self._class_id, self._worker_id, self._token, self._taken)
        await self._queues.write_queues()
        if self._reached > LOWEST:
            await self._tx.db.run("class_clock", self._reached, self._class_id)
            if self._exhausted:
                await self._tx.db.run("line_clear", self._class_id, CLEARED_AT_ONCE)


async def _take_transient(
    tx: SqliteTransaction, key: ClassKey, class_id: int, want: int, worker_id: str
) -> list[Lease]:
    """Claim transient jobs, which deletes them from the store."""
    paused = tx.rows.array([tx.rows.text(task) for task in tx.rule_index.rules.paused.tasks])
    leases = []
    for row in sorted(await tx.db.run("claim_transient", class_id, paused, want), key=itemgetter(0)):
        seq, job_id, task, payload, tenant, trace_id, timeout_ms = row
        if not tx.rows.are_plain(task, payload, tenant, trace_id):
            task, payload, tenant, trace_id, _, _ = tx.rows.read_run(task, payload, tenant, trace_id, None)
        leases.append(
            Lease(
                job_id, seq, b"", task, payload, key.lane, tenant, trace_id, 1, 1, 0, 0, timeout_ms, timeout_ms, None,
                tx.now_at, False, key.needs, worker_id,
            )
        )  # fmt: skip
    return leases
