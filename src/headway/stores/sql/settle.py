"""Settles edges when their source has ended or is live again: releases, cancels and holds dependants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from headway.core.job import State
from headway.core.workflow import (
    CALLBACKS,
    HELD_AT,
    SETTLED_MAX,
    EdgeRule,
    EdgeVerdict,
    SourceStatus,
    batch_reason,
    settle,
    upstream_reason,
    waits_again,
)
from headway.stores.sql.finish import cancel, is_unique_key_taken, take_back
from headway.stores.sql.ordering import Ordering, Requeue
from headway.stores.sql.rows import Row
from headway.stores.sql.transaction import Transaction
from headway.stores.unreadable import read_state


async def settle_moves(tx: Transaction) -> bool:
    """Settle what this transaction has moved, if anything. Return whether something is left."""
    return await tx.settle_edges() if tx.has_moves else False


async def settle_edges(tx: Transaction) -> bool:
    """Settle what this and earlier transactions have left, up to a bound. Return whether something is left.

    This is how a database inside this process does it, where a statement costs little. A crash leaves nothing half
    done, because all of it is one transaction. What is left is written with it.
    """
    if not (tx.has_moves or tx.has_unsettled):
        return False
    tx.exclude_others()
    await _hold_ended_callbacks(tx)
    stored = await _load(tx)
    while True:
        while tx.unsettled and tx.edges_left:
            await _settle_source(tx, next(iter(tx.unsettled)))
        while tx.uncancelled and tx.edges_left:
            await _cancel_members(tx, next(iter(tx.uncancelled)))
        if not tx.changed_counts:
            break
        await _write_counts(tx)
    loaded_all = len(stored) <= SETTLED_MAX
    await _store(tx, stored)
    left = bool(tx.unsettled or tx.uncancelled) or not loaded_all
    if left:
        await tx.wake_any()
    return left


async def _load(tx: Transaction) -> dict[tuple[int, bool], int]:
    """Put what earlier transactions have left before what this one adds. Return it: source and kind, and its place."""
    found = await tx.db.run("unsettled", tx.namespace_id, SETTLED_MAX + 1) if tx.has_unsettled else ()
    stored = {(source_seq, bool(members)): reached for source_seq, members, reached in found}
    earlier = {source_seq: reached for (source_seq, members), reached in stored.items() if not members}
    tx.unsettled = earlier | tx.unsettled
    earlier = {source_seq: reached for (source_seq, members), reached in stored.items() if members}
    tx.uncancelled = earlier | tx.uncancelled
    return stored


async def _store(tx: Transaction, stored: dict[tuple[int, bool], int]) -> None:
    """Write what is left for later transactions."""
    for members, left in ((False, tx.unsettled), (True, tx.uncancelled)):
        for source_seq, reached in list(left.items()):
            if stored.pop((source_seq, members), None) == reached:
                continue
            values = (tx.namespace_id, source_seq, members, reached)
            if await tx.db.first("unsettled_put", *values) is None:
                del left[source_seq]  # It is marked, but its dependants were pruned.
    for source_seq, members in stored:
        await tx.db.run("unsettled_delete", source_seq, members)


# ---------------------------------------------------------------------- edges


async def _settle_source(tx: Transaction, source_seq: int) -> None:
    """Settle the next edges of a source, in the order in which their dependants were submitted."""
    source = await tx.db.row("source", source_seq)
    if source is None:
        del tx.unsettled[source_seq]
        return
    source_id, status, failing = source[0], SourceStatus(source[1]), bool(source[2])
    after = (source_seq, tx.unsettled[source_seq])
    edges = _page(
        tx, tx.unsettled, source_seq,
        await tx.db.run("edges_from", *after, tx.namespace_id, HELD_AT, tx.edges_left + 1),
    )  # fmt: skip
    verdicts = {rule: settle(rule, status, failing=failing) for rule in EdgeRule}
    reason = upstream_reason(source_id)
    satisfied: list[int] = []
    held: set[int] = set()
    ended: list[int] = []
    for seq, text, is_satisfied, is_held, state, why in edges:
        rule = EdgeRule(text)
        verdict = verdicts[rule]
        if is_held:
            held.add(seq)
        if verdict is EdgeVerdict.SATISFY:
            if not is_satisfied:
                satisfied.append(seq)
        elif verdict is EdgeVerdict.CANCEL:
            if is_held:
                ended.append(seq)
        elif status is SourceStatus.LIVE:
            because = state == State.CANCELLED and tx.rows.read_text(why) == reason
            if because or is_satisfied:
                await _wait_again(tx, source_seq, seq, rule if is_satisfied else None, is_held=is_held, state=state)
    await cancel_all(tx, dict.fromkeys(ended, reason))
    if satisfied:
        await tx.db.run("edges_satisfy", source_seq, tx.rows.array(satisfied))
        found = await tx.db.run("dependants_lower", tx.rows.array(satisfied))
        free = {seq for seq, pending in found if pending == 0}
        await release(tx, [seq for seq in satisfied if seq in free and seq in held])


def _page(tx: Transaction, left: dict[int, int], seq: int, found: Sequence[Any]) -> Sequence[Any]:
    """Return the rows that the transaction may still handle, and note how far that comes. ``found`` has one more."""
    page = found[: tx.edges_left]
    if len(page) < len(found):
        left[seq] = page[-1][0]
    else:
        del left[seq]
    tx.edges_left -= len(page)
    return page


async def release(tx: Transaction, seqs: Sequence[int]) -> None:
    """Let held jobs wait for a slot, or until the delay of each has passed."""
    if not seqs:
        return
    numbers = tx.rows.array(seqs)
    found = await tx.db.run("held_jobs", tx.namespace_id, HELD_AT, numbers)
    await tx.db.run("held_delete", tx.namespace_id, HELD_AT, numbers)
    ordering = Ordering(tx)
    for *columns, job_id, due_at, back, batch_seq in found:
        job = Requeue(*columns)
        if due_at > tx.now_at:
            await tx.put_delayed(job, due_at)
        else:
            [number] = await tx.next_numbers(1) if back else [job.seq]
            await ordering.put(job, tx.now_at, number, early=not back)
        if batch_seq is not None:
            tx.changed_counts.setdefault(batch_seq, Counter())["held"] -= 1
        tx.changed.append(job_id)
    tx.count({"unheld": len(found)})


async def cancel_all(tx: Transaction, reasons: Mapping[int, str]) -> None:
    """Cancel live jobs, each with a reason, in order."""
    if not reasons:
        return
    rows = {row["seq"]: row for row in await tx.db.rows("get_by_seq", tx.rows.array(reasons))}
    for seq, reason in reasons.items():
        await cancel(tx, rows[seq], reason)
        tx.changed.append(rows[seq]["job_id"])


async def _hold_ended_callbacks(tx: Transaction) -> None:
    """Hold the callbacks again that have ended, and whose batch began a new round while they ran."""
    if tx.unsettled:
        found = {seq for (seq,) in await tx.db.run("edges_again", tx.rows.array(tx.unsettled))}
        for seq in [seq for seq in reversed(tx.unsettled) if seq in found]:
            await _hold_again(tx, seq)


async def _wait_again(
    tx: Transaction, source_seq: int, seq: int, satisfied: EdgeRule | None, *, is_held: bool, state: str | None
) -> None:
    """Let a dependant wait for a source that is live again, if its ending had released or cancelled the dependant.

    ``satisfied``: the rule of the edge, if it is satisfied. ``state``: executing or an ending, None if it is queued.
    """
    if satisfied and is_held:
        await _unsatisfy(tx, source_seq, seq)
    elif satisfied in CALLBACKS and state == State.EXECUTING:
        await tx.db.run("edge_again", source_seq, seq)
        await tx.db.run("jobs_await", tx.rows.array([seq]))  # The mark brings the end of its lease here.
        await tx.db.run("leases_await", tx.rows.array([seq]))
    elif satisfied in CALLBACKS:
        await _hold_again(tx, seq)
    elif not satisfied:
        edges = await tx.db.rows("edges_to", tx.rows.array([seq]), False)
        others = [row["source"] for row in edges if _verdict(row) is EdgeVerdict.CANCEL]
        if others:
            await tx.db.run("outcome_set_reason", tx.rows.text(upstream_reason(others[0])), seq)
            [row] = await tx.db.rows("get_by_seq", tx.rows.array([seq]))
            tx.changed.append(row["job_id"])
        else:
            await _hold_again(tx, seq)


async def _hold_again(tx: Transaction, seq: int) -> None:
    """Hold a job that has ended or been released as if it were new, unless another job uses its unique key now."""
    [row] = await tx.db.rows("get_by_seq", tx.rows.array([seq]))
    before = read_state(row["state"])
    if before is not State.QUEUED and await is_unique_key_taken(tx, row):
        return
    job = await take_back(tx, row)
    if job is None:
        return
    await tx.db.run("steps_forget", seq)
    await tx.put_delayed(job, HELD_AT)
    if before.ended:
        tx.moved(row, before, State.QUEUED, held=1)
    elif row["batch_seq"] is not None:
        tx.changed_counts.setdefault(row["batch_seq"], Counter())["held"] += 1
    tx.changed.append(row["job_id"])
    await _settle_dependant(tx, seq)


async def hold_retried(tx: Transaction, seqs: Sequence[int]) -> None:
    """Hold the retried jobs again that have a live source."""
    found: dict[int, list[Row]] = {}
    for row in await tx.db.rows("edges_to", tx.rows.array(seqs), False):
        found.setdefault(row["dependant_seq"], []).append(row)
    for seq, edges in found.items():
        if waits_again((SourceStatus(row["status"]), _verdict(row)) for row in edges):
            tx.exclude_others()
            await _hold_retried(tx, seq, edges)


async def _hold_retried(tx: Transaction, seq: int, edges: Sequence[Row]) -> None:
    [row] = await tx.db.rows("get_by_seq", tx.rows.array([seq]))
    job = await take_back(tx, row)
    if job is None:
        return
    await tx.db.run("steps_forget", seq)
    await tx.put_delayed(job, HELD_AT)
    if row["batch_seq"] is not None:
        tx.changed_counts.setdefault(row["batch_seq"], Counter())["held"] += 1
    for edge in edges:
        is_satisfied = _verdict(edge) is EdgeVerdict.SATISFY
        if is_satisfied and not edge["satisfied"]:
            await tx.db.run("edge_satisfy", edge["source_seq"], seq)
            await tx.db.run("dependant_lower", seq)
        elif edge["satisfied"] and not is_satisfied:
            await _unsatisfy(tx, edge["source_seq"], seq)


async def _settle_dependant(tx: Transaction, seq: int) -> None:
    """Settle all edges into a held job at once."""
    await tx.db.run("edges_again_clear", seq)
    pending = 0
    for row in await tx.db.rows("edges_to", tx.rows.array([seq]), False):
        verdict = _verdict(row)
        if verdict is EdgeVerdict.CANCEL:
            await cancel_all(tx, {seq: upstream_reason(row["source"])})
            return
        if verdict is EdgeVerdict.WAIT:
            pending += 1
            if row["satisfied"]:
                await _unsatisfy(tx, row["source_seq"], seq)
        elif not row["satisfied"]:
            await tx.db.run("edges_satisfy", row["source_seq"], tx.rows.array([seq]))
            await tx.db.run("dependants_lower", tx.rows.array([seq]))
    if not pending:
        await release(tx, [seq])


def _verdict(row: Row) -> EdgeVerdict:
    """Return the verdict on an edge. The edge of a source that was pruned stays satisfied."""
    if row["satisfied"] and row["pruned"]:
        return EdgeVerdict.SATISFY
    return settle(EdgeRule(row["rule"]), SourceStatus(row["status"]), failing=bool(row["failing"]))


async def _unsatisfy(tx: Transaction, source_seq: int, seq: int) -> None:
    await tx.db.run("edge_unsatisfy", source_seq, seq)
    await tx.db.run("dependant_raise", seq)


# ---------------------------------------------------------------------- batches


async def _cancel_members(tx: Transaction, batch_seq: int) -> None:
    """Cancel members of a cancelled batch, up to the bound of the transaction."""
    found = await tx.db.run("members_next", batch_seq, tx.uncancelled[batch_seq], tx.edges_left + 1)
    live = [seq for seq, is_live in _page(tx, tx.uncancelled, batch_seq, found) if is_live]
    await cancel_all(tx, dict.fromkeys(live, batch_reason(await tx.db.first("source", batch_seq))))


async def _write_counts(tx: Transaction) -> None:
    """Write what has changed in the counts of batches, and find those that failed, ended or began a round."""
    while tx.changed_counts:
        changes, tx.changed_counts = sorted(tx.changed_counts.items()), {}
        for batch_seq, change in changes:
            await _write_count(tx, batch_seq, change)


async def _write_count(tx: Transaction, batch_seq: int, change: Counter[str]) -> None:
    names = ("live", "children", "held", "completed", "failed", "cancelled")
    batch = await tx.db.row("batch_count", batch_seq, *(change[name] for name in names))
    is_open, live, failed, cancelled, failing, round_, cancel_at, finished_at, parent_seq = batch
    completed = not (failed or cancelled)
    before = failing, round_, cancel_at, finished_at
    if finished_at is not None and live:
        had_completed = failed == change["failed"] and cancelled == change["cancelled"]
        failing, round_, cancel_at, finished_at = False, round_ + 1, None, None
        tx.uncancelled.pop(batch_seq, None)
        _count_child(tx, parent_seq, completed=had_completed, ended=-1)
    if change["bad"] and not failing and cancel_at is None:
        failing = True
    if finished_at is None and not is_open and not live:
        finished_at = tx.now_at
        _count_child(tx, parent_seq, completed=completed, ended=1)
    if (failing, round_, cancel_at, finished_at) == before:
        return
    if await tx.db.first("batch_set_state", bool(failing), round_, cancel_at, finished_at, batch_seq):
        tx.unsettled[batch_seq] = 0


def _count_child(tx: Transaction, parent_seq: int | None, *, completed: bool, ended: int) -> None:
    """Count the ending of a child batch in its parent, or take it back with ``ended=-1``."""
    if parent_seq is None:
        return
    change = tx.changed_counts.setdefault(parent_seq, Counter())
    change["live"] -= ended
    change["children"] -= ended
    change["completed" if completed else "failed"] += ended
    change["bad"] += ended == 1 and not completed
