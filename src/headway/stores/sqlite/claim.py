"""The exchange: hand in, claim by plan, picture what waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from headway.core.job import ClassKey
from headway.core.lease import Lease
from headway.core.policy.ladder import budget_of, counts_on, fit_rung
from headway.core.policy.wait_reasons import park_reason
from headway.core.snapshot import Plan, Take
from headway.core.worker import WorkerState
from headway.stores.base import DUE_BATCH_MAX, LEASE_CHANNEL, SKIPPED_MAX, Exchange, ExchangeReply
from headway.stores.sqlite import rows
from headway.stores.sqlite.connection import ALL
from headway.stores.sqlite.finish import cancel, finish
from headway.stores.sqlite.limits import SqliteLimitCheck, block, unblock_head
from headway.stores.sqlite.ordering import SqliteOrdering
from headway.stores.sqlite.query import snapshot
from headway.stores.sqlite.transaction import SqliteTransaction
from headway.stores.unreadable import DAMAGE, read_worker_state, why_unreadable


def exchange(tx: SqliteTransaction, request: Exchange) -> ExchangeReply:
    """End leases, note progress, make due jobs eligible, claim by the plan."""
    refused = finish(tx, request.finished) if request.finished else ()
    for note in request.progress:
        tx.db.run("progress", note.fraction, rows.text(note.note), note.seq, note.token)
    _pump(tx)
    leases: list[Lease] = []
    more = False
    state = WorkerState.DEAD
    outdated = _outdated(tx, request.plan)
    if request.worker_id is not None:
        worker = tx.db.run("claiming_worker", request.worker_id, tx.namespace_id).fetchone()
        if worker is not None:
            state = read_worker_state(worker[0])
            able = state is WorkerState.ACTIVE and worker[1] > tx.now_at
            if state is WorkerState.ACTIVE and not able:
                tx.notify(f"{request.worker_id}{LEASE_CHANNEL}")  # It is alive, so the clock has stepped: let it renew.
            if request.plan is not None and able and not outdated:
                leases, more = _claim(tx, request, request.plan, worker)
    tx.changed += [report.job_id for report in request.finished]
    tx.changed += [lease.job_id for lease in leases]
    tx.changed += [note.job_id for note in request.progress]
    picture = snapshot(tx) if request.want_snapshot or outdated else None
    return ExchangeReply(tx.now_at, leases, refused, picture, more, state)


def _outdated(tx: SqliteTransaction, plan: Plan | None) -> bool:
    """Return whether a plan was made before some class came up."""
    return plan is not None and plan.known is not None and plan.known < tx.db.first("classes_count", tx.namespace_id)


def _claim(tx: SqliteTransaction, request: Exchange, plan: Plan, worker: Sequence[Any]) -> tuple[list[Lease], bool]:
    _, _, slots, last_claim, waiting, wait_lanes, running = worker
    worker_id = request.worker_id or ""
    if last_claim == request.claim_id:
        again = tx.db.rows("leases_of", worker_id, tx.namespace_id, ALL)
        return [rows.lease(row, tx.rule_index.ladder) for row in again if row["token"] == request.claim_id], False
    caps = SqliteLimitCheck(tx)
    free = min(plan.free, slots - running)
    below = min(plan.free_below, caps.pool_room())
    leases: list[Lease] = []
    counts: Counter[str] = Counter()
    more = False
    for take in plan.takes:
        want = min(take.most, free, below if take.below_reserve else free)
        if want <= 0 or tx.rule_index.lane_paused(take.key.lane):
            continue
        got, unseen = _take(tx, caps, take, want, worker_id, request.claim_id)
        more = more or unseen
        leases += got
        if take.over is not None and got:
            counts[f"promoted.{take.key.lane}.{take.over}"] += len(got)
        free -= len(got)
        below -= len(got) if take.below_reserve or plan.leave_free else 0
    caps.settle()
    if leases:
        tx.db.run("worker_claimed", request.claim_id, worker_id)
        tx.count(counts | {"claimed": len(leases)})
    elif request.wait and not more:
        lanes = None if request.wait_lanes is None else rows.json_list(request.wait_lanes)
        if not waiting or lanes != wait_lanes:  # A worker that looks again while it waits writes nothing.
            tx.db.run("worker_wait", lanes, worker_id)
    elif waiting:
        tx.db.run("worker_unwait", worker_id)
    return leases, more


def _take(
    tx: SqliteTransaction, caps: SqliteLimitCheck, take: Take, want: int, worker_id: str, token: bytes
) -> tuple[list[Lease], bool]:  # fmt: skip
    """Lease up to ``want`` jobs of a class. Expired ones are cancelled on the way, and those that their own limits hold
    back are put aside; gives also whether it stopped for having passed over too many.
    """
    key = take.key
    class_id = tx.class_id(key)
    if not key.persist:
        paused = rows.json_list(tx.rule_index.rules.paused.tasks)
        taken = tx.db.run("claim_transient", class_id, paused, want).fetchall()
        return [_transient_lease(row, key, worker_id, tx.now_at) for row in sorted(taken)], False
    rule_index, now_at = tx.rule_index, tx.now_at
    on_ladder = counts_on(rule_index.ladder, key.rung)
    leases: list[Lease] = []
    terms: list[tuple[Any, ...]] = []  # Of those leases that have any.
    front: tuple[int, int] | None = None  # The last place taken from the line itself.
    clock = -1  # The highest order key taken where tenants share.
    assigned: str | None = None
    budget_ms: int | None = None
    passed = 0
    more = False
    for park, row in _waiting(tx, class_id, want):
        (
            order_key, seq, eligible_at, epoch, attempts, crashes, timeout_ms, job_id, task, payload, tenant, trace_id,
            max_retries, asked_timeout_ms, retry, expires_at, limits, sharer, parked_at, submitted_at,
        ) = row  # fmt: skip
        if take.until_at is not None and eligible_at > take.until_at:
            break
        if passed == SKIPPED_MAX:
            more = True
            break
        if expires_at is not None and expires_at <= now_at:
            [found] = tx.db.rows("get_by_seq", rows.json_list([seq]))
            cancel(tx, found, "expired")
            tx.changed.append(job_id)
            passed += 1
            continue
        if on_ladder:
            fits, assigned = fit_rung(rule_index.ladder, caps.floor(), key.rung)
            if not fits:
                break
        held = None
        again, unreadable = None, None
        if retry is not None or not rows.are_sound(task, payload, tenant, trace_id):
            task, payload, tenant, trace_id, again, unreadable = rows.read_terms(
                task, payload, tenant, trace_id, retry
            )  # fmt: skip
        if limits is not None or (not rule_index.has_no_limits and rule_index.may_limit(task, tenant)):
            try:
                bound = () if limits is None else rows.read_strings(limits)
            except DAMAGE as problem:  # It never runs, so it counts against none of them.
                bound, unreadable = (), why_unreadable(problem)
            keys = rule_index.keys(task, tenant, bound)
            full = caps.full_key(keys)
            if full is not None:
                block(tx, class_id, park, order_key, seq, full)
                passed += 1
                continue
            held = caps.take(keys)
        if on_ladder:
            caps.assign(assigned)
            budget_ms = budget_of(rule_index.ladder, assigned)
        parked_for, parked_ms = None, None
        if park:
            rule = rule_index.rules.limits.get(park.partition("=")[0])
            parked_for = park_reason(park, is_rate=rule is not None and rule.concurrency is None)
            parked_ms = now_at - parked_at
            _lease(tx, class_id, park, (order_key, seq), worker_id, token)
            unblock_head(tx, class_id, park)
        else:
            front = (order_key, seq)
        if held is not None or assigned is not None or park:
            terms.append((held, assigned, parked_for, parked_ms, seq))
        if sharer is not None and order_key > clock:
            clock = order_key
        leases.append(
            Lease(
                job_id, seq, token, task, payload, key.lane, tenant, trace_id, epoch + 1, attempts + 1, crashes,
                max_retries, timeout_ms, asked_timeout_ms, again, now_at, False, key.needs, worker_id, key.rung,
                assigned, budget_ms, submitted_at, eligible_at, unreadable,
            )
        )  # fmt: skip
        if len(leases) == want:
            break
    if front is not None:
        _lease(tx, class_id, "", front, worker_id, token)
    tx.db.run_many("claim_terms", terms)
    if clock >= 0:
        tx.db.run("class_clock", clock, class_id)
    return leases, more


def _waiting(tx: SqliteTransaction, class_id: int, count: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield the jobs of a class in order, each with the park it waits in: the line merged with the parks that are open.

    Each must be dealt with before the next is asked for. Those taken from the line may be removed from it together.
    """
    after = (-1, 0)
    line: list[tuple[Any, ...]] = []
    while not tx.parks_open:  # The usual case; none opens while jobs are claimed.
        line = tx.db.run("claim_head", class_id, "", *after, count).fetchall()
        for row in line:
            yield "", row
        if len(line) < count:
            return
        after = line[-1][:2]
    line = []
    while True:
        if not line:
            line = tx.db.run("claim_head", class_id, "", *after, count).fetchall()[::-1]
        park = tx.db.run("park_first", class_id).fetchone()
        if park is not None and (not line or park[1:] < line[-1][:2]):
            yield park[0], tx.db.run("claim_head", class_id, park[0], park[1], park[2] - 1, 1).fetchone()
        elif line:
            after = line[-1][:2]
            yield "", line.pop()
        else:
            return


