"""The exchange in one call of a function."""

from __future__ import annotations

import time
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from headway.core.job import JobId, State
from headway.core.lease import Lease, Report, ReportStatus
from headway.core.policy.ladder import budget_of
from headway.core.snapshot import Plan, Take
from headway.core.workflow import BatchId
from headway.stores.base import SKIPPED_MAX, WAITING_COUNTED, Exchange, ExchangeReply
from headway.stores.postgres.connections import ServerError
from headway.stores.postgres.demands import demand_of
from headway.stores.postgres.rows import read_more, read_snapshot, rows
from headway.stores.postgres.runner import PostgresCache, PostgresRunner, Row
from headway.stores.sql.transaction import ALL, LOWEST
from headway.stores.unreadable import read_worker_state

FULL_SCAN_EVERY = 0.25  # Seconds after which a claim reads a line from its very start, whatever it finds later.
FULL_SCAN_SHARE = 20  # Full scans take at most one part in this many of the time: dead rows may make them slow.

NEVER, IF_NOTHING, AT_ONCE = 0, 1, 2

_number = attrgetter("seq")


class FullScanSchedule:
    """Decides which claims read every class from its first row. Keeps when the last one ran, and what it cost."""

    def __init__(self) -> None:
        self._last = 0.0
        self._cost = 0.0

    def next(self) -> int:
        """Return whether the next claim does a full scan."""
        since = time.monotonic() - self._last
        if since < FULL_SCAN_SHARE * self._cost:
            return NEVER
        return AT_ONCE if since >= FULL_SCAN_EVERY else IF_NOTHING

    def note(self, looked_us: int) -> None:
        if looked_us:
            self._last, self._cost = time.monotonic(), looked_us / 1_000_000


class ExchangeOutcome(NamedTuple):
    """The status that the function returned, and the reply if the status is ``ok``."""

    status: str
    reply: ExchangeReply | None = None


def is_eligible(request: Exchange) -> bool:
    """Return whether all reports of an exchange are plain endings, each of another job."""
    reports = request.finished
    return all(report.state is not State.QUEUED and not report.expired_only for report in reports) and (
        len({report.seq for report in reports}) == len(reports)
    )


async def exchange(
    db: PostgresRunner,
    memory: PostgresCache,
    looks: FullScanSchedule,
    request: Exchange,
    now_at: int | None,
    *,
    alone: bool,
    due_done: bool = False,
    settles: bool = False,
) -> ExchangeOutcome:
    """Do an exchange in one step.

    ``due_done``: the caller has made the jobs eligible that have fallen due. ``settles``: it holds the flow lock.
    """
    reports = sorted(request.finished, key=_number)
    row, takes, classes = await _call(db, memory, request, reports, now_at, looks.next(), alone, due_done, settles)
    if row["status"] != "ok":
        return ExchangeOutcome(row["status"])
    looks.note(row["looked_us"])
    for class_id, start, rewound in zip(classes, row["reached"] or (), row["rewound"] or (), strict=False):
        memory.line_starts[class_id] = (start, rewound)
    snapshot = None
    if row["picture"] is not None:
        snapshot, numbers, _ = read_snapshot(row["picture"], row["now_at"], memory.rule_index)
        memory.class_ids.update(numbers)
    if row["again"]:
        found = await db.run("leases_of", request.worker_id, memory.namespace_id, ALL, True)
        leases = [rows.lease(lease, memory.rule_index.ladder) for lease in found if lease["token"] == request.claim_id]
    else:
        leases = _leases(row, takes, request, memory) if row["l_take"] is not None else []
    refused = _refused(row, reports, request.finished)
    state = read_worker_state(row["state"])
    return ExchangeOutcome("ok", ExchangeReply(row["now_at"], leases, refused, snapshot, row["more"], state))


async def _call(
    db: PostgresRunner,
    memory: PostgresCache,
    request: Exchange,
    reports: Sequence[Report],
    now_at: int | None,
    look: int,
    alone: bool,
    due_done: bool,
    settles: bool,
) -> tuple[Row, list[Take], list[int]]:
    """Call the function with the reports. Return its row, the takes passed to it, and their classes."""
    plan = request.plan
    takes = [] if plan is None else _able(plan, memory)
    classes = [memory.class_ids[take.key] for take in takes]
    starts = [memory.line_starts.get(class_id, (LOWEST, -1)) for class_id in classes]
    try:
        row = await db.row(
            "exchange",
            memory.namespace_id,
            now_at,
            memory.rules_version,
            alone,
            due_done,
            settles,
            request.worker_id,
            memory.spots.get(request.worker_id),
            request.claim_id,
            *_reports(reports),
            *_progress(request),
            plan is not None,
            0 if plan is None else plan.free,
            0 if plan is None else plan.free_below,
            plan is not None and plan.leave_free,
            ALL if plan is None or plan.known is None else plan.known,
            classes,
            [take.most for take in takes],
            [take.below_reserve for take in takes],
            [take.until_at for take in takes],
            [None if take.over is None else f"promoted.{take.key.lane}.{take.over}" for take in takes],
            [start for start, _ in starts],
            [rewound for _, rewound in starts],
            *memory.rule_columns.of_takes(takes),
            *memory.rule_columns.columns,
            look,
            request.wait,
            None if request.wait_lanes is None else list(request.wait_lanes),
            request.want_snapshot,
            WAITING_COUNTED,
            SKIPPED_MAX,
        )
    except ServerError as problem:
        demand = demand_of(problem)
        if demand is None:
            raise
        raise demand from problem
    if row["spot"] is not None:
        memory.spots[request.worker_id] = row["spot"]
    return row, takes, classes


