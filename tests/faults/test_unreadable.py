"""A worker process survives every text and every damaged row in its store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.core.job import JobId, JobRecord, RetryRule, State
from tests.conformance.builders import a_job, the_job
from tests.conformance.test_hostile_text import HOSTILE, REFUSED, hostile_job
from tests.conftest import ADDRESSES
from tests.faults.conftest import Yard, wait_until
from tests.stores.damage import DAMAGES, in_postgres

# Leases here outlast any stall of a busy machine: what is tested has nothing to do with time.
PATIENT = """
from headway import Headway

app = Headway(heartbeat=5, dead_after=120)


@app.task(name="quick")
async def quick(number: int) -> int:
    return number
"""


@pytest.fixture
def yard(tmp_path: Path, store_name: str) -> Iterator[Yard]:
    found = Yard(tmp_path, ADDRESSES[store_name](tmp_path))
    (tmp_path / "patient.py").write_text(PATIENT)
    yield found
    found.close()


async def submit_hostile(yard: Yard) -> list[JobId]:
    """Submit jobs with every hostile text that stores accept."""
    jobs = [
        hostile_job(field, text)._replace(task="quick", payload=b'\x01{"number":7}')
        for field in ("tenant", "trace_id", "idempotency_key", "unique_key")
        for name, text in HOSTILE.items()
        if name not in REFUSED
    ]
    await (await yard.app.client.store()).submit(jobs)
    return [job.job_id for job in jobs]


async def submit_damaged(yard: Yard, store_name: str) -> list[JobId]:
    """Submit jobs, and damage the row of each in another way, except limits, which are not read without a rule."""
    damages = {name: damage for name, damage in DAMAGES[store_name].items() if "limits" not in name}
    store, damaged = await yard.app.client.store(), []
    for damage in damages.values():
        job = a_job(task="quick", payload=b'\x01{"number":8}', tenant="acme", trace_id="t", retry=RetryRule())
        await store.submit([job])
        damage(yard.folder, (await the_job(store, job.job_id)).seq)
        damaged.append(job.job_id)
    return damaged


async def look(yard: Yard, job_ids: list[JobId]) -> list[JobRecord]:
    return [job for job in await (await yard.app.client.store()).get(job_ids) if job is not None]


@pytest.mark.parametrize("store_name", ["sqlite", "postgres", "redis"])
def test_a_worker_outlives_hostile_texts_and_damaged_rows(yard: Yard, store_name: str) -> None:
    run = yard.app.portal.run
    hostile, damaged = run(submit_hostile(yard)), run(submit_damaged(yard, store_name))
    worker = yard.start("--slots", "20", app="patient:app")
    assert yard.submit("quick", 1, tenant="bolt").result(timeout=60) == 1
    wait_until(lambda: {job.state for job in run(look(yard, hostile))} == {State.COMPLETED}, within=60)
    wait_until(lambda: all(job.state.ended for job in run(look(yard, damaged))), within=60)
    assert [(job.state, job.reason) for job in run(look(yard, damaged))] == [
        (State.DEAD_LETTER, "unreadable") for _ in damaged
    ]
    assert worker.running
    assert yard.submit("quick", 2, tenant="acme").result(timeout=60) == 2


@pytest.mark.parametrize("store_name", ["postgres"])
def test_a_text_that_was_never_escaped_is_read_as_it_is(yard: Yard, store_name: str) -> None:
    run = yard.app.portal.run

    async def submit() -> list[JobId]:
        store = await yard.app.client.store()
        jobs = [a_job(task="quick", payload=b'\x01{"number":8}', tenant="acme", trace_id="t") for _ in range(3)]
        await store.submit(jobs)
        for job, change in zip(jobs, ("E'\\x01{'", "E'\\x017'", "E'\\x01null'"), strict=True):
            in_postgres(f"trace_id = {change}, tenant = {change}")(yard.folder, (await the_job(store, job.job_id)).seq)
        return [job.job_id for job in jobs]

    jobs = run(submit())
    worker = yard.start("--slots", "20", app="patient:app")
    wait_until(lambda: {job.state for job in run(look(yard, jobs))} == {State.COMPLETED}, within=60)
    assert [job.trace_id for job in run(look(yard, jobs))] == ["\x01{", "\x017", "\x01null"]
    assert worker.running
