"""Submitting: all or nothing, safe to repeat, one job for one key."""

from __future__ import annotations

import asyncio

import pytest

from headway.core.errors import IdempotencyConflict, PayloadError
from headway.core.job import JobId, RetryRule, State, SubmitReply
from headway.core.policy.retry import Raised, Released, Returned
from headway.stores.base import JobQuery, Store
from headway.testing.clock import ManualClock
from tests.conformance.builders import (
    BOOM,
    a_job,
    an_id,
    claim,
    claim_one,
    claimed_ids,
    end,
    ended_job,
    register,
    state_of,
    submit,
    submit_one,
    the_job,
)


async def test_a_submitted_job_is_queued_and_has_all_it_was_given(store: Store, clock: ManualClock) -> None:
    # R5.21, R2.38
    given = a_job(
        task="mail.send",
        payload=b'{"to": 1}',
        lane="low",
        max_retries=2,
        timeout_ms=1_234,
        needs=("gpu",),
        rung="slow",
        tenant="acme",
        retry=RetryRule("linear", 10, 20, 0.5),
        expires_ms=5_000,
        idempotency_key="k",
        unique_key="u",
        trace_id="t-1",
    )
    assert await store.submit([given]) == [SubmitReply(given.job_id)]
    job = await the_job(store, given.job_id)
    assert job.state is State.QUEUED
    assert (job.job_id, job.task, job.payload, job.lane, job.tenant) == (
        given.job_id, "mail.send", b'{"to": 1}', "low", "acme",
    )  # fmt: skip
    assert (job.max_retries, job.timeout_ms, job.needs, job.rung) == (2, 1_234, ("gpu",), "slow")
    assert job.retry == RetryRule("linear", 10, 20, 0.5)
    assert (job.submitted_at, job.eligible_at, job.due_at, job.expires_at) == (clock(), clock(), None, clock() + 5_000)
    assert (job.idempotency_key, job.unique_key, job.trace_id) == ("k", "u", "t-1")
    assert (job.attempts, job.crashes, job.epoch, job.history) == (0, 0, 0, ())
    assert (job.started_at, job.finished_at, job.worker_id) == (None, None, None)
    assert (job.result, job.error, job.reason) == (None, None, None)


async def test_submitting_nothing_gives_nothing(store: Store) -> None:
    assert await store.submit([]) == []


async def test_a_batch_is_answered_in_order(store: Store) -> None:
    jobs = [a_job() for _ in range(500)]
    assert [answer.job_id for answer in await store.submit(jobs)] == [job.job_id for job in jobs]
    await register(store, slots=1_000)
    assert await claimed_ids(store, free=1_000) == [job.job_id for job in jobs]


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\0", id="one NUL"),
        pytest.param(b"a\0b\0", id="NULs between and at the end"),
        pytest.param(bytes(range(256)), id="every byte"),
        pytest.param(b"\xff\xfe\x80", id="not UTF-8"),
        pytest.param(b"'); DROP TABLE job; --", id="SQL"),
        pytest.param("snow ☃ 🜲 \u202e".encode(), id="odd text"),
        pytest.param(b"\0\xff" * 150_000, id="large"),
    ],
)
async def test_payload_and_result_come_back_byte_for_byte(store: Store, payload: bytes) -> None:
    job_id = await submit_one(store, a_job(payload=payload))
    assert (await the_job(store, job_id)).payload == payload
    await register(store)
    lease = await claim_one(store)
    assert lease.payload == payload
    await end(store, lease, Returned(payload))
    assert (await the_job(store, job_id)).result == payload


@pytest.mark.parametrize("text", ["", "☃ 🜲", 'O\'Brien \\ "x"', "line\nline", "x" * 1_200])
async def test_text_comes_back_as_it_was(store: Store, text: str) -> None:
    job = a_job(task=text, tenant=text, idempotency_key=text, unique_key=text, trace_id=text)
    await submit(store, job)
    kept = await the_job(store, job.job_id)
    assert (kept.task, kept.tenant, kept.idempotency_key, kept.unique_key, kept.trace_id) == (text,) * 5
    assert await store.submit([job._replace(job_id=an_id())]) == [SubmitReply(job.job_id, deduplicated=True)]
    assert [found.job_id for found in await store.find(JobQuery(task=text, tenant=text))] == [job.job_id]


