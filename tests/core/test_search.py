"""The search language for jobs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.core.errors import ConfigError, JobError
from headway.core.job import JobId, JobRecord, State
from headway.core.search import JobSearch, build_search, matches, parse_search, read_time, write_search

NOW = 1_800_000_000_000
ID = "01999e2f-9d1c-7cc0-8a1e-5f1d6c3b2a10"
JOB = JobRecord(
    job_id=JobId(ID), seq=1, task="reports.export",
    payload='\x01{"account": "Ärger 7"}'.encode(),
    state=State.FAILED, lane="high", needs=(), rung=None, tenant="acme", max_retries=0, timeout_ms=1, retry=None,
    attempts=1, crashes=0, epoch=1, submitted_at=NOW - 60_000, due_at=None, eligible_at=None, started_at=None,
    finished_at=None, expires_at=None, cancel_requested_at=None, worker_id="w1", progress=None, note=None, result=None,
    result_error=None, error=JobError("TimeoutError", "no answer from Mail"), reason=None, idempotency_key=None,
    unique_key=None, trace_id=None, history=(),
)  # fmt: skip


def fits(text: str, job: JobRecord = JOB, reason: str | None = None) -> bool:
    return matches(parse_search(text, NOW), job, lambda _: reason)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", JobSearch()),
        ("state:failed", JobSearch(states=(State.FAILED,))),
        ("status:failed,dead_letter", JobSearch(states=(State.FAILED, State.DEAD_LETTER))),
        ("state:failed state:failed", JobSearch(states=(State.FAILED,))),
        ("task:a task:b", JobSearch(tasks=("a", "b"))),
        ("task_type:a priority:low", JobSearch(tasks=("a",), lanes=("low",))),
        ("tenant:'x'", JobSearch(tenants=("'x'",))),
        ('tenant:"a b, c"', JobSearch(tenants=("a b, c",))),
        ('error:"connection refused: 5"', JobSearch(errors=("connection refused: 5",))),
        ("error:a,b", JobSearch(errors=("a,b",))),
        ("why:slots_full", JobSearch(states=(State.QUEUED,), reasons=("slots_full",))),
        (f"{ID} task:a", JobSearch(tasks=("a",), ids=(ID,))),
        (f'"{ID}" {ID[:-1]}', JobSearch(words=(ID, ID[:-1]))),
        ("after:2h before:1m", JobSearch(after_at=NOW - 7_200_000, before_at=NOW - 60_000)),
        ("after:2027-01-15T08:00:00Z", JobSearch(after_at=1_800_000_000_000)),
        ('order-9 "two words" "id:5"', JobSearch(words=("order-9", "two words", "id:5"))),
        ('say "a \\"quoted\\" word"', JobSearch(words=("say", 'a "quoted" word'))),
    ],
)
def test_a_search_is_read(text: str, expected: JobSearch) -> None:
    assert parse_search(text, NOW) == expected


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("stat:failed", "no field 'stat' to search by; did you mean 'state'?"),
        ("state:fail", "no state 'fail'; did you mean 'failed'?"),
        ("state:", "state: needs a value, as in state:failed"),
        ("why:slots", "why: no reason 'slots'; did you mean"),
        ("after:soon", "after takes a length such as 2h before now"),
        ("after:2027-01-15T08:00:00", "after takes a length"),
        ("after:1h after:2h", "after: takes one time, got 2"),
        ("x" * 2_001, "a search has at most 2,000 characters"),
    ],
)
def test_a_wrong_search_says_what_is_wrong(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_search(text, NOW)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "state:failed,queued task:a.* lane:high tenant:acme worker:w1 error:Timeout id:22334455 after:2h before:1s x",
        'tenant:"a b" tenant:"c\\"d" "state:queued" "back\\\\slash"',
        "why:limit,rate",
        'error:"a, b"',
        f'{ID} "{ID}"',
    ],
)
def test_a_written_search_reads_as_the_same(text: str) -> None:
    search = parse_search(text, NOW)
    assert parse_search(write_search(search), NOW + 5_000) == search  # Moments stay.


def test_fields_are_read_like_words() -> None:
    fields = {"state": ["failed"], "task": ["a", "b"], "after": ["2h"], "id": ["x"]}
    assert build_search(fields, NOW, ["word"]) == parse_search("state:failed task:a,b after:2h id:x word", NOW)
    with pytest.raises(ConfigError, match="at most 1,000 values"):
        build_search({"id": [str(number) for number in range(1_001)]}, NOW)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "state:failed",
        "state:queued,failed",
        "task:reports.export",
        "task:reports.*",
        "lane:low,high",
        "tenant:acme",
        "worker:w1",
        "error:TimeoutError",
        'error:"ANSWER FROM mail"',
        "id:01999e2f",
        "id:5f1d6c3b2a10",
        "after:2m before:30s",
        "ärger",
        "account 7",
    ],
)
def test_a_job_fits(text: str) -> None:
    assert fits(text)


@pytest.mark.parametrize(
    "text",
    [
        "state:queued",
        "task:reports",
        "task:report?",
        "lane:low",
        "tenant:acm",
        "worker:w2",
        "error:Timeout5",
        "id:9d1c",
        "after:30s",
        "before:2m",
        "account 8",
    ],
)
def test_a_job_does_not_fit(text: str) -> None:
    assert not fits(text)


def test_a_waiting_job_fits_by_its_first_reason() -> None:
    waiting = replace(JOB, state=State.QUEUED)
    assert fits("why:limit", waiting, "limit")
    assert not fits("why:limit", waiting, "rate")
    assert not fits("why:limit", waiting, None)
    assert not fits("why:limit", JOB, "limit")


def test_whole_ids_are_told_from_parts() -> None:
    assert parse_search(f"id:{JOB.job_id}", NOW).whole_ids == (JOB.job_id,)
    assert parse_search(f"id:{JOB.job_id},2a10", NOW).whole_ids == ()
    assert parse_search("", NOW).whole_ids == ()


def test_a_time_is_a_length_before_now_or_a_moment() -> None:
    assert read_time("since", "90s", NOW) == NOW - 90_000
    assert read_time("since", "2027-01-15T09:00:00+01:00", NOW) == NOW
