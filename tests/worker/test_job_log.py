"""The log of jobs: one line for each attempt that ended, the same with and without log records."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headway.core.job import JobId
from headway.core.lease import Lease
from headway.core.policy.retry import Returned, Unknown
from headway.core.worker import WorkerInfo
from headway.dispatch.job_source import FinishedRun
from headway.observability import logs
from headway.observability.log_writer import LogWriter
from headway.observability.logs import JsonFormatter
from headway.policy_store.current import CurrentPolicy
from headway.worker.job_log import JobLog

WORKER = WorkerInfo(worker_id="host:7:abc", host="host", pid=7, slots=8, reserved=1, offers=(), version="1.0")
NASTY = 'a"b\\c\nd\x1b[2J\x7fé\u2028'


Seen = list[logging.LogRecord]


class RecordFilter(logging.Filter):
    """A filter that records and passes all records."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self._seen = seen

    def filter(self, record: logging.LogRecord) -> bool:
        self._seen.append(record)
        return True


def a_run(**given: Any) -> FinishedRun:
    lease = Lease(
        JobId("0198c1f2-0000-7000-8000-000000000001"), 1, b"token", "shop.bill", b"", "medium", None, None,
        1, 1, 0, 0, 60_000, 60_000, None, 5_250, eligible_at=4_000,
    )  # fmt: skip
    return FinishedRun(lease._replace(**given), Returned(None), 0.1234)


class Output:
    """The logger of jobs, with a writer as ``headway worker`` installs it."""

    def __init__(self) -> None:
        self.stream = io.StringIO()
        self.writer = LogWriter(self.stream)
        self.writer.setFormatter(JsonFormatter())
        self.logger = logging.getLogger("headway")
        self.job_log = JobLog(CurrentPolicy(), logging.DEBUG)

    def log(self, *runs: FinishedRun) -> list[dict[str, Any]]:
        self.job_log.refresh(WORKER)
        self.job_log.ended(runs, 3)
        self.writer.flush()
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


@pytest.fixture
def output() -> Iterator[Output]:
    made = Output()
    before = made.logger.handlers, made.logger.propagate, made.logger.level
    made.logger.handlers, made.logger.propagate = [made.writer], False
    made.logger.setLevel("INFO")
    yield made
    made.logger.handlers, made.logger.propagate = before[0], before[1]
    made.logger.setLevel(before[2])


def test_the_line_of_a_completed_job_names_its_wait_run_time_attempt_tenant_and_lane(output: Output) -> None:
    # R1.48, R5.28
    (line,) = output.log(a_run(tenant="acme"))
    assert line.pop("at").endswith("Z")
    assert line == {
        "level": "info", "event": "job.completed", "logger": "headway.jobs",
        "job": "0198c1f2-0000-7000-8000-000000000001", "task": "shop.bill", "worker": "host:7:abc", "lane": "medium",
        "tenant": "acme", "attempt": 1, "trace_id": "0198c1f2000070008000000000000001", "wait": 1.25,
        "seconds": 0.123, "running": "3/8",
    }  # fmt: skip


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"tenant": NASTY, "task": NASTY, "lane": NASTY, "trace_id": NASTY, "job_id": JobId(NASTY)},
        {"trace_id": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
        {"eligible_at": 0, "token": b"", "attempts": 4},  # A transient job.
    ],
)
def test_a_line_is_the_same_with_and_without_a_log_record(output: Output, given: dict[str, Any]) -> None:
    records: Seen = []
    output.log(a_run(**given))
    output.writer.addFilter(RecordFilter(records))  # Filters need records.
    short, full = output.log(a_run(**given))
    assert len(records) == 1
    assert output.stream.getvalue().isascii()
    assert list(short) == list(full)  # In the same order too.
    assert short | {"at": ""} == full | {"at": ""}


