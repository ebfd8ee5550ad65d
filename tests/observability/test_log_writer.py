"""The log thread: it writes complete lines in order, and a blocked output delays no caller."""

from __future__ import annotations

import errno
import json
import logging
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.observability import log_writer
from headway.observability.log_writer import LogWriter
from headway.observability.logs import JsonFormatter

PIPE = 1 << 16  # Bytes that fit into a pipe.


class Output:
    """A pipe with a log writer at its end."""

    def __init__(self) -> None:
        self.reading, writing = os.pipe()
        self.stream = os.fdopen(writing, "w")
        self.writer = LogWriter(self.stream)
        self.writer.setFormatter(JsonFormatter())
        self.log = logging.Logger("headway.test")
        self.log.addHandler(self.writer)

    def say(self, number: int) -> None:
        self.log.info("test.line", extra={"headway": {"number": number}})

    def read(self, until: int) -> list[dict[str, Any]]:
        """Read lines until one has this number."""
        content = b""
        while b'"number": %d}' % until not in content or not content.endswith(b"\n"):
            content += os.read(self.reading, PIPE)
        return [json.loads(line) for line in content.splitlines()]

    def read_lines(self, count: int) -> list[dict[str, Any]]:
        content = b""
        while content.count(b"\n") < count:
            content += os.read(self.reading, PIPE)
        return [json.loads(line) for line in content.splitlines()]

    def close(self) -> None:
        self.writer.flush()
        for end in (self.reading, self.stream.fileno()):
            os.close(end)


@pytest.fixture
def output() -> Iterator[Output]:
    made = Output()
    yield made
    made.close()


def test_lines_are_complete_and_in_order(output: Output) -> None:
    # W18
    for number in range(300):
        output.say(number)
    assert [line["number"] for line in output.read(until=299)] == list(range(300))


