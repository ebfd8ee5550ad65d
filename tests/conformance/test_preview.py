"""A preview of a submit: the same diagnostics as just after the submit, and nothing is stored."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.core.diagnostics import JobDiagnostics
from headway.core.errors import IdempotencyConflict
from headway.core.job import NewJob
from headway.core.policy.document import LimitRule
from headway.core.policy.reader import read_policy
from headway.core.preview import SubmitPreview
from headway.policy_store.rule_documents import change_costs, declare_limits
from headway.policy_store.versions import apply_policy
from headway.stores.base import JobQuery, Store
from headway.testing.clock import ManualClock
from tests.conformance.builders import a_job, an_id, claim, register

TASK = "reports.export"


async def fill(store: Store) -> None:
    """Submit waiting and running jobs of several classes, tenants and limits."""
    await declare_limits(store, TASK, {f"{TASK}.limit": LimitRule(concurrency=2, tasks=(TASK,))})
    await declare_limits(store, "mail", {"mail.rate": LimitRule(count=1, period_ms=60_000, tasks=("mail",))})
    await declare_limits(store, "sync", {"sync.by": LimitRule(concurrency=1, by="account", tasks=("sync",))})
    await change_costs(store, lambda _: {TASK: 5_000_000, "mail": 500_000})
    await register(store, slots=5, reserved=0)
    await store.submit([a_job(task="plain", lane="high", rung="slow")])
    await store.submit([a_job(lane="low", tenant="acme") for _ in range(3)])
    await store.submit([a_job(lane="low", tenant="umbrella", task="mail") for _ in range(4)])
    await store.submit([a_job(task="plain") for _ in range(6)])
    await store.submit([a_job(task="mail") for _ in range(2)])
    await store.submit([a_job(task="sync", lane="high", limits=("sync.by=7",)) for _ in range(2)])
    assert len(await claim(store, free=5)) == 5
    await store.submit([a_job(lane="low", tenant="acme") for _ in range(2)])


NEW: dict[str, dict[str, object]] = {
    "plain": {"task": "plain"},
    "an empty class": {"task": "plain", "needs": ("gpu", "big"), "lane": "high"},
    "a class that is shared": {"lane": "low", "tenant": "acme"},
    "a new tenant of a shared class": {"lane": "low", "tenant": "new", "task": "mail"},
    "no tenant in a shared class": {"lane": "low", "task": "plain"},
    "the first tenant of a new class": {"tenant": "acme", "task": "plain", "needs": ("gpu",)},
    "a full limit": {"task": TASK, "lane": "high"},
    "a used rate": {"task": "mail", "lane": "high"},
    "a limit by argument": {"task": "sync", "lane": "high", "limits": ("sync.by=7",)},
    "a free limit by argument": {"task": "sync", "lane": "high", "limits": ("sync.by=8",)},
    "delayed": {"task": "plain", "delay_ms": 5_000},
    "delayed with a tenant": {"task": "plain", "due_at": 10**14, "tenant": "acme"},
    "due in the past": {"task": "plain", "due_at": 1},
    "keys": {"task": "plain", "idempotency_key": "k", "unique_key": "u", "expires_ms": 60_000, "trace_id": "t"},
    "on a rung": {"task": "plain", "rung": "fast"},
    "on a full rung": {"task": "plain", "rung": "slow"},
    "on a full rung in the class of what runs": {"task": "plain", "rung": "slow", "lane": "high"},
    "the first tenant of a class": {"tenant": "acme", "task": "plain"},
}


def comparable(diagnosis: JobDiagnostics | None) -> JobDiagnostics:
    """Return diagnostics without sequence numbers and order keys, which a preview cannot know."""
    assert diagnosis is not None
    snapshot = diagnosis.queue.snapshot
    classes = sorted((view._replace(head_key=0) for view in snapshot.classes if view.waiting), key=str)
    queue = diagnosis.queue._replace(snapshot=snapshot._replace(classes=tuple(classes), next_due_at=None))
    return diagnosis._replace(job=replace(diagnosis.job, seq=0), queue=queue)


async def everything(store: Store) -> object:
    return [
        await store.stats(),
        await store.snapshot(),
        await store.find(JobQuery()),
        await store.breakdown(),
        await store.diagnose(),
        [await store.read(kind) for kind in ("rules", "policy")],
    ]


async def test_a_preview_is_what_a_submit_makes(store: Store) -> None:
    rungs = [{"name": "fast", "seconds": "10s"}, {"name": "slow", "seconds": "10m", "limit": 1}]
    await apply_policy(store, read_policy({"ladder": {"rungs": rungs}}, "the test"), now_at=1, note="")
    await fill(store)
    for kind, values in NEW.items():
        job = a_job(**values)  # type: ignore[arg-type]
        before = await everything(store)
        found = await store.preview(job)
        assert found.existing is None, kind
        assert await everything(store) == before, kind
        assert await store.get([job.job_id]) == [None], kind
        await store.submit([job])
        assert comparable(found.diagnosis) == comparable(await store.diagnose_job(job.job_id)), kind


async def test_a_preview_in_an_empty_store_keeps_nothing(store: Store) -> None:
    job = a_job(tenant="acme")
    found = await store.preview(job)
    assert await store.find(JobQuery()) == []
    assert (await store.snapshot()).classes == ()
    await store.submit([job])
    assert comparable(found.diagnosis) == comparable(await store.diagnose_job(job.job_id))


@pytest.mark.parametrize("tenant", [None, "acme"])
async def test_a_preview_names_the_job_that_stands_for_it(
    store: Store, clock: ManualClock, tenant: str | None
) -> None:  # fmt: skip
    keyed = a_job(idempotency_key="once", idempotency_ms=60_000, tenant=tenant)
    unique = a_job(unique_key="one", tenant=tenant)
    await store.submit([keyed, unique])

    def again(job: NewJob) -> NewJob:
        return job._replace(job_id=an_id())

    for job in (keyed, unique):
        assert await store.preview(job) == SubmitPreview(job.job_id, None)
        assert await store.preview(again(job)) == SubmitPreview(job.job_id, None)
        assert [reply.job_id for reply in await store.submit([again(job)])] == [job.job_id]
    other = again(keyed)._replace(payload=b"[1]", digest=b"other")
    for verb in (store.preview(other), store.submit([other])):
        with pytest.raises(IdempotencyConflict, match="the idempotency key 'once' was used before"):
            await verb
    with pytest.raises(IdempotencyConflict, match="the job id"):
        await store.preview(keyed._replace(payload=b"[1]"))
    assert (await store.preview(again(keyed)._replace(tenant="another"))).existing is None
    clock.advance(60_001)
    assert (await store.preview(again(keyed))).existing is None
    await store.cancel([unique.job_id])
    assert (await store.preview(again(unique))).existing is None


async def test_a_transient_job_has_no_place(store: Store) -> None:
    assert await store.preview(a_job(persist=False)) == SubmitPreview(None, None)