def test_each_line_of_a_batch_has_the_wait_and_the_class_of_its_own_job(output: Output) -> None:
    batch: list[dict[str, Any]] = [
        {"eligible_at": 0}, {}, {}, {"eligible_at": 5_251}, {"eligible_at": 5_250}, {"tenant": "acme"},
        {"eligible_at": 0, "attempts": 2}, {"lane": "high"},
    ]  # fmt: skip
    lines = output.log(*(a_run(**given) for given in batch))
    assert [line.get("wait") for line in lines] == [None, 1.25, 1.25, -0.001, 0, 1.25, None, 1.25]
    assert [line.get("tenant") for line in lines] == [None] * 5 + ["acme", None, None]
    assert [(line["attempt"], line["lane"]) for line in lines[-2:]] == [(2, "medium"), (1, "high")]


def test_lines_of_other_events_and_levels_keep_their_order(output: Output) -> None:
    for number in range(50):
        output.job_log.refresh(WORKER)
        output.job_log.ended([a_run(attempts=2 * number), a_run(attempts=2 * number + 1)], 3)
        logging.getLogger("headway.worker").warning("test.line", extra={"headway": {"attempt": -number}})
    output.writer.flush()
    lines = [json.loads(line)["attempt"] for line in output.stream.getvalue().splitlines()]
    assert lines == [attempt for number in range(50) for attempt in (2 * number, 2 * number + 1, -number)]


class RecordHandler(logging.Handler):
    """A handler that keeps its records."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self._seen = seen

    def emit(self, record: logging.LogRecord) -> None:
        self._seen.append(record)


def _add_handler(output: Output, seen: Seen) -> None:
    logging.getLogger("headway.jobs").addHandler(RecordHandler(seen))


def _propagate(output: Output, seen: Seen) -> None:
    output.logger.propagate = True
    logging.getLogger().addHandler(RecordHandler(seen))


def _add_filter(output: Output, seen: Seen) -> None:
    logging.getLogger("headway.jobs").addFilter(RecordFilter(seen))


def _patch_logging(output: Output, seen: Seen) -> None:
    original = logging.Logger.callHandlers

    def patched(logger: logging.Logger, record: logging.LogRecord) -> None:
        seen.append(record)
        original(logger, record)

    setattr(logging.Logger, "callHandlers", patched)  # noqa: B010  (its type is not quite that of the stub)


def _set_factory(output: Output, seen: Seen) -> None:
    def factory(*given: Any, **more: Any) -> logging.LogRecord:
        record = logging.LogRecord(*given, **more)
        seen.append(record)
        return record

    logging.setLogRecordFactory(factory)


@pytest.mark.parametrize("install", [_add_handler, _propagate, _add_filter, _patch_logging, _set_factory])
def test_whatever_an_app_installs_in_logging_gets_a_record(
    output: Output, install: Callable[[Output, Seen], None]
) -> None:
    jobs, root = logging.getLogger("headway.jobs"), logging.getLogger()
    before, original = (list(jobs.handlers), list(jobs.filters), list(root.handlers)), logging.Logger.callHandlers
    seen: Seen = []
    try:
        install(output, seen)
        lines = output.log(a_run(), a_run())
    finally:
        jobs.handlers, jobs.filters, root.handlers = before
        logging.Logger.callHandlers = original  # type: ignore[method-assign]
        logging.setLogRecordFactory(logging.LogRecord)
    assert [record.getMessage() for record in seen] == ["job.completed"] * 2
    assert [record.headway["task"] for record in seen] == ["shop.bill"] * 2  # type: ignore[attr-defined]
    assert [line["event"] for line in lines] == ["job.completed"] * 2


def test_a_start_is_logged_at_debug_and_an_end_at_info(output: Output) -> None:
    found = {}
    for level in ("DEBUG", "INFO", "WARNING"):
        output.logger.setLevel(level)
        output.job_log.refresh(WORKER)
        found[level] = (output.job_log.logs_starts, output.job_log.logs_ends)
    assert found == {"DEBUG": (True, True), "INFO": (False, True), "WARNING": (False, False)}


def test_a_job_of_an_unknown_task_has_no_line_of_its_own(output: Output) -> None:
    assert output.log(a_run()._replace(ending=Unknown())) == []


def test_dropped_lines_are_counted_once_for_the_whole_process(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output.stream, "write", lambda text: 1 / 0)
    output.log(a_run(), a_run(), a_run())
    assert [logs.take_dropped(), logs.take_dropped()] == [3, 0]
