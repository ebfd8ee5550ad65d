"""Bulk actions on all jobs that fit a search, as operations that survive the process which runs them.

An operation is a document with its progress. A process works through the jobs from the newest to the oldest, in pages,
and writes how far it has come after each page. Another process goes on from there once the first one has been silent
for a while. Repeating a page changes nothing, because every action leaves jobs alone that it has changed.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Callable
from typing import Literal, NamedTuple

import msgspec

from headway.core.errors import ConfigError, CountGrew, ExpectNeeded, HeadwayError, StoreError
from headway.core.job import RETRYABLE_STATES, JobId, JobRecord, State
from headway.core.policy.document import DAY, Policy
from headway.core.policy.why import ReasonIndex
from headway.core.search import JobSearch, parse_search, write_search
from headway.observability.redaction import ArgumentRedactor
from headway.security.audit import Group, record
from headway.stores.base import JobQuery, Store
from headway.stores.paging import find_in_steps, without_values
from headway.stores.searching import Visit, is_indexed, needs_reasons, query_of, scan, source_of

BULK = "bulk"  # The kind of these documents. Their names are ids of operations.
PAGE = 500  # Jobs that one step changes, so that it blocks the store's other writers only briefly.
CONFIRMED_FROM = 100  # Larger operations need the number of jobs that the operator has seen.
GROWTH = 1.1  # An operation stops at this many times the expected jobs.
COUNT_SECONDS = 4.0  # Seconds after which counting stops, because an operator waits for the number.
EXAMPLES = 20
IDS_AT_ONCE = 10_000  # Ids that one read brings, about a megabyte.
OWNED_MS = 30_000  # Milliseconds of silence after which another process goes on with an operation.
KEPT_MS = 30 * DAY
KEPT_MAX = 200  # Ended operations.
REDACTOR = ArgumentRedactor()  # Searches do not look into secrets.
RESUME_EVERY = 10.0  # Seconds between looks for operations that no process works on.

Action = Literal["cancel", "retry", "run_now", "change_lane", "replay", "purge"]
BulkStatus = Literal["running", "done", "stopped", "failed"]

# The states whose jobs an action changes.
STATES: dict[str, tuple[State, ...]] = {
    "cancel": (State.QUEUED, State.EXECUTING),
    "retry": RETRYABLE_STATES,
    "replay": (State.DEAD_LETTER,),
    "purge": (State.DEAD_LETTER,),
    "run_now": (State.QUEUED,),
    "change_lane": (State.QUEUED,),
}


class BulkRecord(msgspec.Struct, kw_only=True):
    """An operation. ``before``: the number of the last job that was visited; all newer ones are done."""

    action: Action
    search: str
    who: str
    group: Group = "operators"
    tenant: str | None = None
    lane: str | None = None
    expect: int | None = None
    count: int = 0
    visited: int = 0
    changed: int = 0
    before: int | None = None
    status: BulkStatus = "running"
    error: str | None = None
    created_at: int = 0
    updated_at: int = 0
    finished_at: int | None = None
    owner: str = ""


class BulkCount(NamedTuple):
    """The number of matching jobs, and some of them. ``exact`` is false if counting took too long."""

    found: int
    exact: bool
    examples: list[JobRecord]


_encode = msgspec.json.Encoder().encode
decode_operation = msgspec.json.Decoder(BulkRecord).decode


def narrow(action: str, search: JobSearch) -> JobSearch:
    """Return the search restricted to jobs that an action can change. Raises ``ConfigError`` if there are none."""
    states = tuple(state for state in STATES[action] if not search.states or state in search.states)
    if not states:
        able = " and ".join(state.value for state in STATES[action])
        raise ConfigError(f"{action} changes jobs that are {able}, but the filter asks for other states")
    return search._replace(states=states)


def check_expected(expect: int | None, count: int) -> None:
    """Raise an error if many jobs fit and no number was expected, or more than a tenth above the expected number."""
    if expect is None and count > CONFIRMED_FROM:
        raise ExpectNeeded(f"{count:,} jobs fit; give this number as expect", count=count)
    if expect is not None and count > expect * GROWTH:
        raise CountGrew(f"{count:,} jobs fit by now, {expect:,} were expected", count=count)


async def matching(
    store: Store,
    policy: Policy,
    search: JobSearch,
    tenant: str | None,
    before: int | None = None,
    redactor: ArgumentRedactor = REDACTOR,
) -> AsyncGenerator[Visit]:
    """Yield what a search meets, newest first."""
    reason_of = ReasonIndex(await store.diagnose(), policy).code_of if needs_reasons(search) else _no_reason
    found = scan(source_of(store), search, reason_of, redactor.arguments_of, tenant=tenant, before=before)
    async for visit in found:
        yield visit


def _no_reason(_: JobRecord) -> str | None:
    return None


async def count_matching(
    store: Store,
    policy: Policy,
    action: str,
    search: JobSearch,
    tenant: str | None,
    lane: str | None = None,
    redactor: ArgumentRedactor = REDACTOR,
) -> BulkCount:
    """Count the jobs that an action would change."""
    until = time.monotonic() + COUNT_SECONDS
    if is_plain(action, search, tenant):
        return await _count_plain(store, query_of(search, tenant=tenant), until)
    count, examples = 0, list[JobRecord]()
    async for _, _, job, fits in matching(store, policy, search, tenant, redactor=redactor):
        if job is not None and fits and _concerns(action, lane, job):
            count += 1
            if len(examples) < EXAMPLES:
                examples.append(job)
        if time.monotonic() > until:
            return BulkCount(count, False, examples)
    return BulkCount(count, True, examples)


async def _count_plain(store: Store, query: JobQuery, until: float) -> BulkCount:
    """Count the jobs of a query by their ids alone."""
    count, more = 0, query._replace(limit=IDS_AT_ONCE)
    examples = [without_values(job) async for job in find_in_steps(store.find, query._replace(limit=EXAMPLES))]
    while found := await store.find_ids(more):
        count, more = count + len(found), more._replace(before=found[-1][0])
        if time.monotonic() > until:
            return BulkCount(count, len(found) < IDS_AT_ONCE, examples)
    return BulkCount(count, True, examples)


def is_plain(action: str, search: JobSearch, tenant: str | None) -> bool:
    """Return whether an action changes exactly the jobs that a store finds, so that it needs only their ids.

    ``tenant``: the one whose jobs the operator may change. A search for another tenant finds nothing.
    """
    own = tenant is None or search.tenants in ((), (tenant,))
    return own and action in ("cancel", "retry", "replay", "purge") and is_indexed(search)


def _concerns(action: str, lane: str | None, job: JobRecord) -> bool:
    """Return whether an action changes anything of a job."""
    if action == "run_now":
        return job.due_at is not None
    return action != "change_lane" or job.lane != lane


async def start_operation(
    store: Store,
    *,
    action: Action,
    search: JobSearch,
    who: str,
    group: Group,
    tenant: str | None,
    lane: str | None,
    expect: int | None,
    count: int,
) -> str:
    """Store a new operation, and record it in the audit. Return its id."""
    now_at = (await store.snapshot()).now_at
    await _prune(store, now_at)
    operation_id = uuid.uuid4().hex
    kept = BulkRecord(
        action=action,
        search=write_search(search),
        who=who,
        group=group,
        tenant=tenant,
        lane=lane,
        expect=expect,
        count=count,
        created_at=now_at,
    )
    await store.write(BULK, operation_id, _encode(kept), if_version=0)
    facts = {"operation": operation_id, "jobs": count, "tenant": tenant, "lane": lane}
    await record(store, who=who, what=f"bulk.{action}", target=kept.search, after=facts, group=group, now_at=now_at)
    return operation_id


async def read_operation(store: Store, operation_id: str) -> BulkRecord | None:
    """Read an operation."""
    found = await store.read(BULK, operation_id)
    return decode_operation(found[0].body) if found else None


async def read_operations(store: Store) -> list[tuple[str, BulkRecord]]:
    """Read all operations, newest first."""
    found = [(document.name, decode_operation(document.body)) for document in await store.read(BULK)]
    return sorted(found, key=lambda pair: (pair[1].created_at, pair[0]), reverse=True)


class BulkRunner:
    """Works through operations for one process, and goes on with those that other processes have left."""

    def __init__(self, store: Store, policy: Callable[[], Policy], redactor: ArgumentRedactor = REDACTOR) -> None:
        self._store = store
        self._policy = policy
        self._redactor = redactor
        self._owner = uuid.uuid4().hex

    async def __call__(self) -> float | None:
        """Go on with operations that no process works on. This is a chore."""
        for operation_id, kept in await read_operations(self._store):
            if kept.status == "running" and kept.owner != self._owner:
                await self.run(operation_id)
        return None

    async def run(self, operation_id: str) -> BulkRecord | None:
        """Work through an operation to its end. Return it, or None if another process does."""
        found = await self._store.read(BULK, operation_id)
        if not found:
            return None
        kept, version = decode_operation(found[0].body), found[0].version
        now_at = (await self._store.snapshot()).now_at
        if kept.status != "running" or (kept.owner not in ("", self._owner) and now_at < kept.updated_at + OWNED_MS):
            return None
        try:
            return await self._work(operation_id, kept, version)
        except StoreError:  # The chore goes on once the store answers.
            raise
        except HeadwayError as problem:
            return await self._end(operation_id, kept, "failed", str(problem))

    async def _work(self, operation_id: str, kept: BulkRecord, version: int) -> BulkRecord | None:
        search, claimed = parse_search(kept.search, kept.created_at), await self._save(operation_id, kept, version)
        while claimed is not None:
            page, last, ended = await self._page(kept, search)
            if kept.expect is not None and kept.visited + len(page) > max(kept.expect, kept.count) * GROWTH:
                return await self._end(operation_id, kept, "stopped", "more jobs fit than were expected")
            kept.changed += await apply_action(self._store, kept.action, page, kept.lane)
            kept.visited += len(page)
            kept.before = last
            if ended:
                return await self._end(operation_id, kept, "done", None)
            claimed = await self._save(operation_id, kept, claimed)
        return None

    async def _page(self, kept: BulkRecord, search: JobSearch) -> tuple[list[JobId], int | None, bool]:
        """Read the next jobs that fit. Return them, the number of the last job visited, and whether there are more."""
        if is_plain(kept.action, search, kept.tenant):
            return await self._page_of_ids(kept, search)
        page, last = list[JobId](), kept.before
        found = matching(self._store, self._policy(), search, kept.tenant, kept.before, self._redactor)
        async for seq, _, job, fits in found:
            if kept.before is None and job is not None and job.submitted_at > kept.created_at:
                continue  # It came after the operation.
            if job is not None and fits and _concerns(kept.action, kept.lane, job):
                page.append(job.job_id)
            last = seq
            if len(page) >= PAGE:
                return page, last, False
        return page, last, True

    async def _page_of_ids(self, kept: BulkRecord, search: JobSearch) -> tuple[list[JobId], int | None, bool]:
        # What came after the operation does not count.
        until_at = kept.created_at + 1 if search.before_at is None else min(search.before_at, kept.created_at + 1)
        query = query_of(search._replace(before_at=until_at), tenant=kept.tenant, before=kept.before)
        found = await self._store.find_ids(query._replace(limit=PAGE))
        return [job_id for _, job_id in found], found[-1][0] if found else kept.before, len(found) < PAGE

    async def _save(self, operation_id: str, kept: BulkRecord, version: int) -> int | None:
        """Write how far an operation has come. Return its version, or None if another process works on it."""
        kept.owner, kept.updated_at = self._owner, (await self._store.snapshot()).now_at
        return await self._store.write(BULK, operation_id, _encode(kept), if_version=version)

    async def _end(self, operation_id: str, kept: BulkRecord, status: BulkStatus, error: str | None) -> BulkRecord:
        now_at = (await self._store.snapshot()).now_at
        kept.status, kept.error, kept.finished_at, kept.updated_at = status, error, now_at, now_at
        await self._store.write(BULK, operation_id, _encode(kept))
        facts = {"operation": operation_id, "status": status, "visited": kept.visited, "changed": kept.changed}
        await record(
            self._store,
            who=kept.who,
            what=f"bulk.{kept.action}.end",
            target=kept.search,
            after=facts,
            group=kept.group,
            now_at=now_at,
        )
        return kept


async def apply_action(store: Store, action: str, job_ids: list[JobId], lane: str | None) -> int:
    """Apply an action to some jobs. Return how many it changed."""
    if not job_ids:
        return 0
    match action:
        case "cancel":
            states = await store.cancel(job_ids)
            return sum(state in (State.CANCELLED, State.EXECUTING) for state in states)
        case "retry" | "replay":
            return sum(state is State.QUEUED for state in await store.retry(job_ids))
        case "purge":
            return await store.purge((State.DEAD_LETTER,), job_ids, limit=len(job_ids))
        case "run_now":
            return sum(state is State.QUEUED for state in await store.reschedule(job_ids, now=True))
        case "change_lane":
            return sum(state is State.QUEUED for state in await store.reschedule(job_ids, lane=lane))
    raise ConfigError(f"this release has no bulk action {action!r}")


async def _prune(store: Store, now_at: int) -> None:
    ended = [pair for pair in await read_operations(store) if pair[1].status != "running"]
    for number, (operation_id, kept) in enumerate(ended):
        if number >= KEPT_MAX or kept.updated_at < now_at - KEPT_MS:
            await store.write(BULK, operation_id, None)