def _refused(row: Row, reports: Sequence[Report], given: Sequence[Report]) -> list[tuple[JobId, ReportStatus]]:
    """Read which reports were not newly taken, in the order in which they were given."""
    if not row["refused"]:
        return []
    answers = {
        reports[index].seq: ReportStatus(text) for index, text in zip(row["refused"], row["answers"], strict=True)
    }
    return [(report.job_id, answers[report.seq]) for report in given if report.seq in answers]


def _able(plan: Plan, memory: PostgresCache) -> list[Take]:
    """Return the takes of a plan that may bring something: their lanes are not paused, their classes exist."""
    return [
        take for take in plan.takes if take.key in memory.class_ids and not memory.rule_index.lane_paused(take.key.lane)
    ]


def _reports(reports: Sequence[Report]) -> list[list[object] | None]:
    """Return the columns of reports. Empty columns are left out."""
    if not reports:
        return [None] * 11
    (ids, seqs, tokens, states, results, problems, errors, reasons, attempts, crashes, timeouts, *_) = zip(
        *reports, strict=True
    )
    return [
        list(ids) if b"" in tokens else None, list(seqs), _short(tokens), _short(states),
        None if results.count(None) == len(results) else list(results),
        _short(attempts), _short(crashes), _short(timeouts),
        _said([rows.text(problem) for problem in problems]), _said([rows.error_text(error) for error in errors]),
        _said([rows.text(reason) for reason in reasons]),
    ]  # fmt: skip


def _progress(request: Exchange) -> list[list[object] | None]:
    if not request.progress:
        return [None] * 5
    ids, seqs, tokens, fractions, notes = zip(*request.progress, strict=True)
    return [list(ids), list(seqs), list(tokens), list(fractions), [rows.text(note) for note in notes]]


def _short(values: Sequence[object]) -> list[object]:
    """Return the values of a column, or only the first one if all are equal."""
    return list(values[:1]) if values.count(values[0]) == len(values) else list(values)


def _said(values: list[str | None]) -> list[object] | None:
    return list(values) if any(value is not None for value in values) else None


def _leases(row: Row, takes: Sequence[Take], request: Exchange, memory: PostgresCache) -> list[Lease]:
    worker_id, claim_id, now_at = request.worker_id or "", request.claim_id, row["now_at"]
    keys = [take.key for take in takes]
    budgets = {name: budget_of(memory.rule_index.ladder, name) for name in set(row["l_rung"])}
    batch_ids = _batch_ids(row)
    leases = []
    for place, seq, job_id, task, payload, tenant, trace, most, asked, submitted_at, more, assigned, damaged in zip(
        row["l_take"], row["l_seq"], row["l_id"], row["l_task"], row["l_payload"], row["l_tenant"], row["l_trace"],
        row["l_retries"], row["l_asked"], row["l_submitted"], row["l_more"],
        row["l_rung"], row["l_damaged"], strict=True,
    ):  # fmt: skip
        lane, needs, rung, persist = keys[place]
        if not rows.are_plain(task, payload, tenant, trace):
            task, tenant, trace = rows.read_text(task) or "", rows.read_text(tenant), rows.read_text(trace)
        epoch, attempts, crashes, length, retry, eligible_at = (
            (1, 1, 0, asked, None, submitted_at) if more is None else read_more(more)
        )
        rule, unreadable = (None, None) if retry is None else rows.try_retry(retry)
        if damaged is not None:
            unreadable = rows.why_no_strings(damaged)
        leases.append(
            Lease(
                JobId(job_id), seq, claim_id if persist else b"", task, payload, lane, tenant, trace, epoch,
                attempts, crashes, most, length, asked, rule, now_at, False, needs, worker_id,
                rung if persist else None, assigned, budgets[assigned], submitted_at, eligible_at,
                batch_ids.get(seq), unreadable,
            )
        )  # fmt: skip
    return leases


def _batch_ids(row: Row) -> dict[int, BatchId]:
    """Return the batches of claimed members, by the numbers of the jobs."""
    if row["b_job"] is None:
        return {}
    ids = dict(zip(row["b_seq"] or (), row["b_id"] or (), strict=True))
    return {seq: ids[of] for seq, of in zip(row["b_job"], row["b_of"], strict=True) if of is not None}
