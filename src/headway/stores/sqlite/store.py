"""The verbs of a store, on one SQLite file that several processes may share."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import apsw

from headway.core.job import Attempt, ClassKey, Job, JobId, NewJob, State, Submitted, check_move
from headway.core.lease import Answer, Lease, Report, answer_late
from headway.core.policy.document import BUILT_IN, Keep
from headway.core.policy.retry import Released, heed_cancel, judge
from headway.core.snapshot import ClassView, Plan, Snapshot
from headway.core.worker import WorkerState, serves
from headway.stores.base import (
    KEEPER,
    PUMPED,
    WAITING_COUNTED,
    Abilities,
    Beat,
    Clock,
    Document,
    Ear,
    Exchange,
    Exchanged,
    JobQuery,
    LaneStats,
    Renewed,
    Stats,
    check_digest,
)
from headway.stores.sqlite import rows
from headway.stores.sqlite.bell import Bell
from headway.stores.sqlite.database import MIGRATIONS, Connection, Database

MINUTE = 60_000
DEAD_WORKERS_KEPT_MS = 3_600_000
ALL = 1_000_000
NEWEST = 2**63 - 1  # Above every sequence number.
SCANNED = 5_000  # Ended jobs that one pruning looks at.
BAD = (State.FAILED, State.CANCELLED, State.DEAD_LETTER)


class SqliteStore:
    """Jobs in a file: durable through power loss by default, shared by any number of processes of one machine."""

    abilities = Abilities(durable=True, shared=True, any_loop=True)

    def __init__(self, path: Path, namespace: str = "default", *, clock: Clock, synchronous: str = "FULL") -> None:
        self.path = path
        self.namespace = namespace
        self._clock = clock
        self._last_at = 0
        self._database = Database(path, synchronous)
        self._bell = Bell(path)
        self._namespace_id = 0
        self._class_ids: dict[ClassKey, int] = {}
        self._pruned_to = 0

    # ------------------------------------------------------------------ the verbs

    async def open(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._database.open)
        known = await self._database.read(lambda db: db.first("namespace_find", self.namespace))
        if known is None:
            known = await self._database.write(lambda db: db.first("namespace_add", self.namespace))
        self._namespace_id = int(known)

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._database.close)

    async def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        return await self._database.write(partial(self._submit, jobs), vital=False)

    async def exchange(self, request: Exchange) -> Exchanged:
        return await self._database.write(partial(self._exchange, request))

    async def renew(self, beat: Beat) -> Renewed:
        return await self._database.write(partial(self._renew, beat))

    async def leases(self, *, worker_id: str | None = None, limit: int = 1_000) -> list[Lease]:
        def read(db: Connection) -> list[Lease]:
            if worker_id is not None:
                found = db.rows("leases_of", worker_id, self._namespace_id, limit)
            else:
                found = db.rows("leases_expired", self._namespace_id, self._now(), limit)
            return [rows.lease(row) for row in found]

        return await self._database.read(read)

    async def bury(self, worker_id: str) -> None:
        await self._database.write(lambda db: self._set_worker_state(db, worker_id, WorkerState.DEAD))

    async def drain(self, worker_id: str) -> bool:
        def write(db: Connection) -> bool:
            known = self._set_worker_state(db, worker_id, WorkerState.DRAINING)
            self._database.after_commit(lambda: self._bell.ring(worker_id + KEEPER))
            return known

        return await self._database.write(write)

    async def cancel(self, job_ids: Sequence[JobId], reason: str = "cancelled") -> list[State | None]:
        def write(db: Connection) -> list[State | None]:
            now_at = self._now()
            found = self._rows(db, list(dict.fromkeys(job_ids)))
            states = {row["job_id"]: self._cancel(db, row, reason, now_at) for row in found if row is not None}
            self._tell_watchers(job_ids)
            return [states.get(job_id) for job_id in job_ids]

        return await self._database.write(write)

    async def retry(self, job_ids: Sequence[JobId]) -> list[State | None]:
        def write(db: Connection) -> list[State | None]:
            now_at = self._now()
            eligible: list[int] = []
            found = self._rows(db, list(dict.fromkeys(job_ids)))
            states = {row["job_id"]: self._retry(db, row, now_at, eligible) for row in found if row is not None}
            self._wake_workers(db, eligible, now_at)
            self._tell_watchers(job_ids)
            return [states.get(job_id) for job_id in job_ids]

        return await self._database.write(write)

    async def get(self, job_ids: Sequence[JobId]) -> list[Job | None]:
        def read(db: Connection) -> list[Job | None]:
            found = self._rows(db, job_ids)
            history = _history(db, [row["seq"] for row in found if row is not None])
            return [None if row is None else rows.job(row, history.get(row["seq"], ())) for row in found]

        return await self._database.read(read)

    async def find(self, query: JobQuery) -> list[Job]:
        return await self._database.read(partial(self._find, query))

    async def snapshot(self) -> Snapshot:
        return await self._database.read(lambda db: self._snapshot(db, self._now()))

    async def stats(self) -> Stats:
        return await self._database.read(self._stats)

    async def prune(self, keep: Keep, *, limit: int = 1_000) -> int:
        return await self._database.write(partial(self._prune, keep, limit))

    async def purge(self, states: Sequence[State], job_ids: Sequence[JobId] | None, *, limit: int = 1_000) -> int:
        def write(db: Connection) -> int:
            wanted = rows.json_list([state.value for state in states])
            if job_ids is None:
                found = db.run("purge_states", self._namespace_id, wanted, limit).fetchall()
            else:
                found = db.run("purge_named", self._namespace_id, wanted, rows.json_list(job_ids), limit).fetchall()
            _forget(db, [seq for (seq,) in found])
            return len(found)

        return await self._database.write(write)

    async def read(self, kind: str, name: str | None = None) -> list[Document]:
        return await self._database.read(
            lambda db: [Document(*row) for row in db.run("documents", self._namespace_id, kind, name)]
        )

    async def write(self, kind: str, name: str, body: bytes | None, *, if_version: int | None = None) -> int | None:
        def write(db: Connection) -> int | None:
            version = db.first("document_version", self._namespace_id, kind, name) or 0
            if if_version is not None and if_version != version:
                return None
            if body is None:
                db.run("document_remove", self._namespace_id, kind, name)
            else:
                db.run("document_write", self._namespace_id, kind, name, version + 1, body)
            return int(version) + 1

        return await self._database.write(write)

    def listen(self, name: str) -> Ear:
        return self._bell.listen(name)

    async def schema(self) -> tuple[int | None, int]:
        found = await asyncio.get_running_loop().run_in_executor(None, self._database.version)
        return found, MIGRATIONS[-1][0]

    async def facts(self) -> dict[str, str]:
        survives = "process, system and power loss" if self._database.synchronous != "NORMAL" else "process crash only"
        return {
            "store": f"sqlite, {self.path.resolve()}",
            "schema": str(MIGRATIONS[-1][0]),
            "sqlite": apsw.sqlite_lib_version(),
            "durability": f"synchronous={self._database.synchronous}: an accepted job survives {survives}",
        }

    # ------------------------------------------------------------------ submitting

    def _submit(self, jobs: Sequence[NewJob], db: Connection) -> list[Submitted]:
        now_at = self._now()
        answers, fresh = self._check_submit(db, jobs, now_at)
        if not fresh:
            return answers
        seq = int(db.first("advance", len(fresh))) - len(fresh)
        job_rows: list[tuple[Any, ...]] = []
        ready: list[tuple[int, int, int, int]] = []
        eligible: list[int] = []
        for job in fresh:
            seq += 1
            class_id = self._class_ids.get(key := job.class_key) or self._class_id(db, key)
            if not job.persist:
                values = (class_id, seq, job.job_id, job.task, job.tenant, job.trace_id, job.timeout_ms, job.payload)
                db.run("submit_transient", *values)
                eligible.append(class_id)
                continue
            due_at = max(job.due_at or 0, now_at + job.delay_ms)
            waits = due_at > now_at
            expires_at = None if job.expires_ms is None else now_at + job.expires_ms
            job_rows.append(
                (
                    seq,
                    job.job_id,
                    self._namespace_id,
                    class_id,
                    None if waits else seq,
                    due_at if waits else None,
                    job.task,
                    job.tenant,
                    job.trace_id,
                    now_at,
                    expires_at,
                    job.max_retries,
                    job.timeout_ms,
                    None if job.retry is None else rows.retry_text(job.retry),
                    job.idempotency_key,
                    job.unique_key,
                    job.digest,
                    job.payload,
                )
            )
            if waits:
                db.run("delay", self._namespace_id, due_at, seq, class_id, 0, 0, 0, None, None, None, None)
            else:
                ready.append((class_id, seq, seq, now_at))
                eligible.append(class_id)
            if job.unique_key is not None:
                db.run("submit_unique", self._namespace_id, job.unique_key, seq)
            if job.idempotency_key is not None:
                until_at = now_at + job.idempotency_ms
                scope = (self._namespace_id, job.tenant or "", job.idempotency_key)
                db.run("submit_key", *scope, job.job_id, job.digest, until_at)
            if expires_at is not None:
                db.run("submit_expiry", self._namespace_id, expires_at, seq)
        db.run_many("submit_job", job_rows)
        db.run_many("ready_new", ready)
        self._count(db, {"submitted": len(fresh)}, now_at)
        self._wake_workers(db, eligible, now_at)
        self._tell_watchers([answer.job_id for answer in answers])
        return answers

    def _check_submit(
        self, db: Connection, jobs: Sequence[NewJob], now_at: int
    ) -> tuple[list[Submitted], list[NewJob]]:
        """Answer for each job before anything is written, as if those before it were already kept."""
        known: dict[str, bytes] = dict(
            db.run("known_ids", rows.json_list([job.job_id for job in jobs]), self._namespace_id)
        )
        keys: dict[tuple[str, str], tuple[JobId, bytes]] = {}
        unique: dict[str, JobId] = {}
        answers: list[Submitted] = []
        fresh: list[NewJob] = []
        for index, job in enumerate(jobs):
            if (digest := known.get(job.job_id)) is not None:
                check_digest(digest, job, index, "job id")
                answers.append(Submitted(job.job_id))
                continue
            if job.idempotency_key is not None:
                scope = (job.tenant or "", job.idempotency_key)
                first = keys.get(scope) or db.run("known_key", self._namespace_id, *scope, now_at).fetchone()
                if first is not None:
                    check_digest(first[1], job, index, "idempotency key")
                    answers.append(Submitted(first[0], deduplicated=True))
                    continue
            if job.unique_key is not None:
                holder = unique.get(job.unique_key) or db.first("known_unique", self._namespace_id, job.unique_key)
                if holder is not None:
                    answers.append(Submitted(holder, deduplicated=True))
                    continue
            if job.persist:
                known[job.job_id] = job.digest
            if job.idempotency_key is not None:
                keys[job.tenant or "", job.idempotency_key] = (job.job_id, job.digest)
            if job.unique_key is not None:
                unique[job.unique_key] = job.job_id
            answers.append(Submitted(job.job_id))
            fresh.append(job)
        return answers, fresh

    # ------------------------------------------------------------------ the exchange

    def _exchange(self, request: Exchange, db: Connection) -> Exchanged:
        now_at = self._now()
        eligible: list[int] = []
        refused = self._finish(db, request.finished, now_at, eligible) if request.finished else ()
        for note in request.progress:
            db.run("progress", note.fraction, note.note, note.seq, note.token)
        self._pump(db, now_at, eligible)
        leases: list[Lease] = []
        expired: list[JobId] = []
        more = False
        state = WorkerState.DEAD
        if request.worker_id is not None:
            worker = db.run("claimer", request.worker_id, self._namespace_id).fetchone()
            if worker is not None:
                state = WorkerState(worker[0])
                if request.plan is not None and state is WorkerState.ACTIVE:
                    leases, more = self._claim(db, request, request.plan, worker, now_at, expired)
        if eligible:
            self._wake_workers(db, eligible, now_at, but=request.worker_id)
        changed = [report.job_id for report in request.finished]
        changed += [lease.job_id for lease in leases]
        changed += [note.job_id for note in request.progress]
        changed += expired
        if changed:
            self._tell_watchers(changed)
        snapshot = self._snapshot(db, now_at) if request.want_snapshot else None
        return Exchanged(now_at, leases, refused, snapshot, more, state)

    def _claim(
        self, db: Connection, request: Exchange, plan: Plan, worker: Sequence[Any], now_at: int, expired: list[JobId]
    ) -> tuple[list[Lease], bool]:
        _, slots, last_claim, waiting, wait_lanes, running = worker
        worker_id = request.worker_id or ""
        if last_claim == request.claim_id:
            again = db.rows("leases_of", worker_id, self._namespace_id, ALL)
            return [rows.lease(row) for row in again if row["token"] == request.claim_id], False
        free = min(plan.free, slots - running)
        below = plan.free_below
        leases: list[Lease] = []
        more = False
        for take in plan.takes:
            want = min(take.most, free, below if take.below_reserve else free)
            if want <= 0:
                continue
            got, passed = self._take(db, take.key, want, worker_id, request.claim_id, now_at, expired)
            more = more or (passed and len(got) < want)
            leases += got
            free -= len(got)
            below -= len(got) if take.below_reserve else 0
        if leases:
            db.run("claimed", request.claim_id, worker_id)
            self._count(db, {"claimed": len(leases)}, now_at)
        elif request.wait and not more:
            lanes = None if request.wait_lanes is None else rows.json_list(request.wait_lanes)
            if not waiting or lanes != wait_lanes:  # A worker that looks again while it waits writes nothing.
                db.run("await", lanes, worker_id)
        elif waiting:
            db.run("awake", worker_id)
        return leases, more

    def _take(
        self, db: Connection, key: ClassKey, want: int, worker_id: str, token: bytes, now_at: int, expired: list[JobId]
    ) -> tuple[list[Lease], bool]:
        """Lease up to ``want`` jobs from the front of a class; expired ones are cancelled on the way."""
        class_id = self._class_ids.get(key) or self._class_id(db, key)
        if not key.persist:
            taken = db.run("claim_transient", class_id, want).fetchall()
            return [_transient_lease(row, key, worker_id, now_at) for row in sorted(taken)], False
        looked = db.run("claim_head", class_id, want).fetchall()
        if not looked:
            return [], False
        leases: list[Lease] = []
        held: list[tuple[Any, ...]] = []
        for (
            _, seq, eligible_at, epoch, attempts, crashes, timeout_ms, job_id, task, payload, tenant, trace_id,
            max_retries, asked_timeout_ms, retry, expires_at, unique_key,
        ) in looked:  # fmt: skip
            if expires_at is not None and expires_at <= now_at:
                [row] = db.rows("get_by_seq", rows.json_list([seq]))
                self._cancel(db, row, "expired", now_at)
                expired.append(job_id)
                continue
            held.append(
                (seq, class_id, worker_id, token, now_at, eligible_at, epoch + 1, attempts + 1, crashes, timeout_ms,
                 unique_key)
            )  # fmt: skip
            leases.append(
                Lease(
                    job_id, seq, token, task, payload, key.lane, tenant, trace_id, epoch + 1, attempts + 1, crashes,
                    max_retries, timeout_ms, asked_timeout_ms, None if retry is None else rows.read_retry(retry),
                    now_at, False, key.needs, worker_id,
                )
            )  # fmt: skip
        if held:
            db.run_many("claim_lease", held)
            db.run("claim_taken", class_id, looked[-1][0], looked[-1][1])
        return leases, len(looked) == want

    def _finish(
        self, db: Connection, reports: Sequence[Report], now_at: int, eligible: list[int]
    ) -> list[tuple[JobId, Answer]]:
        held = {row[0]: row for row in db.run("held", rows.json_list([report.seq for report in reports]))}
        answers: dict[int, Answer] = {}
        late: list[int] = []
        outcomes: list[tuple[Any, ...]] = []
        counts: Counter[str] = Counter()
        ended: list[tuple[int]] = []
        for index, report in enumerate(reports):
            lease = held.get(report.seq)
            if lease is None or lease[1] != report.token:
                late.append(index)
                continue
            (_, token, worker_id, class_id, started_at, eligible_at, epoch, number, unique_key, cancel_at, progress,
             note) = lease  # fmt: skip
            if report.expired_only and not self._confirm_expired(db, worker_id, now_at):
                answers[index] = Answer.LOST
                continue
            if cancel_at is not None:
                report = heed_cancel(report)
            check_move(State.EXECUTING, report.state)
            del held[report.seq]  # A second report in the same batch finds no lease.
            ended.append((report.seq,))
            error = rows.error_text(report.error)
            if error is not None:
                reason = report.reason or report.state.value
                values = (report.seq, epoch, number, worker_id, started_at, now_at, reason, error)
                db.run("finish_attempt", *values)
            if report.state is State.QUEUED:
                counts["retried"] += 1
                self._requeue(db, report, class_id, epoch, eligible_at, error, now_at, eligible)
                continue
            counts[report.state.value] += 1
            outcomes.append(
                (report.seq, report.state.value, now_at, worker_id, token, started_at, eligible_at, epoch,
                 report.attempts, report.crashes, report.timeout_ms, cancel_at, progress, note, report.reason, error,
                 report.result_error, report.result)
            )  # fmt: skip
            if unique_key is not None:
                db.run("free_unique", self._namespace_id, unique_key)
        db.run_many("unlease", ended)
        db.run_many("finish_outcome", outcomes)
        self._count(db, counts, now_at)
        # Only now, since a report may come twice in one batch.
        answers |= {index: self._answer_late(db, reports[index]) for index in late}
        return [(reports[index].job_id, answers[index]) for index in sorted(answers)]

    def _answer_late(self, db: Connection, report: Report) -> Answer:
        """Tell a report that was taken before from one whose lease is gone."""
        last = db.run("last_token", report.seq).fetchone()
        return answer_late(report, State(last[1])) if last is not None and last[0] == report.token else Answer.LOST

    def _confirm_expired(self, db: Connection, worker_id: str, now_at: int) -> bool:
        """Check that a worker is past its deadline, and bury it: it may not speak again without registering."""
        worker = db.rows("worker", worker_id, self._namespace_id)
        if worker and worker[0]["lease_ends_at"] > now_at and worker[0]["state"] != WorkerState.DEAD:
            return False
        self._set_worker_state(db, worker_id, WorkerState.DEAD)
        return True

    def _requeue(
        self, db: Connection, report: Report, class_id: int, epoch: int, eligible_at: int, error: str | None,
        now_at: int, eligible: list[int],
    ) -> None:  # fmt: skip
        if report.needs:
            key = next(key for key, known in self._classes(db).items() if known == class_id)
            class_id = self._class_id(db, key._replace(needs=tuple(sorted({*key.needs, *report.needs}))))
        counts = (epoch, report.attempts, report.crashes, report.timeout_ms, report.token, error, report.reason)
        if report.delay_ms > 0:
            due_at = now_at + report.delay_ms
            db.run("delay", self._namespace_id, due_at, report.seq, class_id, *counts)
            db.run("place", class_id, None, due_at, report.seq)
            return
        order_key = report.seq if report.front else int(db.first("advance", 1))
        since_at = eligible_at if report.front else now_at
        db.run("ready_again", class_id, order_key, report.seq, since_at, *counts)
        db.run("place", class_id, order_key, None, report.seq)
        eligible.append(class_id)

    def _pump(self, db: Connection, now_at: int, eligible: list[int]) -> None:
        """Make a bounded batch of due jobs eligible."""
        due = db.run("due", self._namespace_id, now_at, PUMPED).fetchall()
        if not due:
            return
        order_key = int(db.first("advance", len(due))) - len(due)
        for due_at, seq, class_id, *counts in due:
            order_key += 1
            db.run("undelay", self._namespace_id, due_at, seq)
            db.run("ready_again", class_id, order_key, seq, now_at, *counts)
            db.run("place", class_id, order_key, None, seq)
            eligible.append(class_id)

    # ------------------------------------------------------------------ keeping leases

    def _renew(self, beat: Beat, db: Connection) -> Renewed:
        now_at = self._now()
        worker = beat.worker
        known = db.rows("worker", worker.worker_id, self._namespace_id)
        state = WorkerState(known[0]["state"]) if known else WorkerState.DEAD
        ends_at = now_at + beat.lease_ms
        offers = rows.json_list(worker.offers)
        if beat.register:
            state = WorkerState.ACTIVE
            values = (worker.host, worker.pid, worker.slots, worker.reserved, offers, worker.version, worker.protocol)
            db.run("register", worker.worker_id, self._namespace_id, *values, now_at, ends_at)
        elif state is WorkerState.DEAD:
            return Renewed(now_at, state, [job_id for job_id, _ in beat.held])
        else:
            db.run("renew", now_at, ends_at, worker.slots, worker.reserved, offers, worker.worker_id)
        named = dict(beat.held)
        lost, cancel = set(named), []
        unnamed = False
        for job_id, token, started_at, cancel_at in db.run("renew_held", worker.worker_id, self._namespace_id):
            if named.get(job_id) == token:
                lost.discard(job_id)
                if cancel_at is not None:
                    cancel.append(job_id)
            else:
                unnamed = unnamed or started_at + beat.confirm_ms <= now_at
        if unnamed:
            self._release_unnamed(db, beat, named, now_at)
        return Renewed(now_at, state, [job_id for job_id in named if job_id in lost], cancel)

    def _release_unnamed(self, db: Connection, beat: Beat, named: dict[JobId, bytes], now_at: int) -> None:
        """Send back leases whose worker never heard of them: the reply to their claim was lost."""
        leases = [rows.lease(row) for row in db.rows("leases_of", beat.worker.worker_id, self._namespace_id, ALL)]
        reports = [
            judge(Released("claim never started"), lease, BUILT_IN)
            for lease in leases
            if named.get(lease.job_id) != lease.token and lease.started_at + beat.confirm_ms <= now_at
        ]
        eligible: list[int] = []
        self._finish(db, reports, now_at, eligible)
        self._wake_workers(db, eligible, now_at)
        self._tell_watchers([report.job_id for report in reports])

    def _set_worker_state(self, db: Connection, worker_id: str, state: WorkerState) -> bool:
        db.run("set_worker_state", state.value, worker_id, self._namespace_id)
        return bool(db.raw.changes())

    # ------------------------------------------------------------------ cancelling and retrying

    def _cancel(self, db: Connection, row: rows.Row | None, reason: str, now_at: int) -> State | None:
        if row is None:
            return None
        state = State(row["state"])
        if state is State.EXECUTING:
            db.run("cancel_executing", now_at, row["seq"])
            keeper = f"{row['worker_id']}{KEEPER}"
            self._database.after_commit(lambda: self._bell.ring(keeper))
        if state is not State.QUEUED:
            return state
        if row["due_at"] is not None:
            db.run("undelay", self._namespace_id, row["due_at"], row["seq"])
        else:
            db.run("unready", row["class_id"], row["order_key"], row["seq"])
        self._end_queued(db, row, reason, now_at)
        return State.CANCELLED

    def _end_queued(self, db: Connection, row: rows.Row, reason: str, now_at: int) -> None:
        check_move(State.QUEUED, State.CANCELLED)
        db.run(
            "finish_outcome", row["seq"], State.CANCELLED.value, now_at, None, row["token"], None, row["eligible_at"],
            row["epoch"], row["attempts"], row["crashes"], row["timeout_ms"], None, None, None, reason,
            row["error"], None, None,
        )  # fmt: skip
        if row["unique_key"] is not None:
            db.run("free_unique", self._namespace_id, row["unique_key"])
        self._count(db, {State.CANCELLED.value: 1}, now_at)

    def _retry(self, db: Connection, row: rows.Row | None, now_at: int, eligible: list[int]) -> State | None:
        if row is None:
            return None
        state = State(row["state"])
        if not state.ended or state is State.COMPLETED:
            return state
        if row["unique_key"] is not None:
            if db.first("known_unique", self._namespace_id, row["unique_key"]) is not None:
                return state
            db.run("submit_unique", self._namespace_id, row["unique_key"], row["seq"])
        check_move(state, State.QUEUED)
        order_key = int(db.first("advance", 1))
        db.run("unfinish", row["seq"])
        counts = (row["epoch"], 0, 0, None, None, None, None)
        db.run("ready_again", row["class_id"], order_key, row["seq"], now_at, *counts)
        db.run("retry_job", row["class_id"], order_key, row["seq"])
        eligible.append(row["class_id"])
        return State.QUEUED

    # ------------------------------------------------------------------ reading

    def _rows(self, db: Connection, job_ids: Sequence[JobId]) -> list[rows.Row | None]:
        found = {row["job_id"]: row for row in db.rows("get", rows.json_list(job_ids), self._namespace_id)}
        return [found.get(job_id) for job_id in job_ids]

    def _find(self, query: JobQuery, db: Connection) -> list[Job]:
        before = NEWEST if query.before is None else query.before
        wanted: dict[str, Any] = query._asdict() | {"namespace_id": self._namespace_id, "before": before}
        statements = {State.QUEUED: "find_queued", State.EXECUTING: "find_executing", State.COMPLETED: "find_completed"}
        found: list[int] = []
        for state in query.states:
            found += [seq for (seq,) in db.named(statements.get(state, "find_bad"), wanted | {"state": state.value})]
        if not query.states:
            found = [seq for (seq,) in db.named("find_any", wanted)]
        seqs = sorted(set(found), reverse=True)[: query.limit]
        history = _history(db, seqs)
        by_seq = {row["seq"]: row for row in db.rows("get_by_seq", rows.json_list(seqs))}
        return [rows.job(by_seq[seq], history.get(seq, ())) for seq in seqs]

    def _snapshot(self, db: Connection, now_at: int) -> Snapshot:
        views = []
        for lane, rung, needs, persist, waiting, oldest_at in db.run(
            "snapshot_classes", WAITING_COUNTED, self._namespace_id
        ):
            if not persist and waiting:
                oldest_at = now_at
            views.append(ClassView(rows.class_key(lane, rung, needs, persist), waiting, oldest_at))
        return Snapshot(now_at, tuple(views), db.first("next_due", self._namespace_id))

    def _stats(self, db: Connection) -> Stats:
        now_at = self._now()
        lanes = {
            lane: LaneStats(waiting=waiting, oldest_at=oldest_at, delayed=delayed, executing=executing)
            for lane, waiting, oldest_at, delayed, executing in db.run("stats_lanes", self._namespace_id)
        }
        totals: Counter[str] = Counter()
        recent: Counter[str] = Counter()
        for minute, what, count in db.run("stats_tally", self._namespace_id):
            totals[what] += count
            if minute >= now_at // MINUTE - 1:
                recent[what] += count
        workers = tuple(rows.worker(row, now_at) for row in db.rows("workers", self._namespace_id))
        kept = dict(db.run("stats_kept", self._namespace_id))
        return Stats(now_at, lanes, workers, dict(totals), dict(recent), kept)

    # ------------------------------------------------------------------ pruning

    def _prune(self, keep: Keep, limit: int, db: Connection) -> int:
        now_at = self._now()
        expired = [seq for (seq,) in db.run("prune_expiry", self._namespace_id, now_at, limit)]
        cancelled: list[JobId] = []
        for row in db.rows("get_by_seq", rows.json_list(expired)):
            if row["state"] == State.QUEUED and row["expires_at"] is not None:
                self._cancel(db, row, "expired", now_at)
                cancelled.append(row["job_id"])
        if cancelled:
            self._tell_watchers(cancelled)
        kept_ms = {
            State.FAILED: keep.failed_ms,
            State.CANCELLED: keep.cancelled_ms,
            State.DEAD_LETTER: keep.dead_letter_ms,
        }
        old = self._old_completed(db, now_at - keep.completed_ms, limit)
        for state, ms in kept_ms.items():
            old += [seq for (seq,) in db.run("prune_bad", state.value, now_at - ms, self._namespace_id, limit)]
        _forget(db, old[:limit])
        db.run("prune_keys", now_at, limit)
        db.run("prune_workers_bury", now_at)
        db.run("prune_workers", now_at - DEAD_WORKERS_KEPT_MS)
        yesterday = now_at // MINUTE - 1_440
        db.run("prune_tally_fold", yesterday)
        db.run("prune_tally", yesterday)
        return len(cancelled) + len(old[:limit])

    def _old_completed(self, db: Connection, before_at: int, limit: int) -> list[int]:
        """Look at a stretch of ended jobs, going round and round: no index is kept for the many that completed."""
        old: list[int] = []
        start, looked = self._pruned_to, 0
        while looked < SCANNED and len(old) < limit:
            asked = SCANNED - looked
            stretch = db.run("prune_scan", self._pruned_to, asked).fetchall()
            looked += len(stretch)
            for seq, state, finished_at, namespace_id in stretch:
                self._pruned_to = seq
                if state == State.COMPLETED and finished_at <= before_at and namespace_id == self._namespace_id:
                    old.append(seq)
                    if len(old) == limit:
                        break
            else:
                if len(stretch) == asked:
                    break  # There is more; the next pruning goes on from here.
                self._pruned_to = 0
                if start == 0:
                    break
                start = 0
        return list(dict.fromkeys(old))

    # ------------------------------------------------------------------ classes, waking, counting, time

    def _class_id(self, db: Connection, key: ClassKey) -> int:
        if key not in self._class_ids:
            needs = rows.json_list(sorted(key.needs))
            found = db.first("class_add", self._namespace_id, key.lane, key.rung or "", needs, int(key.persist))
            self._class_ids[key] = int(found)
            # A rollback takes a new class with it, and then its number must not be remembered.
            self._database.after_rollback(partial(self._class_ids.pop, key, 0))
        return self._class_ids[key]

    def _classes(self, db: Connection) -> dict[ClassKey, int]:
        return {rows.class_key(*row[1:]): row[0] for row in db.run("classes", self._namespace_id)}

    def _wake_workers(self, db: Connection, class_ids: Iterable[int], now_at: int, but: str | None = None) -> None:
        """Wake a waiting worker for each job that became eligible, as far as one can serve it."""
        waiting = db.run("awaiting", self._namespace_id, now_at).fetchall()
        if not waiting:
            return
        keys = {class_id: key for key, class_id in self._classes(db).items()}
        for class_id in class_ids:
            key = keys[class_id]
            for index, (worker_id, offers, lanes) in enumerate(waiting):
                if worker_id == but or (lanes is not None and key.lane not in _names(lanes)):
                    continue
                if serves(key.needs, _names(offers)):
                    db.run("awake", worker_id)
                    self._database.after_commit(partial(self._bell.ring, worker_id))
                    del waiting[index]
                    break
            if not waiting:
                return

    def _tell_watchers(self, job_ids: Sequence[JobId]) -> None:
        self._database.after_commit(partial(self._bell.ring_watchers, job_ids))

    def _count(self, db: Connection, counts: dict[str, int], now_at: int) -> None:
        for what, count in counts.items():
            db.run("count", self._namespace_id, now_at // MINUTE, what, count)

    def _now(self) -> int:
        self._last_at = max(self._last_at, self._clock())
        return self._last_at


@lru_cache(maxsize=256)
def _names(text: str) -> frozenset[str]:
    return frozenset(rows.read_strings(text))


def _transient_lease(row: Sequence[Any], key: ClassKey, worker_id: str, now_at: int) -> Lease:
    seq, job_id, task, payload, tenant, trace_id, timeout_ms = row
    return Lease(
        job_id, seq, b"", task, payload, key.lane, tenant, trace_id, 1, 1, 0, 0, timeout_ms, timeout_ms, None, now_at,
        False, key.needs, worker_id,
    )  # fmt: skip


def _history(db: Connection, seqs: Sequence[int]) -> dict[int, list[Attempt]]:
    history: dict[int, list[Attempt]] = {}
    for row in db.rows("history", rows.json_list(seqs)):
        history.setdefault(row["seq"], []).append(rows.attempt(row))
    return history


def _forget(db: Connection, seqs: Sequence[int]) -> None:
    for statement in ("unfinish", "forget_history", "forget_job"):
        db.run_many(statement, [(seq,) for seq in seqs])
