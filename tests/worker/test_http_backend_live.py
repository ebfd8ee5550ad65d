"""A real worker and a real server: jobs run over HTTP, and neither loses any when the other dies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from headway import Headway, Job, JobCancelled, JobFailed
from headway.client.links import Reference
from headway.core.job import JobRecord as Record
from headway.core.policy.document import BUILT_IN, Ladder, Policy, Rung
from headway.policy_store.versions import apply_policy
from tests.conftest import ADDRESSES
from tests.faults.conftest import PATIENCE, WorkerProcess, alive, tree, wait_until
from tests.servers import Proxy, free_port
from tests.worker import remote_jobs

pytestmark = pytest.mark.slow

NOWHERE = "sqlite:////nowhere/at/all.db"  # Opening it would fail.


class Shop:
    """A folder with the tasks, a store, a server in front of it, and workers that know only the server."""

    def __init__(self, folder: Path, store: str | None = None) -> None:
        self.folder = folder
        self.store = store or f"sqlite:///{folder}/headway.db"
        self.port = free_port()
        self._workers: list[WorkerProcess] = []
        self._server: subprocess.Popen[bytes] | None = None
        shutil.copy(remote_jobs.__file__, folder / "remote_jobs.py")
        self.app = Headway(self.store)
        for name, task in remote_jobs.app.tasks.items():
            options = {field.name: getattr(task.options, field.name) for field in fields(task.options)}
            self.app.task(name=name, **options)(task.fn)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def serve(self) -> None:
        with (self.folder / "serve.log").open("ab") as log:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "headway", "serve", "--port", str(self.port), "--log", "json"],
                cwd=self.folder,
                env=_environment(HEADWAY_STORE=self.store),
                stdout=log,
                stderr=log,
            )
        wait_until(self._answers)

    def end_server(self, number: int) -> None:
        assert self._server is not None
        self._server.send_signal(number)
        self._server.wait(PATIENCE)

    def start(self, *options: str, wait: bool = True, **variables: str) -> WorkerProcess:
        """Start a worker over HTTP, and wait until the store knows it."""
        known = {worker.worker_id for worker in self.app.stats().workers}
        variables = {"HEADWAY_STORE": NOWHERE, "HEADWAY_SERVER": self.address} | variables
        with (self.folder / "worker.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "headway", "worker", "remote_jobs:app", "--log", "json", *options],
                cwd=self.folder,
                env=_environment(**variables),
                stdout=log,
                stderr=log,
            )
        worker = WorkerProcess(process)
        self._workers.append(worker)
        if wait:
            wait_until(lambda: {w.worker_id for w in self.app.stats().workers} - known)
        return worker

    def submit(self, task: str, *args: object, **options: object) -> Job[object]:
        return self.app.tasks[task].using(**options).enqueue(*args)  # type: ignore[arg-type]

    def until(self, job: Job[object], *states: str, within: float = PATIENCE) -> Record:
        wait_until(lambda: job.status() in states, within=within)
        return job.record()

    def marks(self, starting: str = "") -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return [line for line in (self.folder / "marks").read_text().splitlines() if line.startswith(starting)]
        return []

    def events(self) -> list[dict[str, Any]]:
        lines = (self.folder / "worker.log").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def close(self) -> None:
        for worker in self._workers:
            worker.send(signal.SIGCONT, whole_tree=True)
            worker.send(signal.SIGKILL, whole_tree=True)
            worker.wait()
        if self._server is not None and self._server.poll() is None:
            self.end_server(signal.SIGKILL)
        self.app.close()

    def _answers(self) -> bool:
        assert self._server is not None
        assert self._server.poll() is None, (self.folder / "serve.log").read_text()
        try:
            with urllib.request.urlopen(f"{self.address}/healthz", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def _environment(**variables: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}
    return kept | variables


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """Yield a shop whose server and workers the test may kill."""
    found = Shop(tmp_path)
    found.serve()
    yield found
    found.close()


@pytest.fixture(scope="module", params=["sqlite", "redis"])
def busy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """Yield a shop with one worker, which tests share and do not kill."""
    folder = tmp_path_factory.mktemp(f"shop-{request.param}")
    found = Shop(folder, ADDRESSES[request.param](folder))
    found.serve()
    found.start()
    yield found
    found.close()


def test_every_executor_runs_its_jobs_with_no_way_to_the_store(busy: Shop) -> None:
    # R5.1
    value = {"text": "ä\u0000", "numbers": [1, 2.5, None, 10**18]}
    jobs = [
        busy.submit("echo", value),
        busy.submit("in_thread"),
        busy.submit("in_process"),
        busy.submit("flaky"),
        busy.submit("snoozer"),
    ]
    echoed, thread, process, attempt, awake = [job.result(timeout=20) for job in jobs]
    assert (echoed, thread, attempt, awake) == (value, "in_thread 1", 3, "awake")
    assert isinstance(process, int)
    flaky, snoozer = jobs[3].record(), jobs[4].record()
    assert [one.reason for one in flaky.history] == ["failed", "failed"]
    assert flaky.history[0].error is not None
    assert (flaky.history[0].error.type, flaky.history[0].error.message) == ("ValueError", "not yet")
    assert "remote_jobs.py" in flaky.history[0].error.traceback
    assert (snoozer.attempts, snoozer.crashes) == (1, 0)


def test_results_and_steps_reach_a_job_with_no_way_to_the_store(busy: Shop) -> None:
    tasks = busy.app.tasks
    job = tasks["double"].call(4).then(tasks["double"]).then(tasks["echo"]).enqueue()
    assert job.result(timeout=20) == 16
    for task in ("fetch_once", "fetch_once_async"):
        stepped = busy.submit(task, task)
        assert stepped.result(timeout=20) == [{"by": task}, None, 2]
        assert busy.marks(f"fetched {task}").count(f"fetched {task}") == 1


def test_the_results_of_a_batch_are_read_over_the_server(busy: Shop) -> None:
    tasks = busy.app.tasks
    with busy.app.batch("rows") as batch:
        batch.add(tasks["echo"].call(number) for number in range(7))
        sums = [batch.then(tasks[name], "sum") for name in ("sum_async", "sum_in_thread", "sum_in_process")]
    assert [job.result(timeout=PATIENCE) for job in sums] == ["sum 21 7", "sum 21 0", "sum 21"]
    with busy.app.batch("bad rows") as bad:
        bad.add([tasks["refuse"].call(1), tasks["echo"].call(2)])
        after = tasks["list_failures"].call(Reference(bad.id)).after(bad, on_failure="run").enqueue()
    assert after.result(timeout=PATIENCE) == ["dead_letter no 1"]


def test_a_token_that_may_not_read_is_named_when_a_job_reads_results(shop: Shop) -> None:
    created = subprocess.run(
        [sys.executable, "-m", "headway", "token", "create", "--scope", "worker", "--json"],
        cwd=shop.folder,
        env=_environment(HEADWAY_STORE=shop.store),
        capture_output=True,
        check=True,
    )
    shop.start(HEADWAY_TOKEN=json.loads(created.stdout)["token"])
    tasks = shop.app.tasks
    with shop.app.batch("rows") as batch:
        batch.add([tasks["echo"].call(1)])
        done = batch.then(tasks["list_failures"])
    record = shop.until(done, "dead_letter", "completed")
    assert record.error is not None
    assert "needs a worker token that also has the scope read" in record.error.message


def test_progress_is_seen_while_a_job_runs(busy: Shop) -> None:
    job = busy.submit("steps")
    wait_until(lambda: job.record().progress == 0.5, within=5)
    assert job.record().note == "half"
    (busy.folder / "go").touch()
    job.result(timeout=10)


@pytest.mark.parametrize("task", ["hang", "deaf", "spin"])
def test_a_job_past_its_timeout_is_stopped_whatever_it_does(busy: Shop, task: str) -> None:
    # R5.17, R5.73
    record = busy.until(busy.submit(task), "dead_letter", within=15)
    assert record.error is not None
    assert (record.error.type, record.reason) == ("TimeoutError", "max_retries_exceeded")
    assert busy.submit("echo", 1).result(timeout=20) == 1


@pytest.mark.parametrize("task", ["slow", "in_thread", "in_process"])
def test_a_running_job_that_is_cancelled_hears_of_it_within_a_second(busy: Shop, task: str) -> None:
    before = len(busy.marks(f"{task} starts"))
    job = busy.submit(task, 30.0)
    wait_until(lambda: len(busy.marks(f"{task} starts")) > before)
    asked = time.monotonic()
    job.cancel()
    with pytest.raises(JobCancelled):
        job.result(timeout=10)
    assert time.monotonic() - asked < 3.0  # One, on a machine that has nothing else to do.


def test_a_running_job_is_lowered_over_http_and_keeps_what_it_has(shop: Shop) -> None:
    # R3.18, R3.35, R3.56
    rungs = (Rung("fast", 1_000), Rung("medium", 3_000), Rung("slow", 60_000, limit=1))
    shop.app.portal.run(_apply(shop.app, replace(BUILT_IN, ladder=Ladder(rungs))))
    shop.start("--slots", "4")
    job = shop.submit("elastic")
    wait_until(lambda: shop.marks("elastic starts"))
    assert job.record().assigned == "slow"
    asked = time.monotonic()
    needy = shop.submit("needy")
    wait_until(lambda: shop.marks("elastic lowered"))
    assert time.monotonic() - asked < 4.0
    assert needy.result(timeout=10) is None
    assert job.result(timeout=15) in ("3 s left", "2 s left", "1 s left")
    assert (job.record().reason, job.record().attempts) == ("partial", 1)


def test_a_burst_is_drained_and_each_job_runs_once(busy: Shop) -> None:
    before = len(busy.marks("echo"))
    jobs = [busy.submit("echo", number) for number in range(200)]
    for job in jobs:
        job.result(timeout=30)
    assert len(busy.marks("echo")) - before == 200


def test_another_policy_reaches_the_runner(busy: Shop) -> None:
    busy.app.portal.run(_apply(busy.app))
    wait_until(
        lambda: any((line["event"], line.get("version")) == ("policy.in_force", 1) for line in busy.events()), within=15
    )
    assert busy.submit("echo", 2).result(timeout=10) == 2


async def _apply(app: Headway, policy: Policy = BUILT_IN) -> None:
    await apply_policy(await app.client.store(), policy, now_at=1)


def test_a_job_may_submit_others_by_the_apps_own_store(shop: Shop) -> None:
    shop.start(HEADWAY_STORE=shop.store)
    other = shop.submit("follow_up", 5).result(timeout=20)
    assert shop.app.job(str(other)).result(timeout=20) == 5


# ---------------------------------------------------------------------- leaving


def test_a_drain_finishes_what_it_can_and_gives_the_rest_back(shop: Shop) -> None:
    # R5.19, R1.42
    worker = shop.start("--slots", "2", "--reserved", "0")
    short, long = shop.submit("slow", 1.0, 1), shop.submit("slow", 30.0, 2)
    wait_until(lambda: len(shop.marks("slow starts")) == 2)
    waiting = shop.submit("echo", 3)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert short.record().state == "completed"
    assert [(job.record().state, job.record().attempts) for job in (long, waiting)] == [("queued", 0), ("queued", 0)]
    assert not [worker for worker in shop.app.stats().workers if worker.state == "active"]
    assert not shop.marks("echo")


def test_a_drain_asked_for_by_an_operator_reaches_the_worker(shop: Shop) -> None:
    # R5.19
    worker = shop.start()
    (known,) = shop.app.stats().workers
    assert shop.app.portal.run(_drain(shop.app, known.worker_id))
    assert worker.wait(10) == 0


async def _drain(app: Headway, worker_id: str) -> bool:
    return await (await app.client.store()).drain(worker_id)


# ---------------------------------------------------------------------- dying


def test_a_runner_that_is_killed_is_reported_by_its_parent_at_once(shop: Shop) -> None:
    # W2: no job waits for a lease to end.
    worker = shop.start("--dead-after", "90")
    job = shop.submit("slow", 0.5)
    wait_until(lambda: shop.marks("slow starts"))
    os.kill(worker.runner, signal.SIGKILL)
    wait_until(lambda: job.record().crashes == 1)
    record = shop.until(job, "completed")
    assert (record.attempts, [one.reason for one in record.history]) == (2, ["crash"])
    assert record.history[0].error is not None
    assert "SIGKILL" in record.history[0].error.message


def test_a_worker_that_is_killed_loses_nothing_when_its_leases_end(shop: Shop) -> None:
    # W1
    worker = shop.start()
    job = shop.submit("slow", 1.0)
    wait_until(lambda: shop.marks("slow starts"))
    worker.send(signal.SIGKILL, whole_tree=True)
    shop.start()
    record = shop.until(job, "completed")
    assert (record.attempts, record.crashes) == (2, 1)


def test_a_frozen_worker_reports_too_late_and_registers_anew(shop: Shop) -> None:
    # W3, R5.57, R5.58
    frozen = shop.start()
    job = shop.submit("slow", 1.5)
    wait_until(lambda: shop.marks("slow starts"))
    frozen.send(signal.SIGSTOP, whole_tree=True)
    shop.start()
    wait_until(lambda: job.record().epoch == 2)
    known = {worker.worker_id for worker in shop.app.stats().workers}
    frozen.send(signal.SIGCONT, whole_tree=True)
    record = shop.until(job, "completed")
    assert (record.epoch, record.attempts) == (2, 2)
    # The one that was frozen, under its new name; under its old one it may be forgotten.
    wait_until(lambda: {worker.worker_id for worker in shop.app.stats().workers} - known)
    again = job.record()
    assert (again.epoch, again.worker_id, again.finished_at) == (2, record.worker_id, record.finished_at)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_that_goes_away_in_mid_work_and_comes_back_costs_nothing(shop: Shop, number: int) -> None:
    # R1.41, H6
    shop.start("--slots", "4", "--reserved", "0", "--dead-after", "30")
    running = [shop.submit("slow", 1.0 + 0.2 * number, number) for number in range(3)]
    wait_until(lambda: len(shop.marks("slow starts")) == 3)
    waiting = [shop.submit("echo", number) for number in range(100)]
    wait_until(lambda: len(shop.marks("echo")) > 10)
    shop.end_server(number)
    wait_until(lambda: len(shop.marks("slow ends")) == 3)  # The jobs go on meanwhile.
    shop.serve()
    for job in (*running, *waiting):
        record = shop.until(job, "completed")
        assert (record.attempts, record.crashes) == (1, 0)
    assert len(shop.marks("slow starts")) == 3
    assert len(shop.marks("echo")) == 100


def test_a_worker_cut_off_for_too_long_ends_its_work_before_its_leases_end(shop: Shop) -> None:
    # W20
    worker = shop.start()
    job = shop.submit("slow", 30.0)
    wait_until(lambda: shop.marks("slow starts"))
    runner = worker.runner
    shop.end_server(signal.SIGKILL)
    wait_until(lambda: not alive(runner), within=3.0)
    assert worker.wait() == 1
    shop.serve()
    shop.start()
    wait_until(lambda: len(shop.marks("slow starts")) == 2)
    job.cancel()


def test_a_worker_waits_for_a_server_that_is_not_there_yet(shop: Shop) -> None:
    shop.end_server(signal.SIGKILL)
    shop.start(wait=False)
    wait_until(lambda: any(line["event"] == "store.unavailable" for line in shop.events()))
    shop.serve()
    assert shop.submit("echo", 1).result(timeout=20) == 1


def test_lost_replies_lose_no_job_and_run_none_twice(shop: Shop) -> None:
    # N4, H5, H6
    with LossyProxy(shop.port) as lossy:
        shop.start("--slots", "4", "--dead-after", "30", HEADWAY_SERVER=f"http://127.0.0.1:{lossy.port}")
        jobs = [shop.submit("slow", 0.05, number) for number in range(100)]
        for count in range(1, 101):
            wait_until(lambda count=count: len(shop.marks("slow starts")) >= count)  # type: ignore[misc]
            if count % 10 == 0:
                lossy.lose()
        for job in jobs:
            record = shop.until(job, "completed")
            assert (record.attempts, record.epoch) == (1, 1)
        assert lossy.lost >= 5
    assert len(shop.marks("slow starts")) == 100


class LossyProxy:
    """A proxy with an event loop of its own that can lose replies. Use with ``with``."""

    def __init__(self, port: int) -> None:
        self.proxy = Proxy(port)
        self._up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> LossyProxy:
        self._thread.start()
        assert self._up.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    @property
    def port(self) -> int:
        return self.proxy.port

    @property
    def lost(self) -> int:
        return self.proxy.lost

    def lose(self) -> None:
        """Drop the next reply."""
        self.call(self.proxy.lose_replies)

    def call(self, function: Callable[[], None]) -> None:
        """Call a function of the proxy on its event loop."""
        self._loop.call_soon_threadsafe(function)

    async def _run(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        async with self.proxy:
            self._up.set()
            await self._over.wait()


# ---------------------------------------------------------------------- tokens


def test_a_worker_is_known_by_its_token_which_is_shown_nowhere(shop: Shop) -> None:
    # S-4, S-25
    created = subprocess.run(
        [sys.executable, "-m", "headway", "token", "create", "--scope", "worker", "--json"],
        cwd=shop.folder,
        env=_environment(HEADWAY_STORE=shop.store),
        capture_output=True,
        check=True,
    )
    token = json.loads(created.stdout)["token"]
    refused = shop.start(wait=False)
    assert refused.wait(20) == 3
    wrong = token[:-4] + "0000"
    refused = shop.start(wait=False, HEADWAY_TOKEN=wrong)
    assert refused.wait(20) == 3
    worker = shop.start(HEADWAY_TOKEN=token)
    assert shop.submit("in_process").result(timeout=20)
    for pid in tree(worker.pid):
        assert token not in Path(f"/proc/{pid}/cmdline").read_text()
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    logs = (shop.folder / "worker.log").read_text() + (shop.folder / "serve.log").read_text()
    assert token not in logs
    assert wrong not in logs
    assert "unauthenticated" in logs or "token" in logs


def test_the_output_of_a_program_comes_over_http_while_it_runs_and_after_it_failed(shop: Shop) -> None:
    shop.start()
    gate = shop.folder / "gate"
    job = shop.app.tasks["printer"].enqueue(gate=str(gate))
    texts = []
    for event in job.events():
        if event.kind == "output":
            texts.append(event.data["text"])
            gate.touch()
    assert "".join(texts) == "began\ndone\n"
    with pytest.raises(JobFailed) as caught:
        job.result(timeout=20)
    assert (caught.value.partial.exit_code, caught.value.partial.stdout) == (4, "began\ndone\n")
