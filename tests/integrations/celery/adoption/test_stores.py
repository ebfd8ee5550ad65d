"""Adopted tasks work on each store while their worker replaces its processes after some jobs or for their memory."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import celery  # type: ignore[import-untyped]
import pytest

from headway.integrations.celery import adoption_of
from tests.conftest import ADDRESSES
from tests.integrations.celery.adoption.conftest import AdoptedProject, start_worker
from tests.integrations.celery.adoption.project import make_app

pytestmark = pytest.mark.timeout(180)

# pyright reads Celery's source and takes the result of a chain for None.
chain: Any = celery.chain
chord: Any = celery.chord
group: Any = celery.group

JOBS_PER_CHILD = 5


@pytest.fixture(scope="module", params=["sqlite", pytest.param("redis", marks=pytest.mark.proof), "postgres"])
def recycled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdoptedProject]:
    """Yield an app on a store, with a worker whose processes are replaced all the time."""
    folder = tmp_path_factory.mktemp(request.param)
    store, trace = ADDRESSES[request.param](folder), folder / "trace"
    trace.touch()
    worker = start_worker(
        folder, store, "process", "--slots", "3", "--max-jobs-per-child", str(JOBS_PER_CHILD),
        "--max-memory-per-child", "300",
    )  # fmt: skip
    patch = pytest.MonkeyPatch()
    patch.setenv("ADOPTED_TRACE", str(trace))
    app = make_app(store, "process")
    try:
        yield AdoptedProject(app, "process", trace, store, folder / "worker.log")
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(30)
        adoption_of(app).headway.close()
        patch.undo()


def attempts(adopted: AdoptedProject, results: list[Any]) -> set[tuple[int, int]]:
    jobs = adopted.app.backend.find_jobs([result.id for result in results])
    return {(job.attempts, job.crashes) for job in jobs}


def test_no_job_is_lost_and_no_process_runs_more_jobs_than_its_bound(recycled: AdoptedProject) -> None:
    sent = group(recycled.app.tasks["work.pid"].s() for _ in range(12))()
    pids = Counter(sent.get(timeout=90))
    assert sum(pids.values()) == 12
    assert max(pids.values()) <= JOBS_PER_CHILD
    assert attempts(recycled, sent.results) == {(1, 0)}


def test_a_process_that_has_grown_is_replaced(recycled: AdoptedProject) -> None:
    leak = recycled.app.tasks["work.pid"]
    pids = [leak.apply_async((350,)).get(timeout=60) for _ in range(3)]
    assert len(set(pids)) == len(pids)


def test_results_retries_and_failures_come_back(recycled: AdoptedProject) -> None:
    assert recycled.result("work.add", 1, kwargs={"y": 2}) == 3
    assert recycled.result("work.flaky", 2) == 2
    assert recycled.result("work.new_arguments", 1, kwargs={"text": "ab"}) == [3, 8, 2]
    assert recycled.result("work.soft") == "cleaned up"
    with pytest.raises(ValueError, match="bad"):
        recycled.result("work.fail")


def test_a_canvas_with_replaced_tasks_runs_through(recycled: AdoptedProject) -> None:
    add, replace, total = (recycled.app.tasks[f"work.{name}"] for name in ("add", "replace", "total"))
    header = [replace.si("chord"), replace.si("chain"), chain(add.si(1, 1), add.s(1))]
    assert chain(add.s(1, 1), chord(header, total.s()), add.s(1))().get(timeout=90) == 24
    assert group(replace.si("group"), add.s(1, 2))().get(timeout=60) == [[2, 4], 3]


def test_a_waiting_task_can_be_revoked_and_its_id_used_again(recycled: AdoptedProject, tmp_path: Path) -> None:
    waiting = recycled.call("work.add", 1, countdown=600, task_id=f"again-{tmp_path}")
    waiting.revoke()
    assert waiting.state == "REVOKED"
    assert recycled.result("work.add", 1, task_id=f"again-{tmp_path}") == 1
