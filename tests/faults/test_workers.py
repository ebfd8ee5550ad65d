"""Jobs whose processes die, freeze or misbehave."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections import Counter

import apsw
import pytest

from headway import JobCancelled, JobFailed
from headway.core.job import JobId
from headway.runtime.os_support import new_worker_id
from tests.faults.conftest import Yard, alive, children, tree, wait_until


def test_a_worker_killed_in_mid_job_loses_nothing(yard: Yard) -> None:
    # I7, W1, R1.40, R2.44, R5.74
    job = yard.submit("slow", 1.0)
    first = yard.start()
    wait_until(lambda: yard.marks("slow starts"))  # It is executing a moment before that.
    first.send(signal.SIGKILL, whole_tree=True)
    yard.start()
    record = yard.until(job, "completed")
    assert (record.attempts, record.crashes) == (2, 1)
    assert len(yard.marks("slow starts")) == 2
    assert [attempt.reason for attempt in record.history] == ["crash"]


def test_a_runner_that_dies_is_recovered_at_once_by_its_parent(yard: Yard) -> None:
    # I7, W2: the parent lives, so no job waits for a lease to end.
    job = yard.submit("slow", 0.5, timeout=30)
    worker = yard.start("--dead-after", "90")
    yard.until(job, "executing")
    os.kill(worker.runner, signal.SIGKILL)
    wait_until(lambda: job.record().crashes == 1)
    assert yard.until(job, "completed").attempts == 2


def test_a_parent_that_dies_takes_its_runner_along(yard: Yard) -> None:
    # W16
    job = yard.submit("block_loop", 20.0)
    worker = yard.start()
    yard.until(job, "executing")
    processes = tree(worker.pid)
    worker.send(signal.SIGKILL)
    worker.wait()
    wait_until(lambda: not any(alive(pid) for pid in processes), within=20)  # The job would take longer.


def test_a_worker_that_starts_again_at_once_is_another_worker(yard: Yard) -> None:
    # W19: in containers the host's name and the number of the process may be the same each time.
    names = {new_worker_id() for _ in range(100)}
    assert len(names) == 100
    assert len({name.rpartition(":")[0] for name in names}) == 1
    job = yard.submit("slow", 5.0)
    first = yard.start()
    yard.until(job, "executing")
    held_by = job.info().worker
    first.send(signal.SIGKILL, whole_tree=True)
    yard.start()
    record = yard.until(job, "completed")
    assert record.worker_id != held_by
    assert (record.attempts, record.crashes) == (2, 1)


def test_the_late_result_of_a_frozen_worker_is_refused(yard: Yard) -> None:
    # T7, W3, R2.56, R5.57, R5.58
    job = yard.submit("until_told", "told")
    frozen = yard.start()
    # A worker that is kept waiting may return the job to the queue, which does not count as an attempt, and start it
    # anew. So freeze it until it has the job then.
    while True:
        wait_until(lambda: yard.marks("until_told"))
        yard.freeze(frozen)
        old = job.record()
        if old.state == "executing" and old.epoch == len(yard.marks("until_told")):
            break
        frozen.send(signal.SIGCONT, whole_tree=True)
    yard.start()
    wait_until(lambda: job.record().epoch == old.epoch + 1)
    frozen.send(signal.SIGCONT, whole_tree=True)
    (yard.folder / "told").touch()
    record = yard.until(job, "completed")
    assert record.epoch == old.epoch + 1
    assert record.worker_id != old.worker_id
    assert record.attempts == old.attempts + 1
    # Nothing that the frozen one says later changes it.
    wait_until(lambda: len(yard.app.stats().workers) >= 3)
    again = job.record()
    assert (again.epoch, again.worker_id, again.finished_at) == (record.epoch, record.worker_id, record.finished_at)


def test_a_pause_shorter_than_the_lease_changes_nothing(yard: Yard) -> None:
    # W4
    job = yard.submit("slow", 1.5)
    worker = yard.start()
    wait_until(lambda: yard.marks("slow starts"))
    yard.freeze(worker)
    time.sleep(0.7)
    worker.send(signal.SIGCONT, whole_tree=True)
    record = yard.until(job, "completed")
    assert (record.attempts, record.epoch) == (1, 1)


def test_a_poison_job_ends_as_a_dead_letter(yard: Yard) -> None:
    # W5, R2.57, R5.75
    job = yard.submit("leave_in_process", max_retries=10)
    other = yard.submit("slow", 3.0)
    yard.start()
    record = yard.until(job, "dead_letter")
    assert (record.crashes, record.reason) == (3, "crash_limit")
    assert len(yard.marks("leave_in_process")) == 3
    assert yard.until(other, "completed").attempts == 1  # Its neighbour never noticed.
    job.retry()
    assert job.record().crashes == 0
    job.cancel()


def test_a_job_that_segfaults_costs_one_process(yard: Yard) -> None:
    # W2, J8
    job = yard.submit("segfault", max_retries=0)
    neighbour = yard.submit("slow_process", 1.0)
    yard.start()
    record = yard.until(job, "dead_letter")
    assert record.error is not None
    assert "SIGSEGV" in record.error.message
    assert yard.until(neighbour, "completed").attempts == 1


def test_a_job_that_exits_the_runner_is_counted_and_its_neighbour_runs_again(yard: Yard) -> None:
    neighbour = yard.submit("slow", 2.0)
    yard.start()
    yard.until(neighbour, "executing")
    job = yard.submit("leave_in_thread", max_retries=0)
    assert yard.until(job, "dead_letter").crashes == 1
    assert yard.until(neighbour, "completed").crashes == 1


@pytest.mark.parametrize("way", ["stop_loop", "cancel_all", "exit_in_child"])
def test_a_job_that_ends_the_event_loop_is_counted_as_a_crash(yard: Yard, way: str) -> None:
    # W5, R2.57: Python cancels all jobs of the loop before the process ends, so none of them runs any more by then.
    neighbour = yard.submit("slow", 2.0)
    yard.start()
    yard.until(neighbour, "executing")
    job = yard.submit("end_loop", way, max_retries=0)
    record = yard.until(job, "dead_letter")
    assert (record.attempts, record.crashes) == (1, 1)
    assert yard.until(neighbour, "completed").attempts == 2


def test_a_job_that_blocks_the_loop_keeps_its_lease(yard: Yard) -> None:
    # W6, R2.55: longer than the lease, and it still runs once.
    job = yard.submit("block_loop", 4.0)
    yard.start()
    record = yard.until(job, "completed")
    assert (record.attempts, record.epoch) == (1, 1)
    assert len(yard.marks("block_loop")) == 1


@pytest.mark.parametrize("task", ["ignore_cancel", "ignore_in_thread", "spin"])
def test_a_job_that_ignores_its_timeout_is_stopped_all_the_same(yard: Yard, task: str) -> None:
    # W7, R5.73, R5.17
    job = yard.submit(task)
    yard.start()
    record = yard.until(job, "dead_letter", within=15)
    assert record.error is not None
    assert record.error.type == "TimeoutError"
    after = yard.submit("quick", 1)
    assert after.result(timeout=20) == 1  # The worker lives.


def test_a_job_that_must_be_killed_is_not_retried_if_its_task_gives_up_on_timeouts(yard: Yard) -> None:
    job = yard.submit("ignore_and_give_up")
    yard.start()
    record = yard.until(job, "failed", within=15)
    assert record.error is not None
    assert (record.error.type, record.error.retriable) == ("TimeoutError", False)
    assert len(yard.marks("ignore_and_give_up")) == 1


def test_a_job_with_a_long_id_keeps_its_lease(yard: Yard) -> None:
    job_id = JobId("report-of-" + "x" * 200)
    call = yard.app.tasks["slow_thread"].call(6.0)
    yard.app.submitter.submit_blocking((call._replace(new=call.new._replace(job_id=job_id)),))
    yard.start()
    record = yard.until(yard.app.job(job_id), "completed", within=30)
    assert (record.job_id, record.attempts, record.epoch) == (job_id, 1, 1)


def test_neighbours_of_a_job_that_must_be_killed_lose_no_attempt(yard: Yard) -> None:
    neighbour = yard.submit("slow", 4.0)
    yard.start()
    yard.until(neighbour, "executing")
    yard.until(yard.submit("ignore_in_thread"), "dead_letter", within=15)
    record = yard.until(neighbour, "completed")
    assert (record.attempts, record.crashes) == (1, 0)


@pytest.mark.parametrize("task", ["slow", "slow_thread", "slow_process"])
def test_a_running_job_can_be_cancelled(yard: Yard, task: str) -> None:
    # R2.74, R5.43
    job = yard.submit(task, 60.0)
    yard.start()
    yard.until(job, "executing")
    assert job.cancel() == "executing"
    with pytest.raises(JobCancelled):
        job.result(timeout=30)


def test_sigterm_gives_running_jobs_the_grace_and_returns_the_rest(yard: Yard) -> None:
    # W8, R1.42, R2.26, R2.27
    short, long = yard.submit("slow", 1.0), yard.submit("slow", 60.0)
    waiting = yard.submit("quick", 1, delay=0)
    worker = yard.start("--slots", "2", "--reserved", "0")
    yard.until(short, "executing")
    yard.until(long, "executing")
    worker.send(signal.SIGTERM)
    assert worker.wait(15) == 0
    assert short.status() == "completed"
    record = long.record()
    assert (record.state, record.attempts, record.worker_id, record.started_at) == ("queued", 0, None, None)  # R5.53
    assert waiting.status() == "queued"
    assert not [worker for worker in yard.app.stats().workers if worker.state == "active"]


def test_a_second_sigterm_stops_now(yard: Yard) -> None:
    # W9
    job = yard.submit("slow", 60.0)
    log = yard.folder / "worker.log"
    with log.open("wb") as file:
        worker = yard.start("--grace", "60", stderr=file, log_level="info")
    yard.until(job, "executing")
    worker.send(signal.SIGTERM)
    wait_until(lambda: b"worker.draining" in log.read_bytes())
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    record = job.record()
    assert (record.state, record.attempts) == ("queued", 0)


def test_two_workers_on_one_file_share_the_work(yard: Yard) -> None:
    # R1.22, R1.4, R2.50, R5.51
    jobs = yard.app.enqueue_many(yard.app.tasks["quick"].call(number) for number in range(400))
    yard.start("--slots", "3")
    yard.start("--slots", "3")
    wait_until(lambda: all(job.status() == "completed" for job in jobs[::40]) and len(yard.marks("quick")) >= 400)
    assert sorted(yard.marks("quick"), key=lambda line: int(line.split()[1])) == [f"quick {n}" for n in range(400)]
    assert {job.record().attempts for job in jobs[::40]} == {1}
    long = [yard.submit("slow", 60.0, priority="high") for _ in range(6)]
    wait_until(lambda: all(job.status() == "executing" for job in long))
    assert sorted(Counter(job.record().worker_id for job in long).values()) == [3, 3]


def test_what_a_killed_job_started_is_killed_with_it(yard: Yard) -> None:
    # W14
    job = yard.submit("leave_grandchild", timeout=1, max_retries=0)
    yard.start()
    wait_until(lambda: yard.marks("grandchild"))
    grandchild = int(yard.marks("grandchild")[0].split()[1])
    yard.until(job, "dead_letter", within=15)
    wait_until(lambda: not alive(grandchild))


@pytest.mark.parametrize("point", ["exchange.before:kill:3", "exchange.after:kill:2", "exchange.after:kill:3"])
def test_a_crash_around_an_exchange_loses_nothing(yard: Yard, point: str) -> None:
    # W10, W11, W12: between a job's end and its report, and between a claim and its reply.
    jobs = [yard.submit("quick", number) for number in range(3)]
    yard.start(environment={"HEADWAY_FAILPOINT": f"{point}:struck"})
    for number, job in enumerate(jobs):
        assert job.result(timeout=30) == number
        assert job.record().attempts <= 2
    wait_until(lambda: (yard.folder / "struck").exists())  # The last result is there a moment before the blow.


def test_a_store_locked_for_a_while_costs_no_second_run(yard: Yard) -> None:
    # S1
    job = yard.submit("slow", 0.4)  # It ends while nothing can be told to the store.
    yard.start()
    yard.until(job, "executing")
    lock = apsw.Connection(str(yard.store_path))
    lock.set_busy_timeout(5_000)
    lock.execute("BEGIN EXCLUSIVE")
    time.sleep(1.0)
    lock.execute("ROLLBACK")
    lock.close()
    record = yard.until(job, "completed")
    assert (record.attempts, record.epoch) == (1, 1)


def test_a_worker_cut_off_from_its_store_ends_its_work_and_leaves(yard: Yard) -> None:
    # W20
    job = yard.submit("slow", 60.0)
    worker = yard.start()
    yard.until(job, "executing")
    processes = tree(worker.pid)
    lock = apsw.Connection(str(yard.store_path))
    lock.set_busy_timeout(5_000)
    lock.execute("BEGIN EXCLUSIVE")
    wait_until(lambda: not alive(processes[-1]), within=6)
    lock.execute("ROLLBACK")
    lock.close()
    assert worker.wait(40) == 1
    assert job.status() == "queued"


def test_each_tick_fires_once_with_two_workers(yard: Yard) -> None:
    # T5, I12
    yard.start()
    yard.start()
    wait_until(lambda: len(yard.marks("tick")) >= 4)
    keys = [str(job.record().idempotency_key) for job in yard.app.jobs(task="every_second", limit=50)]
    ticks = sorted(int(key.split(":")[2]) for key in keys)  # Milliseconds since 1970.
    assert ticks == [*range(ticks[0], ticks[-1] + 1, 1_000)]
    assert len(ticks) >= 4


def test_a_runner_without_a_free_descriptor_goes_on_once_there_are_some(yard: Yard) -> None:
    # W17
    worker = yard.start("--slots", "4")
    wait_until(lambda: children(worker.pid))
    for pid in tree(worker.pid):
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (64, 64))
    hog = yard.submit("hoard")
    wait_until(lambda: yard.marks("hoard is full"))
    jobs = [yard.submit("quick", number) for number in range(20)]
    (yard.folder / "enough").touch()
    assert isinstance(hog.result(timeout=60), int)
    assert [job.result(timeout=60) for job in jobs] == [*range(20)]
    assert hog.record().attempts == 1
    assert worker.running


def test_a_failed_job_says_so_to_whoever_waits(yard: Yard) -> None:
    job = yard.submit("segfault", max_retries=0)
    yard.start()
    with pytest.raises(JobFailed, match="SIGSEGV"):
        job.result(timeout=20)


def test_a_producer_killed_at_any_moment_leaves_whole_jobs_or_none(yard: Yard) -> None:
    # R1.38, I1: what it was told is kept is there, and every record has its place in the queue.
    script = (
        "import sys; from headway import Headway; app = Headway()\n"
        "@app.task(name='quick')\n"
        "async def quick(number: int) -> int: ...\n"
        "for number in range(100_000): print(quick.enqueue(number).id, flush=True)\n"
    )
    acknowledged: list[str] = []
    for pause in (0.0, 0.15, 0.3):
        producer = subprocess.Popen(
            [sys.executable, "-c", script],
            cwd=yard.folder,
            env={**os.environ, "HEADWAY_STORE": yard.store},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert producer.stdout is not None
        acknowledged.append(producer.stdout.readline().strip())
        time.sleep(pause)
        producer.kill()
        acknowledged += (line for line in producer.communicate()[0].splitlines() if len(line) == 36)
    assert acknowledged
    file = apsw.Connection(str(yard.store_path))
    kept = {job_id for (job_id,) in file.execute("SELECT job_id FROM job")}
    assert set(acknowledged) <= kept
    homeless = "SELECT count(*) FROM job j WHERE (SELECT count(*) FROM ready r WHERE r.seq = j.seq) <> 1"
    assert file.execute(homeless).get == 0
    assert file.execute("SELECT count(*) FROM ready").get == len(kept)
    file.close()


def test_a_job_whose_task_one_worker_does_not_know_waits_for_one_that_does(yard: Yard) -> None:
    # R2.69, J5: no attempt is used, and nothing behind it is held up.
    (yard.folder / "other.py").write_text(
        "from headway import Headway\napp = Headway()\n@app.task(name='rare')\ndef rare() -> str: return 'found'\n"
    )

    @yard.app.task(name="rare")
    def rare() -> str:
        return "found"

    job = rare.enqueue()
    yard.start("--slots", "1", "--reserved", "0")
    behind = yard.submit("quick", 1)
    assert behind.result(timeout=20) == 1
    record = job.record()
    assert (record.state, record.attempts, record.needs) == ("queued", 0, ("task:rare",))
    yard.start(app="other:app")
    assert job.result(timeout=20) == "found"
    assert job.record().attempts == 1


def test_a_policy_applied_anywhere_reaches_a_running_worker_within_moments(yard: Yard) -> None:
    # The parent looks, and tells its runner; the runner alone claims.
    policy = yard.folder / "policy.toml"
    policy.write_text("[reserve]\nslots = 2\n")
    yard.start("--slots", "3")
    command = [sys.executable, "-m", "headway", "policy", "apply", str(policy)]
    environment = {**os.environ, "HEADWAY_STORE": yard.store}
    subprocess.run(command, cwd=yard.folder, env=environment, check=True, capture_output=True)
    time.sleep(2.5)
    for _ in range(3):
        yard.submit("slow", 5, priority="low")
    wait_until(lambda: yard.marks("slow starts"))
    time.sleep(0.5)
    assert len(yard.marks("slow starts")) == 1
