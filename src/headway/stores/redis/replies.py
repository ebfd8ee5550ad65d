"""Reads the replies of the functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headway.core.diagnostics import LimitView, QueueDiagnostics, RunningJob
from headway.core.job import ClassKey, JobId, JobRecord, NewJob, State, SubmitReply
from headway.core.policy.document import HALTED, LimitRule
from headway.core.policy.enforced import RuleIndex
from headway.core.policy.ladder import ElasticJob, RunningJobs, RunningSession, rung_index
from headway.core.policy.wait_reasons import WaitInterval
from headway.core.snapshot import ClassView, Snapshot
from headway.core.timestamps import earlier
from headway.stores.base import (
    RULES,
    BlockedStats,
    Document,
    JobQuery,
    QueueBreakdown,
    TenantStats,
    check_same,
)
from headway.stores.redis import codec
from headway.stores.redis.layout import WAIT_INTERVAL
from headway.stores.rule_codec import RuleReader


def read_submitted(jobs: Sequence[NewJob], reply: Any) -> list[SubmitReply]:
    answers = [SubmitReply(job.job_id) for job in jobs]
    if isinstance(reply, list):
        if reply[0] == b"conflict":
            index = int(reply[1])
            check_same(None, jobs[index].digest, jobs[index], index, reply[2].decode())
        for at in range(1, len(reply), 2):
            answers[int(reply[at])] = SubmitReply(JobId(reply[at + 1].decode()), deduplicated=True)
    return answers


def read_limit_views(keys: Sequence[tuple[str, LimitRule]], found: Sequence[Any]) -> tuple[LimitView, ...]:
    views = []
    for at, (key, rule) in enumerate(keys):
        _, used, conforms = found[3 * at : 3 * at + 3]
        views.append(LimitView(key, rule, int(used or 0), int(conforms) if conforms else None))
    return tuple(views)


def read_states(letters: Sequence[bytes]) -> list[State | None]:
    return [codec.STATES.get(letter) for letter in letters]


def read_document(kind: str, name: bytes, stored: bytes) -> Document:
    version, _, body = stored.partition(b"\n")
    return Document(kind, name.decode(), int(version), body)


def rule_parts(found: Sequence[bytes]) -> list[tuple[str, bytes]]:
    """Return the names and bodies of the parts of the rules."""
    documents = (read_document(RULES, found[at], found[at + 1]) for at in range(0, len(found), 2))
    return [(document.name, document.body) for document in documents]


def read_snapshot(now_at: int, seen: Sequence[Any], rule_index: RuleIndex) -> Snapshot:
    due, views, running = seen
    classes = []
    for at in range(0, len(views), 6):
        text, waiting, oldest, head, fair, blocked = views[at : at + 6]
        classes.append(
            ClassView(
                codec.class_key(text),
                int(waiting),
                int(oldest) if oldest else None,
                int(head) - codec.BASE if head else 0,
                fair == b"1",
                blocked.decode() or None,
            )
        )
    classes.sort(key=lambda view: (view.key.lane, view.key.needs, view.key.rung or "", view.key.persist))
    running_jobs = read_running_jobs(running, rule_index) if running else None
    return Snapshot(now_at, tuple(classes), int(due) if due else None, running_jobs)


def read_running_jobs(reply: Sequence[Any], rule_index: RuleIndex) -> RunningJobs:
    slots, running, counts, *listed = reply
    elastic, sessions = (
        [(JobId(jobs[at].decode()), jobs[at + 1].decode(), int(jobs[at + 2])) for at in range(0, len(jobs), 3)]
        for jobs in listed
    )
    return RunningJobs(
        slots,
        slots - running,
        tuple(counts),
        tuple(
            ElasticJob(job_id, index, started_at)
            for job_id, rung, started_at in elastic
            if (index := rung_index(rule_index.ladder, rung)) is not None
        ),
        tuple(RunningSession(job_id, started_at, rung == HALTED) for job_id, rung, started_at in sessions),
    )


def read_wait_interval(kind: ClassKey, entry: bytes) -> WaitInterval:
    started_at, ended_at = WAIT_INTERVAL.unpack(entry)
    return WaitInterval(kind, int(started_at), int(ended_at), entry[WAIT_INTERVAL.size :].decode())


def read_diagnosis(now_at: int, seen: Sequence[Any], rules: RuleReader) -> tuple[QueueDiagnostics, RuleIndex]:
    snapshot, workers, executing, parts = seen
    rule_index = RuleIndex(rules.join(rule_parts(parts)))
    running = []
    for _, record, held, kind in executing:
        lease, _ = codec.try_held(held)
        task = codec.try_record(record)[0].task
        running.append(RunningJob(task, codec.class_key(kind).lane, lease.worker_id, lease.started_at, lease.held))
    known = tuple(codec.read_worker(row, now_at) for row in workers)
    return QueueDiagnostics(
        read_snapshot(now_at, snapshot, rule_index), known, tuple(running), rule_index.rules
    ), rule_index


def read_breakdown(reply: Sequence[Any], limit: int) -> QueueBreakdown:
    now_at, waiting, running, queues = reply
    tenants: dict[str, TenantStats] = {}
    blocked: dict[str, BlockedStats] = {}
    for at in range(0, len(waiting), 3):
        tenant, known = waiting[at].decode(), tenants.get(waiting[at].decode(), TenantStats())
        oldest_at = earlier(known.oldest_at, int(waiting[at + 2]))
        tenants[tenant] = TenantStats(known.waiting + int(waiting[at + 1]), 0, oldest_at)
    for name in running:
        known = tenants.get(name.decode(), TenantStats())
        tenants[name.decode()] = known._replace(running=known.running + 1)
    for at in range(0, len(queues), 4):
        key, lane, open_at = queues[at].decode(), queues[at + 1].decode(), int(queues[at + 3] or 0)
        opens_at = open_at if open_at > now_at else None
        queue = blocked.get(key, BlockedStats())
        waiting = queue.lanes.get(lane, 0) + int(queues[at + 2])
        blocked[key] = BlockedStats({**queue.lanes, lane: waiting}, earlier(queue.open_at, opens_at))
    return QueueBreakdown(now_at, tenants, dict(sorted(blocked.items())[:limit]))


def matches(job: JobRecord, query: JobQuery) -> bool:
    return (
        query.task in (None, job.task)
        and query.lane in (None, job.lane)
        and query.tenant in (None, job.tenant)
        and query.worker_id in (None, job.worker_id)
        and (query.submitted_before_at is None or job.submitted_at < query.submitted_before_at)
        and (query.submitted_after_at is None or job.submitted_at >= query.submitted_after_at)
    )


def sum_counts(flat: Sequence[bytes]) -> dict[str, int]:
    """Add up the counts of all minutes."""
    sums: dict[str, int] = {}
    for at in range(0, len(flat), 2):
        what = flat[at].decode()
        sums[what] = sums.get(what, 0) + int(flat[at + 1])
    return sums
