"""The output of programs while they run: readers of a job's events see it before the program ends."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headway import Headway, JobFailed, Worker
from headway.core.event import Event
from headway.observability.job_output import CHUNKS_MAX, KEPT_MAX, OUTPUT, OutputTail, prune_output, write_output
from tests.conftest import ADDRESSES

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="programs run on POSIX systems only"),
]

# Prints, waits until a file is there, and prints again.
SCRIPT = 'echo one; echo two >&2; while [ ! -e "$GATE" ]; do sleep 0.02; done; echo three'


@pytest.fixture
def app(store_name: str, tmp_path: Path) -> Headway:
    return Headway(ADDRESSES[store_name](tmp_path), slots=2, reserved=0)


def shell(app: Headway, gate: Path, **options: Any) -> Any:
    return app.command(["sh", "-c", "{script}"], name="sh", env={"GATE": str(gate)}, max_retries=0, **options)


def printed(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.data["stream"], event.data["text"]) for event in events if event.kind == "output"]


async def test_output_is_told_while_the_program_runs(app: Headway, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    program = shell(app, gate)
    async with app, Worker(app):
        job = await program.aenqueue(script=SCRIPT)
        seen: list[Event] = []
        async for event in job.aevents():
            seen.append(event)
            if sorted(printed(seen)) == [("stderr", "two\n"), ("stdout", "one\n")]:
                assert await job.astatus() == "executing"
                gate.touch()
        assert sorted(printed(seen)) == [("stderr", "two\n"), ("stdout", "one\n"), ("stdout", "three\n")]
        assert [event.data["offset"] for event in seen if event.data.get("stream") == "stdout"] == [0, 4]
        assert [event.kind for event in seen if event.kind not in ("output", "estimate")] == [
            "queued",
            "started",
            "finished",
        ]
        assert (await job.aresult()).stdout == "one\nthree\n"


async def test_each_attempt_has_its_own_output(app: Headway, tmp_path: Path) -> None:
    program = shell(app, tmp_path / "gate")
    async with app:
        store = await app.client.store()
        job = await program.aenqueue(script=SCRIPT)
        tail = OutputTail()
        tail.add("stdout", "newer", 5)
        assert await write_output(store, job.id, 2, tail.take())
        assert not await write_output(store, job.id, 1, tail.take())
        assert await write_output(store, job.id, 3, tail.take())


async def test_output_is_removed_after_the_job(app: Headway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = tmp_path / "gate"
    program = shell(app, gate)
    async with app:
        store = await app.client.store()
        tail = OutputTail()
        tail.add("stdout", "x", 1)
        waits = await program.aenqueue(script="true")
        assert await write_output(store, waits.id, 1, tail.take())
        await write_output(store, "gone", 1, tail.take())  # type: ignore[arg-type]
        assert await prune_output(store) == 1
        assert [document.name for document in await store.read(OUTPUT)] == [waits.id]
        await waits.acancel()
        assert await prune_output(store) == 0  # Its readers may still come.
        monkeypatch.setattr("headway.observability.job_output.PRUNED_AFTER_MS", -1)
        assert await prune_output(store) == 1
        assert await store.read(OUTPUT) == []


async def test_a_program_that_is_done_at_once_writes_nothing_but_its_result(app: Headway, tmp_path: Path) -> None:
    program = shell(app, tmp_path / "gate")
    async with app, Worker(app):
        job = await program.aenqueue(script="echo quick; exit 1")
        with pytest.raises(JobFailed) as caught:
            await job.aresult(timeout=30)
        assert caught.value.partial.stdout == "quick\n"
        assert await (await app.client.store()).read(OUTPUT) == []


def test_a_tail_forgets_the_oldest() -> None:
    tail = OutputTail()
    tail.add("stdout", "a" * KEPT_MAX, 10)
    tail.add("stderr", "b", 10)
    [chunk] = tail.take()
    assert (chunk.stream, chunk.offset, chunk.text) == ("stderr", 0, "b")
    tail.add("stdout", "c" * (KEPT_MAX + 5), 11)
    [chunk] = tail.take()
    assert (chunk.stream, chunk.offset, len(chunk.text)) == ("stdout", KEPT_MAX + 5, KEPT_MAX)
    for _ in range(CHUNKS_MAX + 1):
        tail.add("stdout", "d", 12)
    chunks = tail.take()
    assert len(chunks) == CHUNKS_MAX
    assert all(before.at < after.at for before, after in pairwise(chunks))
    assert (tail.changed, tail.last_line) == (False, "d")
