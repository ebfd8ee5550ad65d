"""Reads and writes trace files: CSV, or JSON lines. A file is read line by line and never as a whole."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from sys import intern
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from headway.core.errors import ConfigError
from headway.core.policy.units import LENGTH_MS_MAX, found
from headway.core.suggest import did_you_mean
from headway.core.text_position import BadByte, find_bad_byte
from headway.core.timestamps import write_moment
from headway.simulate.job import CANCELLED, COMPLETED, EXPIRED, ON_FAILURE, OUTCOMES, SimulatedJob
from headway.simulate.trace import JOBS_MAX, Trace, check_sources, header_of, in_order, read_header

if TYPE_CHECKING:
    from headway.simulate.run import ShowProgress

LINE_MAX = 1_048_576  # Characters of a line. A longer one is not a line of a trace.
BYTES_MAX = 4  # Bytes of a character.
HEADER_LINES = 2  # Lines of a CSV file before its jobs: the mark of a recording, and the names of the columns.
PROGRESS_LINES = 10_000  # Lines between two reports of progress, which take less time than the lines.
TEXT_MAX = 1_000  # Characters of a name.
MARK = "# headway-trace "  # Before the header in a CSV file.
SEPARATOR = ";"  # Between several values in a cell of a CSV file.
RETRIES_MAX = 1_000
_ALIKE = {"priority": "lane", "wait": "waited", "job_id": "id", "rung": "duration", "length": "seconds"}


class _Bad(Exception):
    """A value that a column does not take."""


def _seconds(value: Any) -> int:
    """Read seconds as milliseconds."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise _Bad(f"expected seconds, found {found(value)}") from None
    if not 0 <= number <= LENGTH_MS_MAX / 1_000:
        why = "time cannot be negative" if number < 0 else "too long"
        raise _Bad(f"expected seconds from 0 to {LENGTH_MS_MAX // 1_000:,}, found {found(value)}: {why}")
    return round(number * 1_000)


def _count(value: Any) -> int:
    text = str(value).strip()
    if isinstance(value, bool) or not text.isascii() or not text.isdigit() or int(text) > RETRIES_MAX:
        raise _Bad(f"expected a whole number from 0 to {RETRIES_MAX:,}, found {found(value)}")
    return int(text)


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > TEXT_MAX:
        raise _Bad(f"expected text of at most {TEXT_MAX:,} characters, found {found(value)}")
    return intern(value)


def _texts(value: Any) -> tuple[str, ...]:
    parts = value.split(SEPARATOR) if isinstance(value, str) else value
    if not isinstance(parts, list):
        raise _Bad(f"expected a list, found {found(value)}")
    return tuple(_text(part.strip() if isinstance(part, str) else part) for part in parts if part != "")


def _lengths(value: Any) -> tuple[int, ...]:
    parts = value.split(SEPARATOR) if isinstance(value, str) else value if isinstance(value, list) else [value]
    return tuple(_seconds(part) for part in parts)


def _word(known: tuple[str, ...]) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in known:
            raise _Bad(f"expected {', '.join(known)}, found {found(value)}{did_you_mean(str(value), known)}")
        return str(value)

    return read


class _Column(NamedTuple):
    """A column, the field of a job that it sets, and how it is read."""

    field: str
    read: Callable[[Any], Any]


COLUMNS: Mapping[str, _Column] = {
    "task": _Column("task", _text),
    "lane": _Column("lane", _text),
    "tenant": _Column("tenant", _text),
    "duration": _Column("duration", _text),
    "needs": _Column("needs", _texts),
    "limits": _Column("limits", _texts),
    "failed": _Column("failed_ms", _lengths),
    "outcome": _Column("outcome", _word(OUTCOMES)),
    "delay": _Column("delay_ms", _seconds),
    "expires": _Column("expires_ms", _seconds),
    "max_retries": _Column("max_retries", _count),
    "timeout": _Column("timeout_ms", _seconds),
    "id": _Column("name", _text),
    "batch": _Column("batch", _text),
    "after": _Column("after", _texts),
    "on_failure": _Column("on_failure", _word(ON_FAILURE)),
    "waited": _Column("waited_ms", _seconds),
}
NEEDED = ("arrives", "seconds")
KNOWN = (*NEEDED, "attempts", *COLUMNS)


def read_trace(path: Path, progress: ShowProgress | None = None) -> Trace:
    """Read a trace file. Raises ``ConfigError`` that names the file, the line and the column.

    ``progress`` is called with the number of lines read so far and the number of all.
    """
    try:
        lines = _count_lines(path) if path.is_file() else None  # A pipe can be read only once.
        with path.open(encoding="utf-8-sig", newline="") as file:
            return _TraceReader(path, file, None if lines is None else progress, lines or 0).read()
    except OSError as problem:
        raise ConfigError(f"the trace {path} cannot be read: {problem.strerror or problem}") from problem
    except UnicodeDecodeError as problem:
        raise ConfigError(f"the trace {path} {_bad_byte(path) or f'is not text in UTF-8: {problem}'}") from problem


