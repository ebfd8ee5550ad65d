"""Trace files: what is read, what is written, and what is wrong with a file."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import pytest

from headway.core.errors import ConfigError
from headway.simulate import trace_file
from headway.simulate.capacity import SlotStep, WorkerPlan
from headway.simulate.job import SimulatedJob
from headway.simulate.trace import Trace, anonymised, check_lanes, scaled
from headway.simulate.trace_file import read_trace, write_trace
from tests.simulate.jobs import job, policy


def read(tmp_path: Path, text: str, name: str = "jobs.csv") -> Trace:
    path = tmp_path / name
    path.write_text(text)
    return read_trace(path)


def problem(tmp_path: Path, text: str) -> str:
    """Return what is wrong with a file, without the folder."""
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    return str(caught.value).replace(f"{tmp_path}/", "")


def test_two_columns_are_enough_and_lines_need_no_order(tmp_path: Path) -> None:
    trace = read(tmp_path, "arrives,seconds\n12.5,3\n10,1\n")
    assert trace.jobs == [job(0, 1, where=3), job(2.5, 3, where=2)]
    assert (trace.begin_at, trace.span_ms) == (None, 2_500)


def test_every_column_is_read(tmp_path: Path) -> None:
    head = "arrives,seconds,task,lane,tenant,duration,needs,limits,failed,outcome,delay,expires,max_retries,timeout"
    row = "2026-01-31T08:00:00Z,1.5,export,low,acme,slow,gpu;eu,api=7,0.5;0.25,failed,5,60,2,30"
    trace = read(tmp_path, f"{head},id,batch,after,on_failure,waited\n{row},j1,rows,j0;j9,run,0.75\n")
    (one,) = trace.jobs
    assert one == SimulatedJob(
        0, 1_500, "export", "low", "acme", "slow", ("gpu", "eu"), ("api=7",), (500, 250), "failed", 5_000, 60_000, 2,
        30_000, "j1", "rows", ("j0", "j9"), "run", 750, 2,
    )  # fmt: skip
    assert trace.begin_at == 1_769_846_400_000


def test_json_lines_are_read_too(tmp_path: Path) -> None:
    text = '{"arrives": 5, "seconds": 2, "needs": ["gpu"], "attempts": 3}\n\n{"arrives": 6, "seconds": 1}\n'
    first, second = read(tmp_path, text, "jobs.jsonl").jobs
    assert (first.needs, first.failed_ms, second.arrives_ms, second.where) == (("gpu",), (2_000, 2_000), 1_000, 3)


def test_jobs_that_never_ran_are_left_out_or_get_a_usual_length(tmp_path: Path) -> None:
    text = "arrives,seconds,task,outcome\n0,4,a,completed\n1,,a,cancelled\n2,,a,expired\n"
    trace = read(tmp_path, text)
    assert [one.run_ms for one in trace.jobs] == [4_000, 4_000]
    assert trace.left_out == {"cancelled while queued": 1}


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", "line 1, column arrives: the column is missing"),
        ("arrives,seconds\n", "the trace jobs.csv has no jobs"),
        ("submitted_at,seconds\n1,1\n", "jobs.csv line 1, column arrives: the column is missing"),
        ("arrives,runtime\n1,1\n", "line 1, column seconds: the column is missing (a trace needs the columns arrives"),
        ("arrives,seconds,priority\n1,1,low\n", "line 1, column priority: unknown column; is it 'lane'?"),
        ("arrives,seconds,tenat\n1,1,low\n", "column tenat: unknown column; did you mean 'tenant'? Rename or remove"),
        ("arrives,seconds\n1,1\n-5,1\n", "jobs.csv line 3, column arrives: expected seconds from 0 to"),
        ("arrives,seconds\n1,-1\n", "line 2, column seconds: expected seconds from 0 to 3,153,600,000, found '-1'"),
        ("arrives,seconds\n1,soon\n", "line 2, column seconds: expected seconds, found 'soon'"),
        ("arrives,seconds\n1,nan\n", "line 2, column seconds: expected seconds from 0"),
        ("arrives,seconds\n1,\n", "line 2, column seconds: expected seconds, found nothing"),
        ("arrives,seconds\n1,2,3\n", "line 2: expected 2 cells, found 3"),
        ("arrives,seconds\n1,1\n2026-01-01T00:00:00Z,1\n", "line 3, column arrives: expected seconds as in the lines"),
        ("arrives,seconds,outcome\n1,1,fine\n", "line 2, column outcome: expected completed, failed"),
        ("arrives,seconds,attempts\n1,1,two\n", "line 2, column attempts: expected a whole number"),
        ("arrives,arrives,seconds\n1,1,1\n", "line 1, column arrives: the file has two columns"),
        (
            '{"arrives": 1, "seconds": 1}\n{"arrives": \n',
            "line 2: the line is not JSON: Expecting value at character 12",
        ),
        (
            "arrives,seconds,tenant,id,after\n1,1,acme,x,\n2,1,umbrella,,x\n",
            "line 3, column after: a job of tenant 'umbrella' cannot wait for 'x', which belongs to tenant 'acme'",
        ),
        ("arrives,seconds,tenant,id,after\n1,1,,x,\n2,1,umbrella,,x\n", "'x', which belongs to no tenant"),
        (
            "arrives,seconds,tenant,batch,after\n1,1,acme,rows,\n2,1,acme,,rows\n3,1,umbrella,,rows\n",
            "line 4, column after: a job of tenant 'umbrella' cannot wait for 'rows', which belongs to tenant 'acme'",
        ),
        ("arrives,seconds,batch,after\n1,1,rows,\n2,1,rows,rows\n", "line 3, column after: the job is in batch 'rows'"),
        ('{"arrives": 1, "seconds": 1}\n[]\n', "line 2: expected an object, found a list"),
        ('{"arrives": 1, "seconds": 1, "needs": 5}\n', "line 1, column needs: expected a list, found 5"),
        ('{"headway_trace": 9}\n', "line 1: expected trace format 1, found 9"),
        ('{"headway_trace": 1, "workers": [{}]}\n', "line 1: the workers of the trace cannot be read"),
        ("arrives,seconds\n1,\0\n", "line 2: the line contains a zero byte"),
    ],
)
def test_what_is_wrong_names_the_line_and_the_column(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in problem(tmp_path, text)


def test_a_file_is_read_as_a_stream_with_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_file, "JOBS_MAX", 3)
    assert "line 5: a simulation takes at most 3 jobs" in problem(tmp_path, "arrives,seconds\n" + "1,1\n" * 4)
    longer = problem(tmp_path, "arrives,seconds\nbad,1\n" + "1,1\n" * 4)
    assert longer == "the trace jobs.csv has 6 lines; a simulation takes at most 3 jobs, so replay a part of the file"
    monkeypatch.setattr(trace_file, "LINE_MAX", 50)
    assert "line 2: the line has more than 50 characters" in problem(tmp_path, "arrives,seconds\n1," + "1" * 99)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_trace(tmp_path / "none.csv")
    (tmp_path / "latin.csv").write_bytes(b"arrives,seconds\n1,\xff\n")
    with pytest.raises(ConfigError, match=r"latin.csv line 2, column 3: the file is not text in UTF-8.* 0xff"):
        read_trace(tmp_path / "latin.csv")


def test_a_file_of_too_many_lines_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_file, "JOBS_MAX", 100)
    monkeypatch.setattr(trace_file, "LINE_MAX", 256)
    path = tmp_path / "jobs.csv"
    path.write_text("arrives,seconds\n" + "1,1\n" * 1_000_000)
    seen: list[tuple[int, int]] = []
    with pytest.raises(ConfigError) as caught:
        read_trace(path, lambda done, whole: seen.append((done, whole)))
    number = re.search(r"has about ([\d,]+) lines; a simulation takes at most 100 jobs", str(caught.value))
    assert number is not None
    assert int(number[1].replace(",", "")) == pytest.approx(1_000_000, rel=0.02)
    assert seen == []


def test_reading_reports_its_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_file, "PROGRESS_LINES", 2)
    path = tmp_path / "jobs.csv"
    path.write_text("arrives,seconds\n" + "1,1\n" * 4)
    seen: list[tuple[int, int]] = []
    read_trace(path, lambda done, whole: seen.append((done, whole)))
    assert seen == [(2, 5), (4, 5), (5, 5)]


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=("arrives,seconds\n1,1\n",), daemon=True)
    writer.start()
    try:
        assert len(read_trace(path, lambda done, whole: None).jobs) == 1
    finally:
        writer.join(10)


def test_other_columns_are_ignored_and_named(tmp_path: Path) -> None:
    assert read(tmp_path, "arrives,seconds,hostname\n1,1,x\n").ignored == ("hostname",)


def test_jobs_may_wait_for_jobs_of_their_tenant_and_without_a_tenant_for_any(tmp_path: Path) -> None:
    own = "1,1,acme,x,rows,\n2,1,acme,,,x;rows\n"
    trace = read(tmp_path, f"arrives,seconds,tenant,id,batch,after\n{own}3,1,,,,x;rows\n4,1,acme,,,nosuch\n")
    assert [one.after for one in trace.jobs] == [(), ("x", "rows"), ("x", "rows"), ("nosuch",)]


def test_an_unknown_lane_names_the_line_and_the_policy(tmp_path: Path) -> None:
    trace = read(tmp_path, "arrives,seconds,lane\n1,1,high\n2,1,hihg\n")
    with pytest.raises(ConfigError, match=r"line 3, column lane: new.toml has no lane 'hihg'; did you mean 'high'"):
        check_lanes(trace, policy(), "new.toml")
    check_lanes(trace, policy(tasks={"task": {"priority": "low"}}), "new.toml")


WORKER = WorkerPlan("w1", (SlotStep(0, 4), SlotStep(60_000, 8)), ("gpu", "task:*"), 90_000, 1)
WHOLE = Trace(
    [
        job(0, 1.5, task="a", lane="low", tenant="acme", limits=("api=secret",), name="j1", batch="rows", waited_ms=20),
        job(2, 1, after=("j1", "rows"), failed_ms=(250, 500), needs=("gpu",), outcome="dead_letter", delay_ms=1_500),
    ],
    "jobs",
    begin_at=1_769_846_400_000,
    workers=(WORKER,),
    policy=policy(tenants={"weights": {"acme": 3}}, limits={"api": {"concurrency": 2, "by": "account"}}),
    policy_version=7,
)


@pytest.mark.parametrize("name", ["jobs.csv", "jobs.jsonl"])
def test_a_written_trace_is_read_again_with_workers_and_policy(tmp_path: Path, name: str) -> None:
    write_trace(WHOLE, tmp_path / name)
    again = read_trace(tmp_path / name)
    assert [one._replace(where=0) for one in again.jobs] == WHOLE.jobs
    assert (again.workers, again.policy, again.policy_version) == (WHOLE.workers, WHOLE.policy, 7)
    assert again.begin_at == WHOLE.begin_at
    assert "payload" not in (tmp_path / name).read_text()


def test_an_anonymous_trace_keeps_who_is_who_and_no_name() -> None:
    hidden = anonymised(WHOLE, b"salt", tasks=True)
    first, second = hidden.jobs
    assert first.tenant is not None
    assert (first.name, first.batch) != (None, None)
    assert "acme" not in first.tenant
    assert "secret" not in first.limits[0]
    assert first.limits[0].startswith("api=")
    assert second.after == (first.name, first.batch)
    assert hidden.policy is not None
    assert hidden.policy.tenants.weights == {first.tenant: 3}
    assert anonymised(WHOLE, b"other").jobs[0].tenant != first.tenant
    assert anonymised(WHOLE, b"salt", tenants=False).jobs[0].tenant == "acme"
    assert anonymised(WHOLE, b"salt").jobs[0].task == "a"


def test_scaled_jobs_come_in_the_same_time() -> None:
    jobs = [job(number, 1) for number in range(100)]
    more, fewer = scaled(jobs, 1.5), scaled(jobs, 0.5)
    assert (len(more), len(fewer), len(scaled(jobs, 1))) == (150, 50, 100)
    assert more[-1].arrives_ms == 99_000
    assert [one.arrives_ms for one in more] == sorted(one.arrives_ms for one in more)