async def test_the_same_submit_again_keeps_one_job_and_answers_alike(store: Store) -> None:
    # J11
    jobs = [a_job(), a_job()]
    first = await store.submit(jobs)
    assert await store.submit(jobs) == first
    assert (await store.stats()).totals["submitted"] == 2
    await register(store)
    assert len(await claim(store)) == 2


async def test_a_repeat_does_not_queue_a_job_again_that_has_run_meanwhile(store: Store) -> None:
    job = a_job()
    await ended_job(store, State.COMPLETED, job)
    assert await store.submit([job]) == [SubmitReply(job.job_id)]
    assert await state_of(store, job.job_id) is State.COMPLETED
    assert await claim(store) == []


async def test_the_same_id_twice_in_a_batch_makes_one_job(store: Store) -> None:
    job = a_job()
    assert await store.submit([job, job]) == [SubmitReply(job.job_id)] * 2
    await register(store)
    assert await claimed_ids(store) == [job.job_id]


async def test_a_known_id_with_another_payload_is_refused_and_names_the_index(store: Store) -> None:
    # J11
    job = a_job()
    await submit(store, job)
    with pytest.raises(IdempotencyConflict) as caught:
        await store.submit([a_job(), a_job(job.job_id, payload=b"other")])
    assert caught.value.facts["index"] == 1
    assert (await the_job(store, job.job_id)).payload == job.payload


async def test_an_idempotency_key_gives_the_first_job_and_says_so(store: Store) -> None:
    # R5.80, R5.83, R1.46
    first = a_job(idempotency_key="order-9")
    assert await store.submit([first]) == [SubmitReply(first.job_id)]
    again = a_job(idempotency_key="order-9")
    assert await store.submit([again]) == [SubmitReply(first.job_id, deduplicated=True)]
    assert await store.get([again.job_id]) == [None]


async def test_an_idempotency_key_with_another_payload_is_refused(store: Store) -> None:
    # R5.83
    await submit(store, a_job(idempotency_key="order-9"))
    with pytest.raises(IdempotencyConflict) as caught:
        await store.submit([a_job(idempotency_key="order-9", payload=b"other")])
    assert caught.value.facts["index"] == 0
    assert caught.value.facts["idempotency_key"] == "order-9"


async def test_an_idempotency_key_with_another_task_is_refused(store: Store) -> None:
    await submit(store, a_job(idempotency_key="order-9"))
    with pytest.raises(IdempotencyConflict):
        await store.submit([a_job(idempotency_key="order-9", task="other")])


async def test_idempotency_keys_belong_to_a_tenant(store: Store) -> None:
    # R5.83
    jobs = [a_job(idempotency_key="k", tenant=tenant) for tenant in (None, "acme", "other")]
    assert await submit(store, *jobs) == [job.job_id for job in jobs]


async def test_an_idempotency_key_works_inside_one_batch(store: Store) -> None:
    first, second = a_job(idempotency_key="k"), a_job(idempotency_key="k")
    assert await store.submit([first, second]) == [SubmitReply(first.job_id), SubmitReply(first.job_id, True)]
    with pytest.raises(IdempotencyConflict) as caught:
        await store.submit([a_job(idempotency_key="n"), a_job(), a_job(idempotency_key="n", payload=b"other")])
    assert caught.value.facts["index"] == 2


async def test_an_idempotency_key_is_free_again_after_its_window_and_not_before(
    store: Store, clock: ManualClock
) -> None:
    # R5.80
    first = await submit_one(store, a_job(idempotency_key="k", idempotency_ms=86_400_000))
    clock.advance(ms=86_399_999)
    assert await submit_one(store, a_job(idempotency_key="k")) == first
    clock.advance(ms=1)
    later = a_job(idempotency_key="k", payload=b"other")
    assert await submit_one(store, later) == later.job_id
    assert await submit_one(store, a_job(idempotency_key="k", payload=b"other")) == later.job_id