def _count_lines(path: Path) -> int:
    """Return how many lines a file has. Raises ``ConfigError`` if they are more than a simulation takes jobs.

    The count ends at the bound, and at a line that is too long, so that it is quick for a file of any size.
    """
    lines = size = 0
    with path.open("rb") as file:
        while chunk := file.read(BYTES_MAX * LINE_MAX):
            found, size = chunk.count(b"\n"), size + len(chunk)
            lines += found
            if lines > JOBS_MAX + HEADER_LINES:
                whole = path.stat().st_size
                number = f"{lines:,}" if size >= whole else f"about {lines * whole // size:,}"
                raise ConfigError(
                    f"the trace {path} has {number} lines; a simulation takes at most {JOBS_MAX:,} jobs, "
                    "so replay a part of the file"
                )
            if not found:
                break
    return lines


def _bad_byte(path: Path) -> BadByte | None:
    """Return the first byte of a file that is not UTF-8. A pipe, which cannot be read again, has none."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return find_bad_byte(iter(lambda: file.read(LINE_MAX), b""))


class _TraceReader:
    """Reads one file."""

    def __init__(self, path: Path, file: TextIO, progress: ShowProgress | None, lines: int) -> None:
        self._file = file
        self._progress = progress
        self._lines_max = lines  # How many lines the file has.
        self._line = 0
        self._trace = Trace([], str(path))
        self._clock: str | None = None  # What ``arrives`` is in this file: seconds or moments.
        self._ignored: set[str] = set()
        self._lengths: dict[str, tuple[int, int]] = {}  # By task: how many jobs ran, and for how long together.
        self._unknown: list[int] = []  # Expired jobs, whose length is not known.

    def read(self) -> Trace:
        trace, jobs = self._trace, self._trace.jobs
        for row in self._rows():
            if len(jobs) >= JOBS_MAX:
                raise self._error("", f"a simulation takes at most {JOBS_MAX:,} jobs; replay a part of the file")
            if (job := self._job(row)) is not None:
                jobs.append(job)
        if not jobs:
            raise ConfigError(f"the trace {trace.source} has no jobs; it needs a line for each, and {_needed()}")
        for index in self._unknown:
            count, total_ms = self._lengths.get(jobs[index].task, (1, 1_000))
            jobs[index] = jobs[index]._replace(run_ms=max(1, total_ms // count))
        first_ms = min(job.arrives_ms for job in jobs)
        if self._clock == "moments":
            trace.begin_at = first_ms
        trace.jobs = in_order(job._replace(arrives_ms=job.arrives_ms - first_ms) for job in jobs)
        trace.ignored = tuple(sorted(self._ignored))
        check_sources(trace)
        return trace

    def _lines(self) -> Iterator[str]:
        while line := self._file.readline(LINE_MAX + 1):
            self._line += 1
            if len(line) > LINE_MAX:
                raise self._error("", f"the line has more than {LINE_MAX:,} characters")
            if "\0" in line:
                raise self._error("", "the line contains a zero byte, so the file is not text")
            if self._progress is not None and self._line % PROGRESS_LINES == 0:
                self._progress(self._line, self._lines_max)
            yield line
        if self._progress is not None:
            self._progress(self._line, self._line)

    def _rows(self) -> Iterator[Mapping[str, Any]]:
        lines = self._lines()
        first = next(lines, "")
        while first and not first.strip():
            first = next(lines, "")
        if first.lstrip().startswith("{"):
            yield from self._json_rows(first, lines)
            return
        if first.startswith(MARK):
            read_header(self._parse(first.removeprefix(MARK)), self._trace)
            first = next(lines, "")
        yield from self._csv_rows(first, lines)

    def _json_rows(self, first: str, lines: Iterator[str]) -> Iterator[Mapping[str, Any]]:
        row = self._parse(first)
        if "headway_trace" in row:
            read_header(row, self._trace)
        else:
            self._check_columns(row)
            yield row
        for line in lines:
            if line.strip():
                row = self._parse(line)
                self._check_columns(row)
                yield row

    def _csv_rows(self, first: str, lines: Iterator[str]) -> Iterator[Mapping[str, Any]]:
        delimiter = max((",", "\t", ";"), key=first.count)
        try:
            names = [name.strip().lower() for name in next(csv.reader([first], delimiter=delimiter), [])]
            self._check_columns(dict.fromkeys(names))
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise self._error(twice, "the file has two columns of this name")
            for cells in csv.reader(lines, delimiter=delimiter):
                if len(cells) > len(names):
                    raise self._error("", f"expected {len(names)} cells, found {len(cells)}")
                if cells:
                    yield {name: cell.strip() for name, cell in zip(names, cells, strict=False) if cell}
        except csv.Error as problem:
            raise self._error("", f"the line is not CSV: {problem}") from problem

    def _parse(self, line: str) -> dict[str, Any]:
        try:
            values = json.loads(line.strip())
        except json.JSONDecodeError as problem:
            raise self._error("", f"the line is not JSON: {problem.msg} at character {problem.colno}") from None
        except (ValueError, RecursionError) as problem:
            raise self._error("", f"the line is not JSON: {problem}") from None
        if not isinstance(values, dict):
            raise self._error("", f"expected an object, found {found(values)}")
        return values

    def _check_columns(self, names: Mapping[str, Any]) -> None:
        for name in NEEDED:
            if name not in names and not (name == "seconds" and "outcome" in names):
                near = next((other for other in names if other.lower() in (name, *_similar(name))), None)
                hint = f"; is it {near!r}?" if near else f"; found {', '.join(map(repr, names)) or 'no columns'}"
                raise self._error(name, f"the column is missing ({_needed()}){hint}")
        for name in names:
            if name not in KNOWN and name not in self._ignored:
                hint = f"; is it {_ALIKE[name]!r}?" if name in _ALIKE else did_you_mean(name, KNOWN)
                if hint:
                    raise self._error(name, f"unknown column{hint} Rename or remove it")
                self._ignored.add(name)

    def _job(self, row: Mapping[str, Any]) -> SimulatedJob | None:
        values: dict[str, Any] = {}
        column = "arrives"
        try:
            arrives_ms = self._arrives(row.get("arrives", ""))
            for column, value in row.items():
                if column in COLUMNS and value is not None:
                    field, read = COLUMNS[column]
                    values[field] = read(value)
            outcome = values.get("outcome", COMPLETED)
            column, run_ms = "seconds", 0
            if row.get("seconds") not in (None, ""):
                run_ms = max(1, _seconds(row["seconds"]))
            elif outcome == CANCELLED:
                self._trace.left_out["cancelled while queued"] += 1
                return None
            elif outcome == EXPIRED:
                self._unknown.append(len(self._trace.jobs))
            else:
                raise _Bad("expected seconds, found nothing")
            column = "attempts"
            if row.get("attempts") not in (None, "") and "failed_ms" not in values:
                attempts = _count(row["attempts"])
                values["failed_ms"] = (run_ms,) * (attempts - 1)
        except _Bad as problem:
            raise self._error(column, str(problem)) from None
        task = values.get("task", "task")
        if run_ms:
            count, total_ms = self._lengths.get(task, (0, 0))
            self._lengths[task] = count + 1, total_ms + run_ms
        return SimulatedJob(arrives_ms, run_ms, where=self._line, **values)

    def _arrives(self, value: Any) -> int:
        """Read when a job comes. A file has seconds in all lines, or moments in all lines."""
        try:
            arrives_ms, clock = _moment(value), "moments"
        except ValueError:
            arrives_ms, clock = _seconds(value), "seconds"
        if self._clock is None:
            self._clock = clock
        elif clock != self._clock:
            raise _Bad(f"expected {self._clock} as in the lines before, found {found(value)}")
        return arrives_ms

    def _error(self, column: str, text: str) -> ConfigError:
        place = f"{self._trace.source} line {max(1, self._line):,}{f', column {column}' if column else ''}"
        return ConfigError(f"{place}: {text}")


def _moment(value: Any) -> int:
    if not isinstance(value, str) or len(value) < 10 or value[4] != "-":
        raise ValueError("not a moment")
    moment = datetime.fromisoformat(value)
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1_000)


def _needed() -> str:
    return "a trace needs the columns arrives and seconds"


def _similar(name: str) -> tuple[str, ...]:
    if name == "arrives":
        return ("arrived", "arrival", "submitted", "submitted_at", "time", "timestamp", "created_at")
    return ("duration", "length", "runtime", "took", "run_seconds")


def write_trace(trace: Trace, path: Path) -> None:
    """Write a trace: CSV if the file is so named, else JSON lines. Raises ``ConfigError``."""
    rows = [_row(job, trace.begin_at) for job in trace.jobs]
    header = json.dumps(header_of(trace), ensure_ascii=False)
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            if path.suffix.lower() != ".csv":
                file.write(f"{header}\n")
                file.writelines(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
                return
            used = [name for name in KNOWN if name in NEEDED or any(name in row for row in rows)]
            file.write(f"{MARK}{header}\n")
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(used)
            writer.writerows([_cell(row.get(name, "")) for name in used] for row in rows)
    except OSError as problem:
        raise ConfigError(f"the trace {path} cannot be written: {problem.strerror or problem}") from problem


def _row(job: SimulatedJob, begin_at: int | None) -> dict[str, Any]:
    at = job.arrives_ms / 1_000 if begin_at is None else write_moment(begin_at + job.arrives_ms)
    row: dict[str, Any] = {"arrives": at, "seconds": job.run_ms / 1_000}
    defaults = SimulatedJob._field_defaults
    for name, (field, read) in COLUMNS.items():
        value = getattr(job, field)
        if value != defaults[field]:
            row[name] = value / 1_000 if read is _seconds else _plain(value)
    return row


def _plain(value: Any) -> Any:
    if not isinstance(value, tuple):
        return value
    return [part / 1_000 if isinstance(part, int) else part for part in value]


def _cell(value: Any) -> Any:
    return SEPARATOR.join(map(str, value)) if isinstance(value, list) else value
