"""The exchange: finish jobs, record progress, claim jobs by the plan, read a snapshot of waiting jobs."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from headway.core.job import ClassKey
from headway.core.lease import Lease
from headway.core.policy.ladder import budget_of, counts_on, fit_rung
from headway.core.policy.wait_reasons import blocked_queue_reason
from headway.core.snapshot import Plan, PlanWalk, Take
from headway.core.worker import WorkerState
from headway.stores.base import SKIPPED_MAX, Exchange, ExchangeReply
from headway.stores.sql.exchange import apply_reports, make_due_eligible
from headway.stores.sql.finish import cancel
from headway.stores.sql.limits import unblock_head
from headway.stores.sql.transaction import ALL, LOWEST
from headway.stores.sqlite.limits import LimitCheck, block
from headway.stores.sqlite.transaction import SqliteTransaction
from headway.stores.unreadable import DAMAGE, read_worker_state, why_unreadable


async def exchange(tx: SqliteTransaction, request: Exchange) -> ExchangeReply:
    """Finish jobs, record progress, make due jobs eligible, and claim jobs by the plan."""
    refused = await apply_reports(tx, request)
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
    leases: list[Lease] = []
    more = False
    for take in plan.takes:
        want = walk.most(take)
        if want <= 0 or tx.rule_index.lane_paused(take.key.lane):
            continue
        class_id = await tx.find_class(take.key)
        if class_id is None:
            continue
        if take.key.persist:
            got, unseen = await _take(tx, limit_check, take, class_id, want, worker_id, request.claim_id)
        else:
            got, unseen = await _take_transient(tx, take.key, class_id, want, worker_id), False
        more = more or unseen
        leases += got
        walk.claimed(take, len(got))
    await limit_check.settle()
    if leases:
        await tx.note_claim(request.claim_id, sum(lease.persist for lease in leases), worker_id)
        tx.count(walk.promoted | {"claimed": len(leases)})
    return leases, more


async def _take(
    tx: SqliteTransaction, limit_check: LimitCheck, take: Take, class_id: int, want: int, worker_id: str, token: bytes
) -> tuple[list[Lease], bool]:  # fmt: skip
    """Lease up to ``want`` jobs of a class. Cancel expired jobs, and move jobs without room in a limit to its queue.

    Return the leases, and whether the claim stopped because it had skipped ``SKIPPED_MAX`` jobs.
    """
    key, rule_index, now_at = take.key, tx.rule_index, tx.now_at
    are_plain, has_no_limits = tx.rows.are_plain, rule_index.has_no_limits
    on_ladder = counts_on(rule_index.ladder, key.rung)
    leases: list[Lease] = []
    taken: list[tuple[Any, ...]] = []  # Jobs from the class itself, leased together at the end.
    reached = LOWEST  # The highest order key taken in a fair class.
    assigned: str | None = None
    budget_ms: int | None = None
    passed = 0
    more = False
    waiting = _WaitingJobs(tx, class_id, want)
    blocked_by, batch = await waiting.next()
    while batch:
        for row in batch:
            (
                order_key, seq, eligible_at, epoch, attempts, crashes, timeout_ms, job_id, task, payload, tenant,
                trace_id, max_retries, asked_timeout_ms, retry, expires_at, limits, sharer, blocked_at, submitted_at,
                *_,
            ) = row  # fmt: skip
            if take.until_at is not None and eligible_at > take.until_at:
                break
            if passed == SKIPPED_MAX:
                more = True
                break
            if expires_at is not None and expires_at <= now_at:
                await _expire(tx, seq)
                passed += 1
                continue
            if on_ladder:
                fits, assigned = fit_rung(rule_index.ladder, await limit_check.running(), key.rung)
                if not fits:
                    break
            held = None
            again, unreadable = None, None
            if retry is not None or not are_plain(task, payload, tenant, trace_id):
                run = tx.rows.read_run(task, payload, tenant, trace_id, retry)
                task, payload, tenant, trace_id, again, unreadable = run
            if limits is not None or (not has_no_limits and rule_index.may_limit(task, tenant)):
                try:
                    bound = tx.rows.read_strings(limits)
                    keys = rule_index.keys(task, tenant, bound)
                except DAMAGE as problem:  # The job never runs, so no limit counts it.
                    keys, unreadable = [], why_unreadable(problem)
                full = await limit_check.full_key(keys)
                if full is not None:
                    await block(tx, class_id, blocked_by, order_key, seq, full)
                    passed += 1
                    continue
                held = await limit_check.take(keys)
            if on_ladder:
                await limit_check.assign(assigned)
                budget_ms = budget_of(rule_index.ladder, assigned)
            if blocked_by:
                rule = rule_index.rules.limits.get(blocked_by.partition("=")[0])
                blocked_for = blocked_queue_reason(blocked_by, is_rate=rule is not None and rule.concurrency is None)
                one = [(row, held, assigned, blocked_for, now_at - blocked_at)]
                await tx.write_leases(class_id, blocked_by, worker_id, token, one)
                await unblock_head(tx, class_id, blocked_by)
            else:
                taken.append((row, held, assigned, None, None))
            if sharer is not None and order_key > reached:
                reached = order_key
            leases.append(
                Lease(
                    job_id, seq, token, task, payload, key.lane, tenant, trace_id, epoch + 1, attempts + 1, crashes,
                    max_retries, timeout_ms, asked_timeout_ms, again, now_at, False, key.needs, worker_id, key.rung,
                    assigned, budget_ms, submitted_at, eligible_at, unreadable,
                )
            )  # fmt: skip
            if len(leases) == want:
                break
        else:
            blocked_by, batch = await waiting.next()
            continue
        break
    if taken:
        await tx.write_leases(class_id, "", worker_id, token, taken)
    if reached > LOWEST:
        await tx.db.run("class_clock", reached, class_id)
    return leases, more


class _WaitingJobs:
    """Reads the jobs of a class in order, merged from the class itself and its open blocked queues.

    The caller must process each batch before it reads the next. While a blocked queue is open, a batch is one job,
    because processing it may change which queue has the next job.
    """

    def __init__(self, tx: SqliteTransaction, class_id: int, count: int) -> None:
        self._db = tx.db
        self._class_id = class_id
        self._count = count
        self._opened = tx.has_open_blocked  # No queue opens during a claim.
        self._line: list[Any] = []  # Jobs read from the class itself, the next one last.
        self._after = (LOWEST, 0)
        self._exhausted = False

    async def next(self) -> tuple[str, Sequence[Any]]:
        """Return the key that blocked the next jobs, or '', and these jobs. The list is empty at the end."""
        if not self._line and not self._exhausted:
            found = await self._db.run("claim_head", self._class_id, "", *self._after, self._count)
            self._exhausted = len(found) < self._count
            if not self._opened:
                if found:
                    self._after = (found[-1][0], found[-1][1])
                return "", found
            self._line = list(reversed(found))
        if self._opened:
            queue = await self._db.row("blocked_first", self._class_id)
            self._opened = queue is not None
            if queue is not None and (not self._line or (queue[1], queue[2]) < (self._line[-1][0], self._line[-1][1])):
                head = await self._db.row("claim_head", self._class_id, queue[0], queue[1], queue[2] - 1, 1)
                return queue[0], [] if head is None else [head]  # None: another process is cancelling it.
        if not self._line:
            return "", []
        row = self._line.pop()
        self._after = (row[0], row[1])
        return "", [row]


async def _expire(tx: SqliteTransaction, seq: int) -> None:
    [found] = await tx.db.rows("get_by_seq", tx.rows.array([seq]))
    await cancel(tx, found, "expired")
    tx.changed.append(found["job_id"])


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
