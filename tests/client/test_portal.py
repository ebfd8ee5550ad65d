"""Blocking verbs: on an event loop, in threads, after a fork."""

import asyncio
import json
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest

from headway import Headway
from headway.testing import Testbed


async def test_a_blocking_verb_on_a_running_loop_warns_once(headway: Testbed) -> None:
    @headway.app.task
    def ping() -> int:
        return 1

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        job = ping.enqueue()
        job.status()
        headway.app.jobs()
    (warning,) = warned
    assert warning.category is RuntimeWarning
    assert "await the verb with an `a` in front" in str(warning.message)
    assert warning.filename == __file__


def test_a_blocking_verb_in_a_plain_task_does_not_warn(headway: Testbed) -> None:
    @headway.app.task
    def outer() -> str:
        return inner.enqueue().id

    @headway.app.task
    def inner() -> None: ...

    job = outer.enqueue()
    headway.drain(raise_errors=True)
    assert headway.app.job(job.result()).status() == "completed"


def test_threads_share_an_app(headway: Testbed) -> None:
    @headway.app.task
    def ping(number: int) -> int:
        return number

    threads = [threading.Thread(target=lambda: [ping.enqueue(n) for n in range(50)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(headway.app.jobs(limit=1_000)) == 400


def test_loops_share_an_app(tmp_path: Path) -> None:
    app = Headway(f"sqlite:///{tmp_path}/headway.db")

    @app.task
    def ping() -> None: ...

    async def submit() -> str:
        job = await ping.aenqueue()
        assert await job.astatus() == "queued"
        await app.aclose()
        return job.id

    ids = [asyncio.run(submit()), asyncio.run(submit()), ping.enqueue().id]
    assert {job.id for job in app.jobs()} == set(ids)
    app.close()


def test_closing_an_app_ends_what_waits_in_other_threads() -> None:
    app = Headway("memory://")

    @app.task
    def ping() -> None: ...

    job = ping.enqueue()
    problems: list[BaseException] = []

    def wait() -> None:
        try:
            for event in job.events():
                if event.kind == "queued":
                    watching.set()
        except BaseException as problem:
            problems.append(problem)

    watching = threading.Event()
    thread = threading.Thread(target=wait)
    thread.start()
    assert watching.wait(20)
    app.close()
    thread.join(20)
    assert not thread.is_alive()
    assert len(problems) == 1
    app.close()


async def test_an_interrupted_wait_leaves_no_task_behind(headway: Testbed) -> None:
    @headway.app.task
    def ping() -> None: ...

    job = await ping.aenqueue()
    before = asyncio.all_tasks()
    waiting = asyncio.create_task(job.aresult())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await headway.app.aclose()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() <= before


FORKING = """
import json, os, sys
from headway import Headway, Worker

app = Headway(sys.argv[1])

@app.task
def echo(word: str) -> str:
    return word

first = echo.enqueue("before")
assert first.status() == "queued"
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    job = echo.enqueue("child")
    told = {"id": job.id, "status": job.status(), "first": first.status()}
    os.write(writer, json.dumps(told).encode())
    app.close()
    os._exit(0)
os.close(writer)
told = json.loads(os.read(reader, 10_000))
_, code = os.waitpid(child, 0)
after = echo.enqueue("parent")
with Worker(app):
    results = [echo.job(job_id).result(timeout=20) for job_id in (first.id, told["id"], after.id)]
print(json.dumps({"code": code, "told": told, "results": results, "count": len(app.jobs())}))
app.close()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_an_app_works_in_both_processes_after_a_fork(tmp_path: Path) -> None:
    # W13
    script = tmp_path / "forking.py"
    script.write_text(FORKING)
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", str(script), f"sqlite:///{tmp_path}/headway.db"],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["code"] == 0
    assert (answer["told"]["status"], answer["told"]["first"]) == ("queued", "queued")
    assert answer["results"] == ["before", "child", "parent"]
    assert answer["count"] == 3
