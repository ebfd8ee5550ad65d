"""The verbs of a store, each one function call on a Redis or Valkey server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar
from uuid import uuid4

from headway.core.diagnostics import AHEAD_COUNTED, JobDiagnostics, QueueDiagnostics
from headway.core.errors import NotAStore, StoreTooNew, StoreUnavailable
from headway.core.job import ClassKey, JobId, JobRecord, NewJob, State, SubmitReply
from headway.core.lease import Lease, ReportStatus
from headway.core.policy.document import BUILT_IN, Keep
from headway.core.policy.enforced import RuleIndex, lets_start
from headway.core.policy.ladder import (
    Preemption,
    RunBudget,
    grants,
)
from headway.core.policy.retry import Released, judge
from headway.core.policy.wait_reasons import GAP_MS, waited_ms
from headway.core.preview import Place, SubmitPreview, preview_new
from headway.core.snapshot import Plan, Snapshot
from headway.core.timestamps import earlier
from headway.core.worker import WorkerState
from headway.core.workflow import (
    STEP_BYTES_MAX,
    STEPS_BYTES_MAX,
    STEPS_MAX,
    BatchId,
    BatchQuery,
    BatchRecord,
    Graph,
    GraphReply,
    Step,
    Upstream,
    check_graph,
    check_step,
)
from headway.stores.base import (
    FORMAT,
    OLDEST_READER,
    OLDEST_WRITER,
    RULES,
    TIMEOUT,
    WAIT_SAMPLE_INTERVAL_MS,
    WAITING_COUNTED,
    Abilities,
    Clock,
    Document,
    Exchange,
    ExchangeReply,
    Heartbeat,
    HeartbeatReply,
    JobQuery,
    LaneStats,
    QueueBreakdown,
    Stats,
    Subscription,
    check_same,
    end_place,
    submit_within,
)
from headway.stores.redis import codec, replies, workflow_codec
from headway.stores.redis.client import Discovery, RedisClient
from headway.stores.redis.connection import Endpoint, Login, RedisConnection, Unanswered, pack
from headway.stores.redis.deferred_submit import DeferredSubmits
from headway.stores.redis.direct_lease import WaitingClaims
from headway.stores.redis.lua_rules import compile_rules
from headway.stores.redis.notifier import RedisNotifier
from headway.stores.redis.server_info import describe_server
from headway.stores.redis.thread_client import ThreadClient
from headway.stores.rule_codec import RuleReader
from headway.stores.texts import check_jobs, check_text, check_worker, escape_surrogates, is_writable
from headway.stores.transport import Transport, warn_once

T = TypeVar("T")
DEAD_WORKERS_KEPT_MS = 3_600_000  # Milliseconds. An operator can see for an hour that a worker died.
WAIT_INTERVALS_KEPT_MS = 24 * 3_600_000  # Milliseconds. `why` explains waits of the last day.
WAIT_INTERVALS_READ = 2_000  # Wait intervals of a class that `why` reads, more than a day has.
ARCHIVER_MISSED_MS = 7 * 24 * 3_600_000  # Milliseconds. A week is enough to repair an archive.
PAGE = 200  # Jobs that one call of find reads at most,
PAGE_BYTES = 4_000_000  # and bytes, so that other calls wait for some milliseconds only.


_FORMAT = {"format": FORMAT, "oldest_reader": OLDEST_READER, "oldest_writer": OLDEST_WRITER}


class RedisStore:
    """Jobs on a server that many machines share. ``describe`` reports how durable they are."""

    def __init__(
        self,
        discovery: Discovery,
        login: Login,
        namespace: str = "default",
        *,
        shown: str,
        transport: Transport = Transport.LOCAL,
        prefix: str = "headway",
        clock: Clock | None = None,
        replicas: int = 0,
        replicas_ms: int = 1_000,
        timeout: float = TIMEOUT,
    ) -> None:
        self.namespace = namespace
        self.abilities = Abilities(
            durable=True,
            shared=True,
            any_loop=False,
            remote=True,
            submit_blocking=self.submit_blocking,
            archive_source=self,
            handed=self.handed,
            quiet=self.quiet,
            pending_changes=self.pending_changes,
        )
        self._shown = shown
        self._transport = transport
        self._prefix = f"{{{prefix}:{namespace}}}:"
        self._meta = f"{self._prefix}meta"
        self._clock = clock
        self._replicas, self._replicas_ms = replicas, replicas_ms
        self._waiting_claims = WaitingClaims()
        self._rule_reader = RuleReader()
        self._notifier = RedisNotifier(self._prefix, self._connect, self._waiting_claims.on_message)
        self._timeout = timeout + (replicas_ms / 1_000 if replicas else 0.0)  # Replicas get additional time.
        self._client = RedisClient(discovery, login, self._notifier.on_message, self._notifier.on_connect, timeout)
        self._client.on_disconnect = self._notifier.on_disconnect
        # A wait for replicas delays all later commands of a connection, so it has its own.
        self._replica_client = (
            RedisClient(discovery, login, self._notifier.on_message, lambda _: None, timeout)
            if replicas
            else self._client
        )
        self._thread_client = ThreadClient(login, timeout)
        self._deferred = DeferredSubmits(self._prefix, self._thread_client)
        self._rule_index = RuleIndex()
        self._rules_version = b""

    async def open(self) -> None:
        warn_once(self._transport, self._shown, "write rediss:// and let the server speak TLS")
        self._client.reopen()  # An earlier call may have failed, and closed them.
        self._replica_client.reopen()
        try:
            known = await self._check()
            await self._client.ask("PUBLISH", f"{self._prefix}open", "")  # Every function needs this right.
            await self._call("rules")  # Loads the library if it is missing.
            # A full server refuses to write, but can serve the jobs it has. So the format is written only if needed.
            if known is None or known < FORMAT:
                for name, value in _FORMAT.items():
                    await self._client.ask("HSETNX" if known is None else "HSET", self._meta, name, value)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await self._notifier.close()
        self._thread_client.close()
        await self._client.close()
        await self._replica_client.close()

    # ------------------------------------------------------------------ submit, claim, finish

    async def submit(self, jobs: Sequence[NewJob]) -> list[SubmitReply]:
        if not jobs:
            return []
        check_jobs(jobs)
        return replies.read_submitted(jobs, await self._submit_jobs("submit", jobs, codec.pack_jobs(jobs)))

    async def _submit_jobs(self, function: str, jobs: Sequence[NewJob], packed: Sequence[bytes | str | int]) -> Any:
        once = not all(job.persist for job in jobs)  # A repeated transient job could not be recognised.
        try:
            async with asyncio.timeout(submit_within(self._timeout, jobs)):
                return await self._submit(function, packed, once=once)
        except TimeoutError as problem:
            self._client.drop_if_silent()
            raise self._late() from problem
        except Unanswered as problem:
            raise StoreUnavailable(f"it is not known whether the jobs were taken: {problem}") from problem

    def submit_blocking(self, jobs: Sequence[NewJob]) -> list[SubmitReply] | None:
        check_jobs(jobs)
        connection = self._client.connection
        if connection is None or self._replicas or not all(job.persist for job in jobs):
            return None
        packed, address = codec.pack_jobs(jobs), connection.address
        if self._deferred.open and (entry := codec.pack_deferred(packed)) is not None:
            awaited = self._deferred.add(address, entry, self._now())
            if awaited:
                # Should this fail, the idle worker claims by itself a moment later.
                self._ask_in_thread(address, "apply_deferred")
            return None if awaited is None else replies.read_submitted(jobs, 0)
        answers = self._ask_in_thread(address, "submit", *packed)
        if answers is None:
            return None
        self._deferred.open = answers[0] == 0
        return replies.read_submitted(jobs, answers[0])

    def _late(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"{self._shown} did not answer within {self._timeout:g} s; whether the jobs were taken is not known, and "
            "the same submit may be repeated"
        )

    def _ask_in_thread(self, address: Endpoint, function: str, *args: bytes | str | int) -> list[Any] | None:
        words = self._client.function_call(function, self._meta, self._now(), *args)
        return self._thread_client.ask(address, pack(tuple(words)))

    async def _submit(self, function: str, packed: Sequence[bytes | str | int], *, once: bool) -> Any:
        words = self._client.function_call(function, self._meta, self._now(), *packed)
        if not self._replicas:
            return await self._client.ask(*words, once=once)
        # WAIT covers the writes of its own connection. A repeated submit writes nothing, hence the HINCRBY.
        behind = ("HINCRBY", self._meta, "awaited", 1), ("WAIT", self._replicas, self._replicas_ms)
        reply, _, heard = await self._replica_client.ask(*words, then=behind, once=once)
        if heard < self._replicas:
            raise StoreUnavailable(
                f"the jobs are kept, but only {heard} of {self._replicas} replicas had them within "
                f"{self._replicas_ms} ms; the same submit may be repeated",
                replicas=heard,
            )
        return reply

    async def exchange(self, request: Exchange) -> ExchangeReply:
        if self._clock is not None:
            request = request._replace(handover=False)
        if request.plan is None and self._waiting_claims.any_of(request.worker_id):
            request = request._replace(plan=Plan())  # Closes the open claim: the worker claims no more.
        claim, asked = self._waiting_claims.claim(request), time.monotonic()
        reply = await self._exchange(request, claim.claim_id)
        answer = await self._read_exchanged(request, claim.claim_id, reply)
        self._waiting_claims.record_reply(request, answer, asked)
        return answer

    def handed(self, worker_id: str, younger_ms: int) -> ExchangeReply | None:
        handed = self._waiting_claims.take(worker_id, younger_ms)
        if handed is None:
            return None
        claim_id, now_at, given = handed
        return ExchangeReply(now_at, codec.fresh_leases(given, claim_id, worker_id, now_at, self._rule_index.ladder))

    async def _exchange(self, request: Exchange, claim_id: bytes) -> Any:
        plan = request.plan
        takes: list[bytes | str | int] = [0]
        if plan is not None:
            takes = [len(plan.takes)]
            for take in plan.takes:
                until_at = "" if take.until_at is None else take.until_at
                takes += (codec.class_text(take.key), take.most, int(take.below_reserve), take.over or "", until_at)
        waits = 2 if request.wait and request.handover else int(request.wait)
        lanes = "*" if request.wait_lanes is None else "\0".join(request.wait_lanes)
        return await self._call(
            "exchange", request.worker_id or "", claim_id, int(request.want_snapshot), waits, lanes,
            *((1, -1 if plan.known is None else plan.known, plan.free, plan.free_below, int(plan.leave_free))
              if plan is not None else (0, -1, 0, 0, 0)),
            len(request.finished), *codec.pack_reports(request.finished),
            len(request.progress), *codec.pack_progress(request.progress), *takes,
        )  # fmt: skip

    async def _read_exchanged(self, request: Exchange, claim_id: bytes, reply: Any) -> ExchangeReply:
        now_at, state, more, refused, *leased, rules_version, seen = reply
        leased_jobs, leases = codec.LeasedJobs(*leased), list[Lease]()
        if rules_version != self._rules_version and (any(leased_jobs.runs[2::3]) or (seen and seen[2])):
            await self._rules()  # They have the budgets of rungs.
        if leased_jobs.records:
            worker_id = request.worker_id or ""
            leases = codec.fresh_leases(leased_jobs, claim_id, worker_id, now_at, self._rule_index.ladder)
        refusals = [
            (request.finished[int(refused[at])].job_id, ReportStatus(refused[at + 1].decode()))
            for at in range(0, len(refused), 2)
        ]
        snapshot = replies.read_snapshot(now_at, seen, self._rule_index) if seen else None
        return ExchangeReply(now_at, leases, refusals, snapshot, bool(more), WorkerState(state.decode()))

    async def quiet(self, classes: int) -> bool:
        # A new class has one of the next numbers.
        queues = [f"{self._prefix}{queue}:{number}" for queue in ("w", "tr") for number in range(1, classes + 3)]
        return not await self._client.ask(
            "EXISTS", *queues, self._deferred.key,
            *(f"{self._prefix}{name}" for name in ("due", "parked", "unsettled", "stopping")),
        )  # fmt: skip

    # ------------------------------------------------------------------ workers and their leases

    async def renew(self, beat: Heartbeat) -> HeartbeatReply:
        worker = beat.worker
        check_worker(worker)
        held = [word for job_id, token in dict(beat.held).items() for word in (_encode_id(job_id), token)]
        now_at, state, lost, cancel, overdue, given = await self._call(
            "renew", worker.worker_id, beat.lease_ms, beat.confirm_ms, int(beat.register), codec.pack_worker(worker),
            worker.slots, "\0".join(worker.offers), *held,
        )  # fmt: skip
        if overdue:
            await self._release(overdue)
        if state == b"dead":
            return HeartbeatReply(now_at, WorkerState.DEAD, [job_id for job_id, _ in beat.held])
        gone, stop = ([JobId(job_id.decode()) for job_id in ids] for ids in (lost, cancel))
        granted: list[RunBudget] = []
        if given:
            assigned = [
                (JobId(given[at].decode()), codec.class_key(given[at + 1]).rung, given[at + 2].decode())
                for at in range(0, len(given), 3)
            ]
            granted = grants((await self._rules()).ladder, assigned)
        return HeartbeatReply(now_at, WorkerState(state.decode()), gone, stop, granted)

    async def _release(self, overdue: Sequence[bytes]) -> None:
        """Release leases that their worker does not name. Their tokens guard against a report in between."""
        reports = []
        for at in range(0, len(overdue), 3):
            name, record, held = overdue[at : at + 3]
            lease = codec.make_lease(int(name) - codec.BASE, record, held, ClassKey(""), self._rule_index.ladder)
            reports.append(judge(Released("claim never started"), lease, BUILT_IN))
        await self.exchange(Exchange(None, finished=reports))

    async def leases(self, *, worker_id: str | None = None, limit: int = 1_000, payloads: bool = True) -> list[Lease]:
        check_text(worker_id or "", "a worker's id")
        _, *found = await self._call("leases", worker_id or "", limit, int(payloads))
        ladder = (await self._rules()).ladder if found else self._rule_index.ladder
        return [
            codec.make_lease(
                int(name) - codec.BASE, record, held, codec.class_key(kind), ladder, cancelled=bool(cancelled),
            )
            for name, record, held, kind, cancelled in found
        ]  # fmt: skip

    async def mark_dead(self, worker_id: str, *, left: bool = False) -> None:
        check_text(worker_id, "a worker's id")
        await self._call("mark_dead", worker_id, int(left))

    async def drain(self, worker_id: str) -> bool:
        check_text(worker_id, "a worker's id")
        return bool(await self._call("drain", worker_id))

    # ------------------------------------------------------------------ single jobs

    async def cancel(self, job_ids: Sequence[JobId], reason: str = "cancelled") -> list[State | None]:
        return (
            replies.read_states(await self._call("cancel", escape_surrogates(reason), *map(_encode_id, job_ids)))
            if job_ids
            else []
        )

    async def preempt(self, amendments: Sequence[Preemption]) -> list[bool]:
        words = [word for job_id, rung in amendments for word in (_encode_id(job_id), rung or "")]
        return [bool(done) for done in await self._call("preempt", *words)] if words else []

    async def retry(self, job_ids: Sequence[JobId], *, alone: bool = False) -> list[State | None]:
        return replies.read_states(await self._call("retry", int(alone), *map(_encode_id, job_ids))) if job_ids else []

    async def reschedule(
        self, job_ids: Sequence[JobId], *, lane: str | None = None, now: bool = False
    ) -> list[State | None]:
        check_text(lane or "", "a lane")
        ids = map(_encode_id, job_ids)
        return replies.read_states(await self._call("reschedule", lane or "", int(now), *ids)) if job_ids else []

    async def get(self, job_ids: Sequence[JobId]) -> list[JobRecord | None]:
        if not job_ids:
            return []
        now_at, *found = await self._call("get", *map(_encode_id, job_ids))
        jobs = [None if pieces is None else codec.read_job(pieces, now_at) for pieces in found]
        # A damaged record may have another id than the one that led to it.
        return [
            job if job is None or job.job_id == job_id else replace(job, job_id=job_id)
            for job, job_id in zip(jobs, job_ids, strict=True)
        ]

    async def find(self, query: JobQuery) -> list[JobRecord]:
        if query.by_end:
            return await self._find_ended(query)
        return await self._find(query, lambda job: job)

    async def find_ids(self, query: JobQuery) -> list[tuple[int, JobId]]:
        if query.by_end:
            return [(job.seq, job.job_id) for job in await self._find_ended(query)]
        return await self._find(query, lambda job: (job.seq, job.job_id))

    async def _find(self, query: JobQuery, keep: Callable[[JobRecord], T]) -> list[T]:
        """Find jobs, newest first, and keep something of each, so that a long list of ids needs little memory."""
        letters = "".join(codec.LETTERS[state] for state in query.states)
        below = query.before or 0
        found: list[T] = []
        if query.before is not None and query.before <= 1:
            return []
        filtered = any(value is not None for value in query[1:7])
        while len(found) < query.limit:
            page = PAGE if filtered else min(PAGE, query.limit - len(found))
            now_at, below, some = await self._call("find", letters, below, page, PAGE_BYTES)
            jobs = (codec.read_job(pieces, now_at) for pieces in some)
            found += [keep(job) for job in jobs if replies.matches(job, query)]
            if not below:
                break
        return found[: query.limit]

    async def _find_ended(self, query: JobQuery) -> list[JobRecord]:
        """Find failed, cancelled or dead-lettered jobs, the last outcome first."""
        found: list[JobRecord] = []
        for state in query.states:
            if not state.ended or state is State.COMPLETED:
                continue
            place, of_state, more = query.ended_before, list[JobRecord](), True
            while more and len(of_state) < query.limit:
                at, member = ("", b"") if place is None else (place[0], codec.member(place[1]))
                now_at, more, some = await self._call("find_ended", codec.LETTERS[state], at, member, PAGE, PAGE_BYTES)
                jobs = [codec.read_job(pieces, now_at) for pieces in some]
                of_state += [job for job in jobs if replies.matches(job, query)]
                place = end_place(jobs[-1]) if jobs else place
            found += of_state[: query.limit]
        return sorted(found, key=end_place, reverse=True)[: query.limit]

    # ------------------------------------------------------------------ workflows

    async def submit_graph(self, graph: Graph) -> GraphReply:
        check_graph(graph)
        jobs = [node.job for node in graph.nodes]
        check_jobs(jobs)
        reply = await self._submit_jobs("submit_graph", jobs, workflow_codec.pack_graph(graph))
        return workflow_codec.read_graph_reply(graph, reply)

    async def close_batch(self, batch_id: BatchId) -> BatchRecord | None:
        return await self._change_batch("close_batch", batch_id)

    async def cancel_batch(self, batch_id: BatchId) -> BatchRecord | None:
        return await self._change_batch("cancel_batch", batch_id)

    async def _change_batch(self, function: str, batch_id: BatchId) -> BatchRecord | None:
        now_at, fields = await self._call(function, _encode_id(batch_id))
        return None if fields is None else workflow_codec.read_batch(batch_id, fields, now_at)

    async def get_batches(self, batch_ids: Sequence[BatchId]) -> list[BatchRecord | None]:
        if not batch_ids:
            return []
        now_at, *found = await self._call("get_batches", *map(_encode_id, batch_ids))
        return [
            None if fields is None else workflow_codec.read_batch(batch_id, fields, now_at)
            for batch_id, fields in zip(batch_ids, found, strict=True)
        ]

    async def find_batches(self, query: BatchQuery) -> list[BatchRecord]:
        found: list[BatchRecord] = []
        below, more = query.before, True
        while more and len(found) < query.limit:
            now_at, *some = await self._call("find_batches", "" if below is None else below, PAGE)
            batches = [
                workflow_codec.read_batch(some[at].decode(), some[at + 1], now_at) for at in range(0, len(some), 2)
            ]
            found += [
                batch
                for batch in batches
                if query.tenant in (None, batch.tenant) and (not query.statuses or batch.status in query.statuses)
            ]
            more = len(batches) == PAGE
            below = batches[-1].seq if more else below
        return found[: query.limit]

    async def members(
        self, batch_id: BatchId, *, beyond: int = 0, states: Sequence[State] = (), limit: int = 500
    ) -> list[JobRecord]:
        letters = "".join(codec.LETTERS[state] for state in states)
        found: list[JobRecord] = []
        more = True
        while more and len(found) < limit:
            page = PAGE if states else min(PAGE, limit - len(found))
            now_at, beyond, some = await self._call("members", _encode_id(batch_id), beyond, letters, page, PAGE_BYTES)
            found += [codec.read_job(pieces, now_at) for pieces in some]
            more = bool(beyond)
        return found[:limit]

    async def upstreams(self, job_ids: Sequence[JobId], *, results: bool = False) -> list[list[Upstream]]:
        if not job_ids:
            return []
        found = await self._call("upstreams", int(results), *map(_encode_id, job_ids))
        return [workflow_codec.read_upstreams(views) for views in found]

    async def record_step(self, step: Step) -> bool:
        reply = await self._call(
            "record_step", codec.member(step.seq), step.token, step.key, step.value, STEP_BYTES_MAX, STEPS_MAX,
            STEPS_BYTES_MAX,
        )  # fmt: skip
        if isinstance(reply, list):
            check_step(step.key, step.value, *reply)
        return bool(reply)

    async def steps(self, job_id: JobId) -> dict[str, bytes]:
        return workflow_codec.read_steps(await self._call("steps", _encode_id(job_id)))

    # ------------------------------------------------------------------ snapshots and diagnosis

    async def snapshot(self) -> Snapshot:
        now_at, seen = await self._call("snapshot")
        return replies.read_snapshot(now_at, seen, await self._rules() if seen[2] else self._rule_index)

    async def stats(self) -> Stats:
        now_at, classes, executing, workers, totals, recent, kept = await self._call("stats")
        lanes: dict[str, LaneStats] = {}
        for at in range(0, len(classes), 5):
            lane = codec.class_key(classes[at]).lane
            waiting, delayed, held = (int(classes[at + place]) for place in (1, 2, 4))
            oldest_at = int(classes[at + 3]) if classes[at + 3] else None
            known = lanes.get(lane, LaneStats())
            lanes[lane] = LaneStats(
                known.waiting + waiting, known.delayed + delayed, 0, earlier(known.oldest_at, oldest_at),
                known.held + held,
            )  # fmt: skip
        for kind in executing:
            lane = codec.class_key(kind).lane
            lanes[lane] = lanes[lane]._replace(executing=lanes[lane].executing + 1)
        states = {codec.STATES[kept[at]].value: int(kept[at + 1]) for at in range(0, len(kept), 2)}
        return Stats(
            now_at,
            lanes,
            tuple(codec.read_worker(row, now_at) for row in workers),
            replies.sum_counts(totals),
            replies.sum_counts(recent),
            {state: count for state, count in states.items() if count},
        )

    async def waiting_of(self, tenant: str) -> dict[str, LaneStats]:
        _, *found = await self._call("waiting_of", tenant)
        lanes: dict[str, LaneStats] = {}
        for at in range(0, len(found), 3):
            lane = codec.class_key(found[at]).lane
            known = lanes.get(lane, LaneStats())
            oldest_at = earlier(known.oldest_at, int(found[at + 2]))
            lanes[lane] = LaneStats(waiting=known.waiting + int(found[at + 1]), oldest_at=oldest_at)
        return lanes

    async def breakdown(self, *, limit: int = 1_000) -> QueueBreakdown:
        return replies.read_breakdown(await self._call("breakdown", limit, WAITING_COUNTED), limit)

    async def diagnose(self) -> QueueDiagnostics:
        now_at, seen = await self._call("diagnose")
        return replies.read_diagnosis(now_at, seen, self._rule_reader)[0]

    async def diagnose_job(self, job_id: JobId) -> JobDiagnostics | None:
        now_at, pieces, *rest = await self._call("diagnose_job", _encode_id(job_id), AHEAD_COUNTED, WAIT_INTERVALS_READ)
        if pieces is None:
            return None
        seen, fair, ahead, own, limits, intervals, upstreams = rest
        job = codec.read_job(pieces, now_at)
        queue, rule_index = replies.read_diagnosis(now_at, seen, self._rule_reader)
        if job.state is not State.QUEUED or job.due_at is not None or job.held:
            kind = codec.class_key(pieces[9])
            near = [replies.read_wait_interval(kind, entry) for entry in intervals]
            sources = tuple(workflow_codec.read_upstreams(upstreams))
            return JobDiagnostics(job, queue, bool(fair), upstreams=sources, waited_ms=waited_ms(job, near))
        views = replies.read_limit_views(rule_index.keys(job.task, job.tenant, job.limits), limits)
        return JobDiagnostics(job, queue, bool(fair), ahead, own, views)

    async def preview(self, job: NewJob) -> SubmitPreview:
        check_jobs([job])
        now_at, kind, *rest = await self._call("preview", AHEAD_COUNTED, *codec.pack_jobs([job]))
        if kind == b"conflict":
            check_same(None, job.digest, job, 0, rest[0].decode())
        if kind == b"known":
            return SubmitPreview(JobId(rest[0].decode()), None)
        seen, fair, ahead, own, limits = rest
        queue, rule_index = replies.read_diagnosis(now_at, seen, self._rule_reader)
        views = replies.read_limit_views(rule_index.keys(job.task, job.tenant, job.limits), limits)
        return preview_new(job, queue, Place(bool(fair), ahead, own), views)

    async def record_wait_reasons(self, reasons: Mapping[ClassKey, str]) -> None:
        if reasons:
            words = [word for key, reason in reasons.items() for word in (codec.class_text(key), reason)]
            await self._call("record_wait_reasons", WAIT_SAMPLE_INTERVAL_MS, GAP_MS, *words)

    # ------------------------------------------------------------------ retention

    async def prune(self, keep: Keep, *, limit: int = 1_000) -> int:
        return int(
            await self._call(
                "prune", limit, keep.completed_ms, keep.failed_ms, keep.cancelled_ms, keep.dead_letter_ms,
                DEAD_WORKERS_KEPT_MS, WAIT_INTERVALS_KEPT_MS, keep.completed_max, keep.failed_max, keep.cancelled_max,
                keep.dead_letter_max,
            )
        )  # fmt: skip

    async def purge(self, states: Sequence[State], job_ids: Sequence[JobId] | None, *, limit: int = 1_000) -> int:
        letters = "".join(codec.LETTERS[state] for state in states if state.ended)
        named: list[bytes | str | int] = [0] if job_ids is None else [1, *map(_encode_id, job_ids)]
        return int(await self._call("purge", letters, limit, *named))

    async def unarchived(self, limit: int) -> list[JobRecord]:
        now_at, *found = await self._call("unarchived", ARCHIVER_MISSED_MS, limit)
        return [codec.read_job(pieces, now_at) for pieces in found]

    async def archived(self, jobs: Sequence[JobRecord]) -> None:
        words = [word for job in jobs for word in (codec.member(job.seq), job.finished_at or 0)]
        await self._call("archived", *words)

    # ------------------------------------------------------------------ documents

    async def read(self, kind: str, name: str | None = None) -> list[Document]:
        if not (is_writable(kind) and is_writable(name)):
            return []
        found = await self._call("read", kind, name or "", int(name is None))
        return [replies.read_document(kind, found[at], found[at + 1]) for at in range(0, len(found), 2)]

    async def write(self, kind: str, name: str, body: bytes | None, *, if_version: int | None = None) -> int | None:
        check_text(kind, "a document's kind")
        check_text(name, "a document's name")
        version = "" if if_version is None else if_version
        unsure = False
        while True:
            compiled = await self._compile(name, body) if kind == RULES else ()
            words = self._client.function_call(
                "write", self._meta, self._now(), kind, name, body or b"", int(body is not None), version, *compiled
            )
            try:
                written = await self._client.ask(*words, once=if_version is not None and not unsure)
            except Unanswered:
                unsure = True
                continue
            if written == 0 and unsure and if_version is not None:
                return if_version + 1 if await self._is_written(kind, name, body, if_version) else None
            if written >= 0:
                return written or None

    async def _is_written(self, kind: str, name: str, body: bytes | None, over: int) -> bool:
        """Return whether a write whose reply was lost has taken place."""
        found = await self.read(kind, name)
        return (not found) if body is None else found == [Document(kind, name, over + 1, body)]

    async def _compile(self, name: str, body: bytes | None) -> tuple[bytes | str | int, ...]:
        """Compile all parts of the rules for the scripts, with this part as it is written now."""
        version, *found = await self._call("rules")
        parts = dict(replies.rule_parts(found))
        before = self._rule_reader.join(sorted(parts.items()))
        parts.pop(name, None)
        if body is not None:
            parts[name] = body
        after = self._rule_reader.join(sorted(parts.items()))
        return (version, compile_rules(after), int(lets_start(before, after)), uuid4().hex)

    async def _rules(self) -> RuleIndex:
        """Return the rules in force. Read them only if their version has changed."""
        version, *found = await self._call("rules")
        if version != self._rules_version:
            self._rule_index = RuleIndex(self._rule_reader.join(replies.rule_parts(found)))
            self._rules_version = version
        return self._rule_index

    # ------------------------------------------------------------------ the server

    def subscribe(self, name: str) -> Subscription:
        return self._notifier.subscribe(name)

    async def schema(self) -> tuple[int | None, int]:
        known = await self._check()
        return known, FORMAT

    async def pending_changes(self) -> list[str]:
        """Return what the next opening would change."""
        known = await self._check()
        return (
            [] if known is not None and known >= FORMAT else [f"format: write {FORMAT} (there now: {known or 'none'})"]
        )

    async def describe(self) -> dict[str, str]:
        return await describe_server(self._client, self._shown, self._transport, self._replicas)

    async def _check(self) -> int | None:
        """Return the format of the namespace, or None if it is new. Raises ``NotAStore``, ``StoreTooNew``."""
        kind = (await self._client.ask("TYPE", self._meta)).decode()
        if kind == "none":
            return None
        if kind != "hash":
            raise NotAStore(f"{self._shown}: the key {self._meta} is a {kind} of another program")
        known, oldest_writer = await self._client.ask("HMGET", self._meta, "format", "oldest_writer")
        if known is None:
            return None
        if int(oldest_writer or known) > FORMAT:
            raise StoreTooNew(
                f"{self._shown} was written by a newer Headway (format {int(known)}; this one writes {FORMAT}): "
                "upgrade Headway here"
            )
        return int(known)

    async def _connect(self) -> RedisConnection:
        return await self._client.connect()

    async def _call(self, function: str, *args: bytes | str | int) -> Any:
        return await self._client.call(function, self._meta, self._now(), *args)

    def _now(self) -> str | int:
        """Return the time of the clock that was passed in, or '' for the clock of the server."""
        return "" if self._clock is None else self._clock()


def _encode_id(job_id: str) -> bytes:
    """Encode an id that an operator may have typed, with any characters."""
    return job_id.encode(errors="surrogatepass")
