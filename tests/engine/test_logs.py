"""Log lines: readable or JSON, never broken by what a job says."""

from __future__ import annotations

import json
import logging

from headway.engine.logs import ConsoleFormatter, JsonFormatter


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