def test_lines_of_many_threads_are_complete_and_in_the_order_of_each(output: Output) -> None:
    levels = (logging.DEBUG, logging.INFO, logging.ERROR)

    def say_all(thread: int) -> None:
        for number in range(1_000):
            facts = {"thread": thread, "number": number}
            if thread % 2:  # As the lines of completed jobs are written, many at once.
                output.writer.put(json.dumps(facts))
            else:
                output.log.log(levels[number % 3], "test.line", extra={"headway": facts})

    threads = [threading.Thread(target=say_all, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    lines = output.read_lines(4_000)
    for thread in threads:
        thread.join()
    assert len(lines) == 4_000
    for number in range(4):
        assert [line["number"] for line in lines if line["thread"] == number] == list(range(1_000))


def test_a_blocked_output_drops_what_does_not_fit_and_says_how_many(
    output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    # W18
    monkeypatch.setattr(log_writer, "BYTES_MAX", 100_000)
    for number in range(5_000):  # Far more than the pipe and the queue hold; no process reads.
        output.say(number)
    dropped = output.writer.take_dropped()
    assert dropped > 1_000
    due, told, rest = 0, 0, b""  # The number of the next line, and of those that were said to be missing.
    while due < 5_000:
        *whole, rest = (rest + os.read(output.reading, PIPE)).split(b"\n")
        for line in map(json.loads, whole):
            if line["event"] == "log.dropped":
                told += line["lines"]
                due += line["lines"]
            else:
                assert line["number"] == due  # The gap is told where it is.
                due += 1
    assert told == dropped
    assert output.writer.take_dropped() == 0


def test_lines_of_any_length_are_bounded_by_their_bytes(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "BYTES_MAX", 100_000)
    library = logging.Logger("library")
    library.addHandler(output.writer)
    library.warning("x" * 200_000)  # Would not fit an empty queue.
    for _ in range(100):
        library.warning("y" * 10_000)
    dropped = output.writer.take_dropped()
    assert dropped >= 101 - 2 * 10  # The queue holds at most nine of them, and the pipe six.
    seen, rest = 0, b""
    while seen < 101:
        *whole, rest = (rest + os.read(output.reading, PIPE)).split(b"\n")
        seen += sum(line.get("lines", 1) for line in map(json.loads, whole))
    assert seen == 101


def test_lines_dropped_during_the_last_write_are_told_after_it(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "BYTES_MAX", 100_000)
    output.writer.put(f'{{"number": 0, "text": "{"x" * 90_000}"}}')
    select.select([output.reading], [], [])  # The thread writes it, and waits since the pipe is full.
    output.writer.put(f'{{"number": 1, "text": "{"y" * 20_000}"}}')
    whole, told = output.read_lines(2)
    assert (whole["number"], told["event"], told["lines"]) == (0, "log.dropped", 1)


def test_flushing_a_blocked_output_takes_bounded_time_once(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "FLUSH_SECONDS", 0.2)
    for number in range(3_000):
        output.say(number)
    output.writer.flush()  # It gives up, since the pipe is full.
    began = time.monotonic()
    for _ in range(100):
        output.writer.flush()  # As a process does at the end of each job.
    assert time.monotonic() - began < 10
    output.read(until=2_999)


def test_an_output_that_nobody_reads_any_more_raises_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    # W18: EPIPE
    output = Output()
    os.close(output.reading)
    for number in range(100):
        output.say(number)
    output.writer.flush()
    assert output.writer.take_dropped() == 100
    output.stream.close()
    output.say(101)  # EBADF
    output.writer.flush()
    assert output.writer.take_dropped() == 1
    assert capfd.readouterr().err == ""


def test_a_non_blocking_output_gets_whole_lines(output: Output) -> None:
    os.set_blocking(output.stream.fileno(), False)
    for number in range(2_000):
        output.say(number)
    assert [line["number"] for line in output.read(until=1_999)] == list(range(2_000))


def test_after_a_write_that_failed_halfway_lines_are_whole_and_the_missing_ones_are_told(
    output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = iter([30, 0])  # Then there is space again.

    def write_some(descriptor: int, content: memoryview) -> int:
        most = next(room, len(content))
        if not most:
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.write(descriptor, content[:most])

    monkeypatch.setattr(log_writer, "_write_some", write_some)
    output.writer.put("\n".join(f'{{"number": {number}, "text": "abcdefgh"}}' for number in range(3)), 3)
    output.writer.flush()
    output.say(3)
    output.writer.flush()
    cut, told, last = os.read(output.reading, PIPE).splitlines()
    assert cut == b'{"number": 0, "text": "abcdefg'
    assert json.loads(told)["lines"] == output.writer.take_dropped() == 3
    assert json.loads(last)["number"] == 3


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_writes_its_own_lines(output: Output) -> None:
    output.say(0)
    output.writer.flush()
    pid = os.fork()
    if pid == 0:
        output.say(1)
        output.writer.flush()
        os._exit(0)
    os.waitpid(pid, 0)
    assert [line["number"] for line in output.read(until=1)] == [0, 1]


def test_everything_is_written_before_a_process_ends(tmp_path: Path) -> None:
    script = (
        "import logging; from headway.observability.logs import configure_logs; configure_logs('json');"
        "[logging.getLogger('mine').warning('line %d', n) for n in range(2000)]; 1/0"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, check=False)
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    assert [line["message"] for line in lines[:-1]] == [f"line {number}" for number in range(2_000)]
    assert (lines[-1]["event"], lines[-1]["error"]) == ("process.crashed", "ZeroDivisionError")
    assert lines[-1]["traceback"].endswith("ZeroDivisionError: division by zero")
    assert ended.returncode == 1


def test_a_process_whose_standard_streams_are_closed_writes_into_no_file(tmp_path: Path) -> None:
    script = (
        "import logging; from headway.observability.logs import configure_logs; configure_logs('json');"
        "file = open('data', 'w'); assert file.fileno() > 2, file.fileno();"
        "logging.getLogger('mine').warning('into nothing')"
    )
    command = ["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, script]
    assert subprocess.run(command, cwd=tmp_path, timeout=60, check=False).returncode == 0
    assert (tmp_path / "data").read_text() == ""