def _lease(
    tx: SqliteTransaction, class_id: int, park: str, front: tuple[int, int], worker_id: str, token: bytes
) -> None:
    """Lease the front of a line, and remove it from there."""
    tx.db.run("claim_lease", worker_id, token, tx.now_at, class_id, park, *front)
    tx.db.run("claim_taken", class_id, park, *front)


def _pump(tx: SqliteTransaction) -> None:
    """Make a bounded batch of due jobs eligible, and open the parks whose time has come."""
    if tx.parked:
        tx.db.run("park_due", tx.namespace_id, tx.now_at)
        tx.parks_changed()
    due = tx.db.run("delayed_due", tx.namespace_id, tx.now_at, DUE_BATCH_MAX).fetchall()
    if not due:
        return
    number = int(tx.db.first("next_sequence", len(due))) - len(due)
    lines = SqliteOrdering(tx)
    for due_at, seq, class_id, task, tenant, *counts in due:
        number += 1
        tx.db.run("delayed_delete", tx.namespace_id, due_at, seq)
        lines.put(class_id, seq, task, tenant, tx.now_at, number, *counts)


def _transient_lease(row: Sequence[Any], key: ClassKey, worker_id: str, now_at: int) -> Lease:
    seq, job_id, task, payload, tenant, trace_id, timeout_ms = row
    return Lease(
        job_id, seq, b"", task, payload, key.lane, tenant, trace_id, 1, 1, 0, 0, timeout_ms, timeout_ms, None, now_at,
        False, key.needs, worker_id,
    )  # fmt: skip
