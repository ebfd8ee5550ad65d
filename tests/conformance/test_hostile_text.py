"""Hostile text: a store that accepts a text returns it equal, and continues to work."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest

from headway.core.errors import JobError, PayloadError
from headway.core.job import JobId, JobRecord, NewJob, State
from headway.core.lease import Lease
from headway.core.policy.retry import Raised, Returned, Snoozed
from headway.stores.base import Exchange, Heartbeat, JobQuery, Progress, Store
from tests.conformance.builders import (
    CONFIRM_MS,
    LEASE_MS,
    a_claim_id,
    a_job,
    a_worker,
    ask,
    claim,
    claim_one,
    end,
    register,
    state_of,
    submit_one,
    the_job,
)

HOSTILE = {
    "mark": "\x01",
    "marked text": '\x01"x"',
    "marked object": "\x01{",
    "marked null": "\x01null",
    "marked bytes": "\x01\x02\x03",
    "control": "a\x02\x07\x1b[31m\r\nb",
    "tab and newline": "a\tb\nc",
    "NUL": "a\0b",
    "only NUL": "\0",
    "NUL in JSON": "\\u0000",
    "DEL": "a\x7fb",
    "C1": "a\x85\x9bb",
    "lone surrogate": "a\ud800b",
    "two halves": "\udc00\ud800",
    "line separators": "a\u2028b\u2029c",
    "right to left": "\u202egnp.exe\u200f",
    "emoji": "👩‍👩‍👧‍👦🏳️‍🌈",
    "noncharacter": "\uffff\ufffe\U0010ffff",
    "byte order mark": "\ufeffa",
    "combining": "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢",
    "quotes": "'\";--",
    "patterns": "{}:*?[]",
    "format": "%s%d%n{0}",
    "backslashes": "\\\\x01\\\"\\'",
    "dollars": "$1$$;$body$",
    "comma": "a,b,c",
    "space": " ",
    "255 bytes": "n" * 255,
    "256 bytes": "n" * 256,
    "255 wide letters": "€" * 255,
    "long": "long " * 1_000,
    "very long": "0123456789abcdef" * 5_000,
    "long and random": "".join(sha256(bytes([number])).hexdigest() for number in range(50)),
    "1,200 random bytes": "".join(sha256(bytes([number])).hexdigest() for number in range(19))[:1_200],
    "SQL": "x'); DROP TABLE job; --",
    "number": "1e999",
    "minus": "-",
}

REFUSED = {"NUL", "only NUL", "lone surrogate", "two halves", "long", "very long", "long and random"}

FIELDS = ("task", "tenant", "lane", "needs", "idempotency_key", "unique_key", "trace_id", "limits")


def hostile_job(field: str, text: str) -> NewJob:
    value: Any = (text,) if field in ("needs", "limits") else text
    job = a_job()._replace(**{field: value})
    return job._replace(digest=sha256(repr(job).encode()).digest())


def as_submitted(job: JobRecord, new: NewJob) -> bool:
    kept = (job.task, job.tenant, job.lane, job.needs, job.idempotency_key, job.unique_key, job.trace_id, job.limits)
    given = (new.task, new.tenant, new.lane, new.needs, new.idempotency_key, new.unique_key, new.trace_id, new.limits)
    return kept == given and job.payload == new.payload


async def submit_or_refuse(store: Store, *jobs: NewJob) -> bool:
    """Submit jobs. If the store refuses them, check that it stored none."""
    try:
        await store.submit(jobs)
    except PayloadError:
        assert await store.get([job.job_id for job in jobs]) == [None] * len(jobs)
        return False
    return True


@pytest.mark.parametrize("field", FIELDS)
async def test_hostile_text_in_a_submit_reads_back_equal_and_stops_nothing(store: Store, field: str) -> None:  # S-22
    kept: dict[str, NewJob] = {}
    for name, text in HOSTILE.items():
        job = hostile_job(field, text)
        if await submit_or_refuse(store, job):
            kept[name] = job
    assert HOSTILE.keys() - kept.keys() == REFUSED
    ids = [job.job_id for job in kept.values()]

    found = await store.get(ids)
    assert [
        name for (name, new), job in zip(kept.items(), found, strict=True) if not job or not as_submitted(job, new)
    ] == []
    listed = {job.job_id: job for job in await store.find(JobQuery(limit=1_000))}
    assert set(listed) == set(ids)
    assert [name for name, new in kept.items() if not as_submitted(listed[new.job_id], new)] == []
    for name, new in kept.items():
        if field in ("task", "tenant", "lane"):
            matches = await store.find(JobQuery(**{field: HOSTILE[name]}))  # type: ignore[arg-type]
            assert [job.job_id for job in matches] == [new.job_id], name
        assert (await store.diagnose_job(new.job_id)) is not None, name

    good = await submit_one(store, a_job(tenant="another"))
    assert sum(lane.waiting for lane in (await store.stats()).lanes.values()) == len(ids) + 1
    await register(store, slots=100, reserved=0, offers=tuple(HOSTILE[name] for name in kept))
    leases: dict[JobId, Lease] = {}
    while taken := await claim(store, free=100, offers=tuple(HOSTILE[name] for name in kept)):
        leases |= {lease.job_id: lease for lease in taken}
    assert set(leases) == {*ids, good}
    for name, new in kept.items():
        lease = leases[new.job_id]
        assert (lease.task, lease.tenant, lease.lane, lease.needs, lease.trace_id) == (
            new.task, new.tenant, new.lane, new.needs, new.trace_id,
        ), name  # fmt: skip
    held = await store.leases(worker_id="w1")
    assert {lease.job_id: (lease.task, lease.tenant, lease.trace_id) for lease in held} == {
        job_id: (lease.task, lease.tenant, lease.trace_id) for job_id, lease in leases.items()
    }
    assert {running.task for running in (await store.diagnose()).executing} == {lease.task for lease in leases.values()}
    for lease in leases.values():
        await end(store, lease)
    assert {job.state for job in await store.get([*ids, good]) if job} == {State.COMPLETED}


async def test_all_hostile_texts_together_are_kept_as_one_batch(store: Store) -> None:
    usable = {name: text for name, text in HOSTILE.items() if name not in REFUSED}
    jobs = [
        hostile_job(field, text) for field in ("task", "tenant", "trace_id", "unique_key") for text in usable.values()
    ]
    assert await submit_or_refuse(store, *jobs)
    for _ in range(2):  # Once more: then the store knows the classes, and every id.
        found = await store.get([job.job_id for job in jobs])
        assert all(job and as_submitted(job, new) for job, new in zip(found, jobs, strict=True))
        assert [answer.job_id for answer in await store.submit(jobs)] == [job.job_id for job in jobs]
    plain = [a_job(task=text, trace_id=text) for text in usable.values()]  # The short way, where a store has one.
    await store.submit(plain)
    await store.submit(plain[:1])
    assert all(
        job and as_submitted(job, new)
        for job, new in zip(await store.get([job.job_id for job in plain]), plain, strict=True)
    )


async def test_text_that_looks_escaped_is_never_read_as_another_name(store: Store) -> None:
    disguised = hostile_job("tenant", '\x01"victim"')._replace(task='\x01"reports.export"')
    await store.submit([disguised])
    [found] = await store.find(JobQuery())
    assert (found.task, found.tenant) == ('\x01"reports.export"', '\x01"victim"')
    assert await store.find(JobQuery(tenant="victim")) == []
    assert [job.job_id for job in await store.find(JobQuery(tenant='\x01"victim"'))] == [disguised.job_id]


@pytest.mark.parametrize("field", ["idempotency_key", "unique_key"])
async def test_a_hostile_key_is_recognised_again(store: Store, field: str) -> None:
    for name, text in HOSTILE.items():
        first, second = hostile_job(field, text), hostile_job(field, text)
        if await submit_or_refuse(store, first):
            [answer] = await store.submit([second._replace(digest=first.digest)])
            assert answer == (first.job_id, True), name


async def test_hostile_words_of_a_worker_are_kept(store: Store) -> None:
    for name, text in HOSTILE.items():
        worker = replace(a_worker(text), host=text, version=text, offers=(text,))
        if name in REFUSED:
            with pytest.raises(PayloadError):
                await store.renew(Heartbeat(worker, LEASE_MS, CONFIRM_MS, register=True))
            assert all(known.worker_id != text for known in (await store.stats()).workers), name
            continue
        await store.renew(Heartbeat(worker, LEASE_MS, CONFIRM_MS, register=True))
        job_id = await submit_one(store, a_job(needs=(text,)))
        lease = await claim_one(store, text, offers=(text,))
        assert (lease.job_id, lease.worker_id) == (job_id, text), name
        [known] = [known for known in (await store.stats()).workers if known.worker_id == text]
        assert (known.host, known.version, known.offers, known.running) == (text, text, (text,), 1), name
        assert (await the_job(store, job_id)).worker_id == text
        assert [found.job_id for found in await store.find(JobQuery(worker_id=text))] == [job_id]
        await store.renew(Heartbeat(worker, LEASE_MS, CONFIRM_MS, [(lease.job_id, lease.token)]))
        await end(store, lease)
        assert await state_of(store, job_id) is State.COMPLETED
        assert await store.drain(text)
        await store.mark_dead(text)


async def test_hostile_words_of_a_task_are_kept(store: Store) -> None:
    await register(store)
    for name, text in HOSTILE.items():
        job_id = await submit_one(store)
        lease = await claim_one(store)
        note = text[:500]  # As tasks and workers over HTTP do it.
        await store.exchange(Exchange("w1", progress=[Progress(lease.job_id, lease.seq, lease.token, 0.5, note)]))
        assert reads_as((await the_job(store, job_id)).note, note), name
        await end(store, lease, Returned(text.encode("utf-8", "surrogatepass"), text))
        job = await the_job(store, job_id)
        assert (job.state, job.result) == (State.COMPLETED, text.encode("utf-8", "surrogatepass")), name
        assert reads_as(job.note, note), name
        assert reads_as(job.result_error, text), name

        failing = await submit_one(store, a_job(max_retries=1))
        error = JobError(text, text, text)
        await end(store, await claim_one(store), Raised(error, after_ms=0))
        await end(store, await claim_one(store), Raised(error))
        job = await the_job(store, failing)
        assert (job.state, len(job.history)) == (State.DEAD_LETTER, 2), name
        for told in (job.error, *(attempt.error for attempt in job.history)):
            assert told is not None
            assert all(reads_as(part, text) for part in (told.type, told.message, told.traceback)), name

        stopped = await submit_one(store)
        await end(store, await claim_one(store), Raised(error, after_ms=60_000))
        await store.cancel([stopped], text)
        job = await the_job(store, stopped)
        assert reads_as(job.reason, text), name
        assert job.error is not None
        assert reads_as(job.error.message[:100], text[:100]), name

        snoozed = await submit_one(store)
        await end(store, await claim_one(store), Snoozed(60_000, text[:1_000]))
        assert reads_as((await the_job(store, snoozed)).reason, text[:1_000]), name
        await store.cancel([snoozed], text)
        assert reads_as((await the_job(store, snoozed)).reason, text), name


def reads_as(kept: str | None, text: str) -> bool:
    """Return whether a text of a running job was stored. A lone surrogate may have become an escape."""
    return kept in (text, text.encode("utf-8", "backslashreplace").decode())


async def test_documents_with_hostile_names_are_kept(store: Store) -> None:
    for name, text in HOSTILE.items():
        if name in REFUSED:
            with pytest.raises(PayloadError):
                await store.write("catalogue", text, b"{}")
            assert await store.read("catalogue", text) == [], name
            continue
        assert await store.write("catalogue", text, b"body " + name.encode()) == 1, name
        [document] = await store.read("catalogue", text)
        assert (document.name, document.body) == (text, b"body " + name.encode()), name
    kept = {document.name for document in await store.read("catalogue")}
    assert kept == {text for name, text in HOSTILE.items() if name not in REFUSED}
    for text in kept:
        await store.write("catalogue", text, None)
    assert await store.read("catalogue") == []


async def test_ids_that_nobody_gave_are_unknown(store: Store) -> None:
    good = await submit_one(store)
    typed = [JobId(text) for text in HOSTILE.values()]
    assert await store.get([*typed, good]) == [*[None] * len(typed), await the_job(store, good)]
    assert await store.cancel(typed) == [None] * len(typed)
    assert await store.retry(typed) == [None] * len(typed)
    assert [await store.diagnose_job(job_id) for job_id in typed] == [None] * len(typed)
    assert await store.purge([State.CANCELLED], typed) == 0
    assert await state_of(store, good) is State.QUEUED
    assert (await ask(store, claim_id=a_claim_id())).leases == []
