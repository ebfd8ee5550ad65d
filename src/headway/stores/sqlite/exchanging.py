"""The exchange: hand in, claim by plan, picture what waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headway.core.job import ClassKey
from headway.core.lease import Lease
from headway.core.snapshot import Plan
from headway.core.worker import WorkerState
from headway.stores.base import PUMPED, Exchange, Exchanged
from headway.stores.sqlite import rows
from headway.stores.sqlite.database import ALL
from headway.stores.sqlite.ending import cancel, finish
from headway.stores.sqlite.reading import snapshot
from headway.stores.sqlite.transaction import Transaction


def exchange(tx: Transaction, request: Exchange) -> Exchanged:
    """End leases, note progress, make due jobs eligible, claim by the plan."""
    refused = finish(tx, request.finished) if request.finished else ()
    for note in request.progress:
        tx.db.run("progress", note.fraction, note.note, note.seq, note.token)
    _pump(tx)
    leases: list[Lease] = []
    more = False
    state = WorkerState.DEAD
    if request.worker_id is not None:
        worker = tx.db.run("claimer", request.worker_id, tx.namespace_id).fetchone()
        if worker is not None:
            state = WorkerState(worker[0])
            if request.plan is not None and state is WorkerState.ACTIVE and worker[1] > tx.now_at:
                leases, more = _claim(tx, request, request.plan, worker)
    tx.changed += [report.job_id for report in request.finished]
    tx.changed += [lease.job_id for lease in leases]
    tx.changed += [note.job_id for note in request.progress]
    picture = snapshot(tx) if request.want_snapshot else None
    return Exchanged(tx.now_at, leases, refused, picture, more, state)


def _claim(tx: Transaction, request: Exchange, plan: Plan, worker: Sequence[Any]) -> tuple[list[Lease], bool]:
    _, _, slots, last_claim, waiting, wait_lanes, running = worker
    worker_id = request.worker_id or ""
    if last_claim == request.claim_id:
        again = tx.db.rows("leases_of", worker_id, tx.namespace_id, ALL)
        return [rows.lease(row) for row in again if row["token"] == request.claim_id], False
    free = min(plan.free, slots - running)
    below = plan.free_below
    leases: list[Lease] = []
    more = False
    for take in plan.takes:
        want = min(take.most, free, below if take.below_reserve else free)
        if want <= 0:
            continue
        got, passed = _take(tx, take.key, want, worker_id, request.claim_id)
        more = more or (passed and len(got) < want)
        leases += got
        free -= len(got)
        below -= len(got) if take.below_reserve else 0
    if leases:
        tx.db.run("claimed", request.claim_id, worker_id)
        tx.count({"claimed": len(leases)})
    elif request.wait and not more:
        lanes = None if request.wait_lanes is None else rows.json_list(request.wait_lanes)
        if not waiting or lanes != wait_lanes:  # A worker that looks again while it waits writes nothing.
            tx.db.run("await", lanes, worker_id)
    elif waiting:
        tx.db.run("awake", worker_id)
    return leases, more


def _take(tx: Transaction, key: ClassKey, want: int, worker_id: str, token: bytes) -> tuple[list[Lease], bool]:
    """Lease up to ``want`` jobs from the front of a class; expired ones are cancelled on the way."""
    class_id = tx.class_id(key)
    if not key.persist:
        taken = tx.db.run("claim_transient", class_id, want).fetchall()
        return [_transient_lease(row, key, worker_id, tx.now_at) for row in sorted(taken)], False
    looked = tx.db.run("claim_head", class_id, want).fetchall()
    if not looked:
        return [], False
    leases: list[Lease] = []
    held: list[tuple[Any, ...]] = []
    for (
        _, seq, eligible_at, epoch, attempts, crashes, timeout_ms, job_id, task, payload, tenant, trace_id,
        max_retries, asked_timeout_ms, retry, expires_at, unique_key,
    ) in looked:  # fmt: skip
        if expires_at is not None and expires_at <= tx.now_at:
            [row] = tx.db.rows("get_by_seq", rows.json_list([seq]))
            cancel(tx, row, "expired")
            tx.changed.append(job_id)
            continue
        held.append(
            (seq, class_id, worker_id, token, tx.now_at, eligible_at, epoch + 1, attempts + 1, crashes, timeout_ms,
             unique_key)
        )  # fmt: skip
        leases.append(
            Lease(
                job_id, seq, token, task, payload, key.lane, tenant, trace_id, epoch + 1, attempts + 1, crashes,
                max_retries, timeout_ms, asked_timeout_ms, None if retry is None else rows.read_retry(retry),
                tx.now_at, False, key.needs, worker_id,
            )
        )  # fmt: skip
    if held:
        tx.db.run_many("claim_lease", held)
        tx.db.run("claim_taken", class_id, looked[-1][0], looked[-1][1])
    return leases, len(looked) == want


def _pump(tx: Transaction) -> None:
    """Make a bounded batch of due jobs eligible."""
    due = tx.db.run("due", tx.namespace_id, tx.now_at, PUMPED).fetchall()
    if not due:
        return
    order_key = int(tx.db.first("advance", len(due))) - len(due)
    for due_at, seq, class_id, *counts in due:
        order_key += 1
        tx.db.run("undelay", tx.namespace_id, due_at, seq)
        tx.db.run("ready_again", class_id, order_key, seq, tx.now_at, *counts)
        tx.db.run("place", class_id, order_key, None, seq)
        tx.eligible.append(class_id)


def _transient_lease(row: Sequence[Any], key: ClassKey, worker_id: str, now_at: int) -> Lease:
    seq, job_id, task, payload, tenant, trace_id, timeout_ms = row
    return Lease(
        job_id, seq, b"", task, payload, key.lane, tenant, trace_id, 1, 1, 0, 0, timeout_ms, timeout_ms, None, now_at,
        False, key.needs, worker_id,
    )  # fmt: skip
