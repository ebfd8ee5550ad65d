"""Tables on terminals of several widths, and the short ids in them."""

from __future__ import annotations

import io
from dataclasses import MISSING, fields
from typing import Any

import pytest
from rich.console import Console, RenderableType

from headway.cli import tables
from headway.cli.jobs import jobs_table
from headway.core.errors import JobError
from headway.core.job import JobId, JobRecord, State
from headway.core.worker import WorkerInfo, WorkerState
from headway.stores.base import Stats
from tests.cli.command import Cli

WIDTHS = (60, 80, 90, 120)
TASK = "web.tasks.send_receipt"


def job(end: str = "001122334455", **more: Any) -> JobRecord:
    empty: dict[str, Any] = {field.name: None for field in fields(JobRecord) if field.default is MISSING}
    known: dict[str, Any] = {
        "job_id": JobId(f"0198c1f2-7a3b-7c4d-8e5f-{end}"), "task": TASK, "lane": "medium", "max_retries": 4,
        "state": State.EXECUTING, "submitted_at": 0, "started_at": 0, "attempts": 1,
    }  # fmt: skip
    return JobRecord(**empty | known | more)


def drawn(renderable: RenderableType, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, markup=False, emoji=False, highlight=False)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", WIDTHS)
def test_a_list_of_jobs_keeps_the_task_at_every_width(width: int) -> None:
    lines = drawn(jobs_table([job(), job("aa1122334455")], 200_000), width)
    assert all(len(line) <= width for line in lines)
    assert all(TASK in line and line.split()[0].endswith("22334455") for line in lines[1:])
    assert ("lane" in lines[0], "took" in lines[0]) == (width >= 80, width >= 80)
    assert ("0198c1f2" in lines[1]) == (width == 120)


@pytest.mark.parametrize("width", WIDTHS)
def test_dead_letters_keep_the_task_and_the_error_at_every_width(width: int) -> None:
    error = JobError("ValueError", "the address of the customer is not complete")
    text = " ".join(drawn(jobs_table([job(error=error)], 200_000, errors=True), width))
    assert TASK in text
    assert all(word in text for word in ("ValueError:", "address", "customer"))


@pytest.mark.parametrize("width", WIDTHS)
def test_running_jobs_keep_the_task_at_every_width(width: int) -> None:
    lines = drawn(tables.running_table([job(progress=0.5, note="page 3 of 6")], 200_000), width)
    assert all(len(line) <= width for line in lines)
    assert TASK in lines[1]
    assert "50%" in lines[1]


@pytest.mark.parametrize("width", WIDTHS)
def test_workers_keep_their_whole_id_at_every_width(width: int) -> None:
    worker = WorkerInfo(worker_id="web-1.example.com:4711:a1b2c3", host="web-1", pid=4711, slots=5, reserved=1,
                    offers=("gpu", "task:a"), version="0.1.0", state=WorkerState.ACTIVE)  # fmt: skip
    lines = drawn(tables.workers_table(Stats(60_000, {}, (worker,), {}, {}, {})), width)
    assert all(len(line) <= width for line in lines)
    assert worker.worker_id in lines[1]


def test_short_ids_grow_until_they_differ() -> None:
    lines = drawn(jobs_table([job("aa1122334455"), job("ab1122334455")], 200_000), 80)
    assert [line.split()[0] for line in lines[1:]] == ["aa1122334455"[1:], "ab1122334455"[1:]]


def test_commands_take_the_end_of_an_id(cli: Cli) -> None:
    ids = [cli.call("submit", "demo.noop").out.strip() for _ in range(2)]
    short = [job_id[-8:] for job_id in ids]
    assert cli.call("status", short[0], "--json").json["id"] == ids[0]
    assert cli.call("why", short[1], "--json").json["id"] == ids[1]
    assert cli.call("cancel", *short).out == f"{ids[0]}  cancelled\n{ids[1]}  cancelled\n"
    assert cli.call("retry", short[1]).out == f"{ids[1]}  queued again\n"
    missing = cli.call("status", "ffffffff", code=1).err
    assert "no job ffffffff" in missing
    assert "[job_not_found]" in missing


def test_an_end_that_several_ids_share_is_refused_with_all_of_them(cli: Cli) -> None:
    # The first characters of an id are its time, so jobs submitted together share them.
    ids = [cli.call("submit", "demo.noop").out.strip() for _ in range(2)]
    refused = cli.call("cancel", ids[0][:5], code=2).err
    assert "is the beginning or end of 2 ids" in refused
    assert all(job_id in refused for job_id in ids)
    assert {item["status"] for item in cli.call("jobs", "--json").json["items"]} == {"queued"}
