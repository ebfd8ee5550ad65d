"""Log lines: readable or JSON, and text of a job never breaks them."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from pathlib import Path

import pytest

from headway import Discard, Headway, JobFailed, Retry, Worker
from headway.core.errors import ConfigError
from headway.core.log_event import LogEvent
from headway.core.policy.document import BUILT_IN
from headway.core.policy.retry import Crashed
from headway.maintenance.recovery import end_worker
from headway.observability.logs import ConsoleFormatter, JsonFormatter
from headway.observability.redaction import HIDDEN
from headway.stores.base import Store
from tests.conformance.builders import a_job, claim, register, submit


def a_record(message: str, **facts: object) -> logging.LogRecord:
    record = logging.LogRecord("headway.jobs", logging.INFO, "file", 1, message, (), None)
    record.headway = facts
    return record


def test_a_json_line_carries_job_task_worker_attempt_and_trace() -> None:
    # R5.28, R1.48
    facts = {"job": "j1", "task": "t", "worker": "w", "lane": "low", "attempt": 2, "trace_id": "abc", "reason": None}
    line = json.loads(JsonFormatter().format(a_record("job.started", **facts)))
    assert line["event"] == "job.started"
    assert line["at"].endswith("Z")
    assert {key: line[key] for key in ("job", "task", "worker", "lane", "attempt", "trace_id")} == {
        key: value for key, value in facts.items() if key != "reason"
    }
    assert "reason" not in line


def test_control_characters_stay_inside_their_line() -> None:
    nasty = 'boom\n{"event": "forged"}\x1b[2J'
    assert "\n" not in JsonFormatter().format(a_record("job.failed", error=nasty))
    console = ConsoleFormatter(colour=False).format(a_record("job.failed", task="t", error=nasty))
    assert "\n" not in console
    assert "\x1b" not in console


def test_a_console_line_reads_well() -> None:
    line = ConsoleFormatter(colour=False).format(
        a_record("job.completed", task="reports.export", job="j1", seconds=0.2)
    )
    assert line.split(None, 1)[1] == "job.completed   reports.export  job=j1  seconds=0.2"


async def test_each_state_change_writes_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # R5.28, R5.29, R1.48
    app = Headway(f"sqlite:///{tmp_path}/headway.db?synchronous=normal", slots=2, heartbeat=1, dead_after=5)
    running = asyncio.Event()

    @app.task(name="good")
    async def good(password: str) -> None: ...

    @app.task(name="bad", max_retries=1, retry=Retry(base=0))
    async def bad() -> None:
        raise ValueError("no")

    @app.task(name="hopeless")
    async def hopeless() -> None:
        raise Discard("never")

    @app.task(name="long")
    async def long() -> None:
        running.set()
        await asyncio.Event().wait()

    caplog.set_level("DEBUG", "headway")
    async with app:
        cancelled = await good.using(delay=60).aenqueue("hunter2")
        await cancelled.acancel()
        await cancelled.acancel()  # No change, no line.
        async with Worker(app, grace=0):
            await (await good.using(trace_id="t-1").aenqueue("hunter2")).aresult(timeout=20)
            for task in (bad, hopeless):
                with pytest.raises(JobFailed):
                    await (await task.aenqueue()).aresult(timeout=20)
            released = await long.aenqueue()
            await asyncio.wait_for(running.wait(), 20)
        await cancelled.aretry()
    records = [record for record in caplog.records if record.name == "headway.jobs"]
    lines = [json.loads(JsonFormatter().format(record)) for record in records]
    by_task: dict[str, list[str]] = {}
    for line in lines:
        by_task.setdefault(line["task"] if line["job"] != cancelled.id else "cancelled", []).append(line["event"])
    assert by_task == {
        "cancelled": ["job.queued", "job.cancelled", "job.queued"],
        "good": ["job.queued", "job.started", "job.completed"],
        "bad": ["job.queued", "job.started", "job.retried", "job.started", "job.dead_letter"],
        "hopeless": ["job.queued", "job.started", "job.failed"],
        "long": ["job.queued", "job.started", "job.released"],
    }
    for line in lines:
        assert {"job", "task", "lane", "trace_id"} <= set(line)
        if line["event"] not in ("job.queued", "job.cancelled"):
            assert line["worker"]
            assert re.fullmatch(r"[0-2]/2", line["running"])
    assert {line["trace_id"] for line in lines if line["task"] == "good" and line["job"] != cancelled.id} == {"t-1"}
    assert len({line["trace_id"] for line in lines if line["job"] == released.id}) == 1
    assert "hunter2" not in "".join(JsonFormatter().format(record) for record in caplog.records)  # Nor any argument.
    events = [record.msg.code for record in caplog.records if isinstance(record.msg, LogEvent)]
    assert [code for code in events if code.startswith("worker.")] == ["worker.up", "worker.draining", "worker.gone"]


async def test_a_dead_workers_jobs_write_a_line_each(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    # R5.28
    caplog.set_level("INFO", "headway")
    await register(store)
    await submit(store, a_job(max_retries=0), a_job())
    await claim(store, free=2)
    await end_worker(store, "w1", BUILT_IN, lambda lease: Crashed("signal 9"))
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    assert [(line["event"], line["worker"], line["lane"]) for line in lines] == [
        ("job.dead_letter", "w1", "medium"),
        ("job.retried", "w1", "medium"),
    ]


async def test_arguments_are_logged_only_if_wanted_and_never_secrets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = Headway(f"sqlite:///{tmp_path}/headway.db?synchronous=normal", log_args=True, redact=["pin"])

    @app.task(name="pay", redact=["iban"])
    async def pay(user: str, iban: str, pin: int, token: str) -> None: ...

    caplog.set_level("INFO", "headway.jobs")
    async with app, Worker(app):
        await (await pay.aenqueue("ann", "DE99", 1234, "shown, since the setting names other words")).aresult(
            timeout=20
        )
    [started] = [record for record in caplog.records if record.getMessage() == "job.started"]
    assert started.headway["args"] == {  # type: ignore[attr-defined]
        "user": "ann", "iban": HIDDEN, "pin": HIDDEN, "token": "shown, since the setting names other words",
    }  # fmt: skip


def test_a_parameter_to_redact_must_exist(tmp_path: Path) -> None:
    app = Headway("memory://")
    with pytest.raises(ConfigError, match="redact names 'pasword'"):
        app.task(redact=["pasword"])(lambda password: None)


# ---------------------------------------------------------------------- lines that Headway does not write


def a_foreign_record(message: str, *args: object, name: str = "my.module", **extra: object) -> logging.LogRecord:
    record = logging.LogRecord(name, logging.WARNING, "file", 1, message, args, None)
    record.__dict__.update(extra)
    return record


def test_a_foreign_line_has_its_text_in_a_member_of_its_own_and_its_extra_beside_it() -> None:
    line = json.loads(JsonFormatter().format(a_foreign_record("took %d s", 3, order=9, event="forged", at="never")))
    assert (line["event"], line["message"], line["order"], line["logger"]) == (
        "log.message",
        "took 3 s",
        9,
        "my.module",
    )
    assert line["at"] != "never"


@pytest.mark.parametrize("nasty", ["\x7f", "\u2028", "\u2029", "\x85", "\x9b", "\ud800", "\U0001f600"])
def test_a_json_line_is_plain_ascii(nasty: str) -> None:
    for record in (a_foreign_record(f"a{nasty}b", value=nasty), a_record("job.failed", error=nasty)):
        line = JsonFormatter().format(record)
        assert line.isascii()
        assert line.isprintable()
        assert nasty in json.loads(line).values() or f"a{nasty}b" in json.loads(line).values()


def test_what_cannot_be_written_as_json_is_written_as_text() -> None:
    class Odd:
        def __str__(self) -> str:
            raise RuntimeError("no")

    ring: list[object] = []
    ring.append(ring)
    line = json.loads(JsonFormatter().format(a_foreign_record("odd", ring=ring, odd=Odd(), keys={(1, 2): 3})))
    assert line["ring"] == "[[...]]"
    assert "Odd object" in line["odd"]
    assert json.loads(JsonFormatter().format(a_foreign_record("%d apples", "no")))["message"] == "%d apples ('no',)"
    assert ConsoleFormatter(colour=False).format(a_foreign_record("odd", odd=Odd())).count("Odd object") == 1


def test_colours_reach_the_terminal_and_nothing_else_does() -> None:
    line = ConsoleFormatter(colour=True).format(a_record("job.started", task="t\x1b[2J", job="é"))
    assert line.split(None, 1)[1] == "\x1b[36mjob.started   \x1b[0m  t\\x1b[2J  job=é"
    forged = ConsoleFormatter(colour=True).format(a_foreign_record("\x1b[31mred\nnew line"))
    assert forged.split(None, 1)[1] == "warning: \\x1b[31mred\\nnew line"
