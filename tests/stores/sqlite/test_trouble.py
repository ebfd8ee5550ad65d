"""A file that other processes keep locked, a full disk, and a killed process."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import time
from pathlib import Path

import apsw
import pytest

from headway.core.errors import StoreBusy
from headway.core.job import State
from headway.stores.base import JobQuery
from headway.stores.sqlite import own_file
from tests.conformance.builders import a_job, state_of, submit_one
from tests.stores.sqlite.conftest import OpenFile, locked


async def test_a_call_waits_while_another_process_keeps_the_file_locked(open_file: OpenFile, path: Path) -> None:
    store = await open_file(path)
    async with locked(path) as release:
        call = asyncio.ensure_future(store.submit([a_job()]))
        await asyncio.wait([call], timeout=0.1)
        assert not call.done()
        await release()
        assert len(await call) == 1


async def test_reading_goes_on_while_another_process_writes(open_file: OpenFile, path: Path) -> None:
    store = await open_file(path)
    job_id = await submit_one(store)
    async with locked(path):
        assert await state_of(store, job_id) is State.QUEUED


async def test_waiting_ends_with_a_clear_answer_for_all_who_wait(
    open_file: OpenFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_file, "BUSY_MS", 300)
    store = await open_file(path)
    async with locked(path):
        began = time.monotonic()
        answers = await asyncio.gather(*(store.submit([a_job()]) for _ in range(20)), return_exceptions=True)
        took = time.monotonic() - began
    assert all(isinstance(answer, StoreBusy) and str(path) in str(answer) for answer in answers)
    assert 0.25 <= took < 2  # Not 20 times as long.
    assert await store.find(JobQuery()) == []
    await submit_one(store)


FULL = """
import asyncio, subprocess, sys
from pathlib import Path

folder = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "headway-test", str(folder)], check=True)

from headway.core.errors import StoreFull
from headway.core.job import State
from headway.core.lease import ReportStatus
from headway.core.policy.retry import Returned
from headway.stores.base import JobQuery
from headway.stores.open import open_store
from tests.conformance.builders import a_job, beat, claim, end, register, state_of

async def main():
    store = open_store(f"sqlite:///{folder}/headway.db")
    await store.open()
    await register(store, slots=50)
    jobs = [a_job() for _ in range(20)]
    await store.submit(jobs)
    leases = await claim(store, free=50)
    assert len(leases) == 20

    accepted = [job.job_id for job in jobs]
    refusals = []
    while len(refusals) < 3:
        batch = [a_job(payload=b"x" * 20_000) for _ in range(5)]
        try:
            accepted += [answer.job_id for answer in await store.submit(batch)]
        except StoreFull as refusal:
            refusals.append(str(refusal))
    assert all(str(folder) in refusal and "full" in refusal for refusal in refusals), refusals
    assert (folder / "headway.db-ballast").exists()

    answers = [await end(store, lease, Returned(b"r" * 1_000)) for lease in leases]
    assert answers == [ReportStatus.OK] * 20, answers
    assert (await beat(store)).state == "active"
    assert not (folder / "headway.db-ballast").exists()

    # The room that was kept is for what runs: submits get none of it, however small.
    for _ in range(50):
        try:
            await store.submit([a_job()])
        except StoreFull as refusal:
            assert "kept for running jobs" in str(refusal)
        else:
            raise AssertionError("a submit was taken while the ballast was given up")
    assert (await beat(store)).state == "active"
    kept = {job.job_id: job for job in await store.find(JobQuery(limit=10_000))}
    assert set(kept) == set(accepted), "nothing half-written, nothing lost"
    assert all(kept[lease.job_id].state is State.COMPLETED for lease in leases)
    assert all(kept[lease.job_id].result == b"r" * 1_000 for lease in leases)

    # Once there is room the ballast is laid again, while the store stays open.
    subprocess.run(["mount", "-o", "remount,size=20m", str(folder)], check=True)
    [more] = await store.submit([a_job()])
    accepted.append(more.job_id)
    assert (folder / "headway.db-ballast").stat().st_size == 2 << 20
    await store.close()

    again = open_store(f"sqlite:///{folder}/headway.db")
    await again.open()
    assert {job.job_id for job in await again.find(JobQuery(limit=10_000))} == set(accepted)
    await again.close()
    print("as promised")

asyncio.run(main())
"""


def _may_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    trial = subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False)
    return trial.returncode == 0


async def test_a_full_disk_refuses_submits_and_still_takes_results(tmp_path: Path) -> None:
    # S3
    if not _may_mount():
        pytest.skip("this machine lets nobody mount a small disk")
    # In a mount namespace of its own, so that nothing is left behind however it ends.
    process = await asyncio.create_subprocess_exec(
        "unshare", "-rm", sys.executable, "-c", FULL, str(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    output, errors = await process.communicate()
    assert (output, process.returncode) == (b"as promised\n", 0), errors.decode()


SUBMITTER = """
import asyncio, sys
from headway.stores.open import open_store
from tests.conformance.builders import a_job
from uuid import uuid4

async def one(store):
    while True:
        job = a_job(str(uuid4()))
        await store.submit([job])
        print(job.job_id, flush=True)

async def main():
    store = open_store(f"sqlite:///{sys.argv[1]}")
    await store.open()
    await asyncio.gather(*(one(store) for _ in range(20)))

asyncio.run(main())
"""


async def test_what_was_acknowledged_survives_the_death_of_its_process(open_file: OpenFile, path: Path) -> None:
    # S6
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SUBMITTER, str(path), stdout=subprocess.PIPE, limit=1 << 22
    )
    assert process.stdout is not None
    acknowledged = [await process.stdout.readline() for _ in range(300)]
    process.kill()
    acknowledged += (await process.stdout.read()).splitlines(keepends=True)
    await process.wait()
    whole = {line.decode().strip() for line in acknowledged if line.endswith(b"\n")}
    store = await open_file(path)
    assert whole <= {job.job_id for job in await store.find(JobQuery(limit=100_000))}
    raw = apsw.Connection(str(path))
    assert raw.pragma("integrity_check") == "ok"
    raw.close()
