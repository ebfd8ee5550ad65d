"""Models, capacity files, and jobs from now on."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from statistics import mean

import pytest

from headway.core.distributions import Arrivals, Model, ModelData, bucket
from headway.core.errors import ConfigError
from headway.core.job import JobId, JobRecord, State
from headway.core.policy.document import BUILT_IN
from headway.core.policy.enforced import PauseSet
from headway.core.policy.units import LENGTH_MS_MAX
from headway.core.worker import WorkerInfo
from headway.simulate.capacity import check_pauses, same_workers
from headway.simulate.capacity_file import read_capacity
from headway.simulate.live_queue import LiveQueue, jobs_from_now
from headway.simulate.recording import recorded_workers
from headway.simulate.replay import replay
from headway.simulate.trace import Trace, check_lanes
from headway.simulate.workload_model import WorkloadModel

MODEL = """
length = "2h"
[[streams]]
rate = "30/min"
task = "api"
lane = "high"
tenants = ["a", "b"]
seconds = { mean = 1.2, max = 5 }
[[streams]]
rate = 0.1
task = "report"
lane = "low"
seconds = { min = 10, max = 30 }
[[bursts]]
every = "30m"
first = "10m"
size = 50
within = "1m"
task = "import"
seconds = 2
"""


def model(tmp_path: Path, text: str) -> WorkloadModel:
    path = tmp_path / "model.toml"
    path.write_text(text)
    return WorkloadModel(path)


def test_a_model_draws_streams_and_bursts(tmp_path: Path) -> None:
    made = model(tmp_path, MODEL)
    jobs = made.jobs(1)
    assert jobs == made.jobs(1) != made.jobs(2)
    by_task = {task: [job for job in jobs if job.task == task] for task in ("api", "report", "import")}
    assert len(by_task["import"]) == 200
    assert all(600_000 <= job.arrives_ms % 1_800_000 <= 660_000 for job in by_task["import"])
    assert len(by_task["api"]) == pytest.approx(3_600, rel=0.1)
    assert {job.tenant for job in by_task["api"]} == {"a", "b"}
    assert max(job.run_ms for job in by_task["api"]) <= 5_000
    assert mean(job.run_ms for job in by_task["report"]) == pytest.approx(20_000, rel=0.1)
    assert [job.arrives_ms for job in jobs] == sorted(job.arrives_ms for job in jobs)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", "model.toml, key length: a model must end, for example length = '4h'"),
        ("length = 60", "key streams: a model needs at least one of streams and bursts"),
        ("length = 60\nstreams = 5", "model.toml line 2, column 1, key streams: expected tables such as"),
        ("lenght = 60", "model.toml line 1, column 1, key lenght: unknown key; did you mean 'length'?"),
        ("length = 60\n[[streams]]\nseconds = 1", "line 2, column 3, key streams[0].rate: expected a rate such as"),
        (
            "length = 60\n[[streams]]\nrate = 1",
            "line 2, column 3, key streams[0].seconds: expected seconds, or a table",
        ),
        (
            "length = 60\n[[streams]]\nrate = 1\nseconds = -1",
            "line 4, column 1, key streams[0].seconds: expected seconds",
        ),
        ("length = 60\n[[streams]]\nrate = 1\nseconds = {mean = 0}", "key streams[0].seconds: expected seconds"),
        (
            "length = 60\n[[streams]]\nrate = 1\nseconds = 4e9",
            "all above 0 and at most 3,153,600,000, found",
        ),
        (
            "length = 60\n[[streams]]\nrate = 1\nseconds = 1\n[[streams]]\nrate = 1\nseconds = {mean = 1, maks = 5}",
            "line 7, column 22, key streams[1].seconds.maks: unknown key",
        ),
        (
            'length = 60\n[[bursts]]\nevery = "0s"\nsize = 1\nseconds = 1',
            "line 3, column 1, key bursts[0].every: expected a time above 0; leave it out for one burst",
        ),
        ("length = 60\n[[bursts]]\nevery = 0.0001\nsize = 1\nseconds = 1", "every: expected a time above 0"),
        ("length = 60\n[[bursts]]\nsize = 1\nneeds = 'gpu'\nseconds = 1", "needs: expected a list of names"),
        (
            "length = 60\n[[bursts]]\nsize = 0\nseconds = 1",
            "line 3, column 1, key bursts[0].size: expected a whole number above 0",
        ),
        ('length = "1d"\n[[streams]]\nrate = "900/s"\nseconds = 1', "makes about 77,760,000 jobs; at most 2,000,000"),
        ("length = ", "is not TOML: Invalid value (at end of document)"),
        ('length = "4h"\n[[streams]\n', "(at line 2, column 10)"),
    ],
)
def test_what_is_wrong_with_a_model(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        model(tmp_path, text).jobs(0)
    assert expected in str(caught.value)


@pytest.mark.parametrize("sigma", [50, 5_000])
def test_no_drawn_length_is_longer_than_one_of_a_trace_may_be(tmp_path: Path, sigma: int) -> None:
    text = f"length = 60\n[[streams]]\nrate = 5\nseconds = {{median = 1, sigma = {sigma}}}"
    assert max(job.run_ms for job in model(tmp_path, text).jobs(0)) == LENGTH_MS_MAX


def test_an_unknown_lane_of_a_model_names_the_task(tmp_path: Path) -> None:
    made = model(tmp_path, 'length = 60\n[[streams]]\ntask = "report"\nlane = "lwo"\nrate = 1\nseconds = 1')
    with pytest.raises(ConfigError, match=r"model.toml, task 'report': new.toml has no lane 'lwo'; did you mean 'low'"):
        check_lanes(Trace(made.jobs(0), made.source), BUILT_IN, "new.toml")


def test_a_capacity_file_has_workers_and_pauses(tmp_path: Path) -> None:
    path = tmp_path / "capacity.toml"
    path.write_text(
        '[[workers]]\nslots = 4\ncount = 2\n[[workers]]\nslots = 1\ncapabilities = ["gpu"]\nfrom = "1h"\nuntil = "2h"\n'
        '[[pauses]]\nlane = "low"\nfrom = "10m"\nuntil = "20m"\n[[pauses]]\nfrom = "3h"\n'
    )
    capacity = read_capacity(path)
    assert (len(capacity.workers), capacity.slots, capacity.describe()) == (3, 9, "3 workers with up to 9 slots")
    assert capacity.workers[2].offers == ("gpu", "task:*")
    assert (capacity.workers[2].from_ms, capacity.workers[2].until_ms) == (3_600_000, 7_200_000)
    assert capacity.slot_ms(7_200_000) == 8 * 7_200_000 + 3_600_000
    assert [pause.paused.everything for pause in capacity.pauses] == [False, True]
    for text, expected in (
        ("", "key workers: expected at least one table"),
        ("[[workers]]\nslots = 0", "line 2, column 1, key workers[0].slots: expected a whole number"),
        ("[[workers]]\n slot = 5", "line 2, column 2, key workers[0].slot: unknown key; did you mean 'slots'?"),
        (
            '[[workers]]\nslots = 1\nfrom = "2h"\nuntil = "1h"',
            "line 4, column 1, key workers[0].until: expected a time after from",
        ),
        (
            '[[workers]]\nslots = 1\nfrom = "soon"',
            "line 3, column 1, key workers[0].from: expected seconds, or a length",
        ),
        (
            "[[workers]]\nslots = 1\n[[pauses]]\nlane = 5",
            "line 4, column 1, key pauses[0].lane: expected text, found 5",
        ),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=re.escape(expected)):
            read_capacity(path)


def test_a_pause_of_an_unknown_lane_names_its_line_and_the_policy(tmp_path: Path) -> None:
    path = tmp_path / "capacity.toml"
    path.write_text('[[workers]]\nslots = 4\n[[pauses]]\nlane = "low"\n[[pauses]]\ntask = "a"\nlane = "hihg"\n')
    with pytest.raises(ConfigError) as caught:
        check_pauses(read_capacity(path), BUILT_IN, "new.toml")
    assert str(caught.value) == (
        f"the capacity {path} line 7, column 1, key pauses[1].lane: "
        "new.toml has no lane 'hihg'; did you mean 'high'? (lanes: high, medium, low)"
    )


def test_a_pause_that_a_store_has_may_name_any_lane() -> None:
    queue = live()
    queue.paused = PauseSet(lanes=("gone",))
    assert queue.capacity is not None
    check_pauses(queue.capacity, BUILT_IN, "new.toml")


@pytest.mark.parametrize("read", [WorkloadModel, read_capacity])
def test_a_file_that_is_not_utf_8_names_the_byte(tmp_path: Path, read: Callable[[Path], object]) -> None:
    path = tmp_path / "latin.toml"
    path.write_bytes(b"# \xc3\xa9\n# caf\xe9\n")
    with pytest.raises(ConfigError, match=r"latin.toml line 2, column 6: the file is not text in UTF-8.* 0xe9"):
        read(path)


NOW_AT = 1_760_000_000_000


def record(number: int, state: State, **more: object) -> JobRecord:
    values: dict[str, object] = {
        "job_id": JobId(f"j{number}"), "seq": number, "task": "a", "payload": b"", "state": state, "lane": "medium",
        "needs": (), "rung": None, "tenant": None, "max_retries": 3, "timeout_ms": 600_000, "retry": None,
        "attempts": 0,
        "crashes": 0, "epoch": 0, "submitted_at": NOW_AT - 90_000, "due_at": None, "eligible_at": NOW_AT - 90_000,
        "started_at": None, "finished_at": None, "expires_at": None, "cancel_requested_at": None, "worker_id": None,
        "progress": None, "note": None, "result": None, "result_error": None, "error": None, "reason": None,
        "idempotency_key": None, "unique_key": None, "trace_id": None, "history": (),
    }  # fmt: skip
    return JobRecord(**values | more)  # type: ignore[arg-type]


def live(*jobs: JobRecord) -> LiveQueue:
    lengths = {"medium": {"a": {bucket(10.0): 500.0}}}
    arrivals = {"medium": {"": Arrivals(1.0, 0.05), "acme": Arrivals(20.0, 0.001, steady=False)}}
    worker = WorkerInfo(worker_id="w", host="h", pid=1, slots=2, reserved=1, offers=("task:a",), version="")
    return LiveQueue(NOW_AT, jobs, [worker], Model(ModelData(lengths, arrivals)), BUILT_IN)


def test_what_waits_and_runs_goes_on_and_more_jobs_come() -> None:
    queue = live(
        record(1, State.EXECUTING, started_at=NOW_AT - 5_000),
        record(2, State.QUEUED),
        record(3, State.QUEUED, due_at=NOW_AT + 60_000, eligible_at=None),
        record(4, State.QUEUED, held=True),
        record(5, State.COMPLETED, needs=("gpu",)),
    )
    jobs = jobs_from_now(queue, 3_600_000, 1)
    assert jobs == jobs_from_now(queue, 3_600_000, 1) != jobs_from_now(queue, 3_600_000, 2)
    running, waiting, delayed = jobs[:3]
    assert (running.counted, running.arrives_ms, waiting.age_ms, delayed.delay_ms) == (False, 0, 90_000, 60_000)
    assert running.run_ms < 8_000 < waiting.run_ms
    assert len([job for job in jobs[3:] if job.tenant is None]) == pytest.approx(180, rel=0.3)
    assert {job.tenant for job in jobs[3:]} == {None, "acme"}
    assert queue.left_out == {"waiting for other jobs": 1}
    outcome = replay(jobs[:3], BUILT_IN, same_workers(2, 1))
    assert outcome.waits[0] == 0
    assert outcome.waits[1] == 90_000 + running.run_ms - 1  # It has waited already.


def test_workers_that_are_alive_and_pauses_go_on() -> None:
    queue = live()
    assert queue.capacity is not None
    assert (queue.capacity.slots, queue.capacity.pauses) == (2, ())
    queue.paused = PauseSet(lanes=("low",))
    assert len(queue.capacity.pauses) == 1


def test_a_worker_left_when_others_started_jobs_after_its_last_one() -> None:
    def ended(number: int, worker: str, started: int, finished: int) -> JobRecord:
        times = {"started_at": NOW_AT + 1_000 * started, "finished_at": NOW_AT + 1_000 * finished}
        return record(number, State.COMPLETED, worker_id=worker, **times)

    jobs = [ended(1, "early", 0, 5), ended(2, "long", 1, 30), ended(3, "late", 8, 9), ended(4, "late", 9, 20)]
    workers = recorded_workers(jobs, [], NOW_AT, BUILT_IN)
    assert {worker.name: worker.until_ms for worker in workers} == {"early": 5_000, "long": None, "late": None}