async def test_a_refused_batch_leaves_nothing_behind(store: Store) -> None:
    # R5.82: not even the keys of its good jobs.
    await submit(store, a_job(idempotency_key="taken"))
    fresh = a_job(lane="high", needs=("gpu",), idempotency_key="new", unique_key="u", delay_ms=5, expires_ms=9)
    transient = a_job(lane="low", persist=False)
    with pytest.raises(IdempotencyConflict) as caught:
        await store.submit([fresh, transient, a_job(idempotency_key="taken", payload=b"other")])
    assert caught.value.facts["index"] == 2
    assert await store.get([fresh.job_id]) == [None]
    stats = await store.stats()
    assert stats.totals == {"submitted": 1}
    assert {name for name, lane in stats.lanes.items() if any(lane)} == {"medium"}
    other = a_job(idempotency_key="new", unique_key="u", payload=b"another")
    assert await store.submit([other]) == [SubmitReply(other.job_id)]
    assert await store.submit([fresh._replace(idempotency_key=None, unique_key=None)]) == [SubmitReply(fresh.job_id)]


async def test_many_submits_with_one_key_at_once_make_one_job(store: Store) -> None:
    # J10, R5.81
    jobs = [a_job(idempotency_key="k") for _ in range(50)]
    answers = await asyncio.gather(*(store.submit([job]) for job in jobs))
    assert len({answer.job_id for [answer] in answers}) == 1
    assert [answer.deduplicated for [answer] in answers].count(False) == 1
    assert len(await store.find(JobQuery())) == 1


async def test_many_submits_with_one_unique_key_at_once_make_one_job(store: Store) -> None:
    # R2.61
    answers = await asyncio.gather(*(store.submit([a_job(unique_key="u")]) for _ in range(50)))
    assert len({answer.job_id for [answer] in answers}) == 1
    assert len(await store.find(JobQuery())) == 1


async def test_a_unique_key_gives_the_job_that_is_queued_or_executing(store: Store) -> None:
    # R2.14
    first = await submit_one(store, a_job(unique_key="u"))
    assert await store.submit([a_job(unique_key="u")]) == [SubmitReply(first, deduplicated=True)]
    await register(store)
    await claim_one(store)
    assert await store.submit([a_job(unique_key="u")]) == [SubmitReply(first, deduplicated=True)]


async def test_a_unique_key_works_inside_one_batch(store: Store) -> None:
    # R2.61
    first, second, other = a_job(unique_key="u"), a_job(unique_key="u"), a_job(unique_key="v")
    assert await store.submit([first, second, other]) == [
        SubmitReply(first.job_id), SubmitReply(first.job_id, deduplicated=True), SubmitReply(other.job_id),
    ]  # fmt: skip


async def test_a_unique_key_compares_no_payloads(store: Store) -> None:
    first = await submit_one(store, a_job(unique_key="u"))
    assert await submit_one(store, a_job(unique_key="u", payload=b"other")) == first


@pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED, State.CANCELLED, State.DEAD_LETTER])
async def test_a_unique_key_is_free_again_once_its_job_has_ended(store: Store, state: State) -> None:
    # R2.14
    first = await ended_job(store, state, a_job(unique_key="u"))
    assert await submit_one(store, a_job(unique_key="u")) != first


async def test_a_unique_key_stays_taken_while_its_job_waits_for_another_attempt(store: Store) -> None:
    first = await submit_one(store, a_job(unique_key="u"))
    await register(store)
    await end(store, await claim_one(store), Raised(BOOM))
    assert await submit_one(store, a_job(unique_key="u")) == first
    await store.cancel([first])
    second = await submit_one(store, a_job(unique_key="u"))
    assert second != first
    await end(store, await claim_one(store), Released())
    assert await submit_one(store, a_job(unique_key="u")) == second


@pytest.mark.parametrize("job_id", ["line\nline", "one,two", "\x01", "a\0b", "\ud800"])
async def test_an_id_that_watchers_could_not_be_told_is_refused(store: Store, job_id: str) -> None:
    good = a_job()
    with pytest.raises(PayloadError, match="job 1 of the batch: its id must be printable"):
        await store.submit([good, a_job(job_id)])
    assert await store.get([good.job_id]) == [None]


async def test_an_odd_job_id_is_an_id_like_any_other(store: Store) -> None:
    job_id = JobId("not-a-uuid-☃")
    await submit(store, a_job(job_id))
    assert await state_of(store, job_id) is State.QUEUED
