"""Logs: one line for each state change, for people on a terminal or as JSON."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from headway.core.log_event import LogEvent
from headway.observability.log_writer import LogWriter, is_own

log = logging.getLogger("headway.process")

MESSAGE = "log.message"  # The event of every line that Headway did not write; its text is the member ``message``.
LEVELS = ("debug", "info", "warning", "error")  # The levels that an option may name.
_COLOURS = {"completed": "32", "failed": "31", "dead_letter": "31", "cancelled": "33", "retried": "33", "started": "36"}
_encode = json.JSONEncoder(default=str).encode
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "headway"}


def configure_logs(form: str | None, level: str = "info", *, job_facts: Callable[[], Mapping[str, Any]] = dict) -> None:
    """Send log lines of this process to standard error. Only a separate thread waits for it.

    ``form``: console, json, or None for console on a terminal and json elsewhere. If the root logger has no handler, it
    gets this one. Lines of libraries and tasks then look the same, with the job that ``job_facts`` names.
    """
    fill_closed_streams()
    terminal = sys.stderr.isatty()
    handler = LogWriter(sys.stderr, job_facts)
    handler.setFormatter(
        JsonFormatter()
        if (form or ("console" if terminal else "json")) == "json"
        else ConsoleFormatter(colour=terminal)
    )
    root, own = logging.getLogger(), logging.getLogger("headway")
    flush_logs()
    own.handlers = [handler]
    own.propagate = False
    own.setLevel(level.upper())
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("headway") and isinstance(logger, logging.Logger):
            logger.disabled = False  # An app's ``dictConfig`` may have disabled it.
    for old in [one for one in root.handlers if isinstance(one, LogWriter)]:
        root.removeHandler(old)
    if not root.handlers:
        root.addHandler(handler)
        root.setLevel(level.upper())
    logging.captureWarnings(True)
    sys.excepthook, sys.unraisablehook, threading.excepthook = _crashed, _unraisable, _thread_died


def flush_logs() -> None:
    """Wait until every line is written, for a bounded time. Call it before ``os._exit``."""
    for handler in logging.getLogger("headway").handlers:
        handler.flush()


def take_dropped() -> int:
    """Return how many log lines of this process were dropped since the last call."""
    return sum(one.take_dropped() for one in logging.getLogger("headway").handlers if isinstance(one, LogWriter))


def direct_writer(logger: logging.Logger, level: int) -> LogWriter | None:
    """Return the writer if it alone handles lines of this level, and as JSON. Its ``put`` then needs no log record.

    Handlers, filters, record factories and patches of ``logging`` that an app has installed get records as usual.
    """
    handlers: list[logging.Handler] = []
    above: logging.Logger | None = logger
    while above is not None:
        handlers += above.handlers
        above = above.parent if above.propagate else None
    if len(handlers) != 1 or not isinstance(writer := handlers[0], LogWriter):
        return None
    plain = (
        not logger.filters
        and not writer.filters
        and writer.level <= level
        and type(writer.formatter) is JsonFormatter
        and logging.getLogRecordFactory() is logging.LogRecord
        and logging.Logger.callHandlers.__module__ == type(logger).__module__ == "logging"
    )
    return writer if plain else None


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON, with control characters escaped."""

    def format(self, record: logging.LogRecord) -> str:
        own = is_own(record)
        line: dict[str, Any] = {
            "at": json_time(int(record.created * 1_000)),
            "level": record.levelname.lower(),
            "event": getattr(record.msg, "code", record.msg) if own else MESSAGE,
            "logger": record.name,
        }
        if not own:
            line["message"] = _message(record)
        for key, value in _facts(record, own=own).items():
            line.setdefault(key, value)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        try:
            return _encode(line)
        except Exception:  # A value that a task logs may contain itself, or fail to become text.
            return _encode({str(key): _safe_text(value) for key, value in line.items()})


def json_time(at: int) -> str:
    """Return a time in milliseconds as the member ``at`` has it."""
    return f"{datetime.fromtimestamp(at // 1_000, UTC):%Y-%m-%dT%H:%M:%S}.{at % 1_000:03d}Z"


class ConsoleFormatter(logging.Formatter):
    """Formats a record as a readable line: time, event, task and other facts."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        own = is_own(record)
        facts = _facts(record, own=own)
        event = str(getattr(record.msg, "code", record.msg)) if own else _message(record)
        shown = _printable(event)
        if record.levelno >= logging.WARNING and (not own or not facts):
            shown = f"{record.levelname.lower()}: {shown}"
        task = _printable(_safe_text(facts.pop("task", "")))
        rest = "  ".join(f"{_printable(str(key))}={_printable(_safe_text(value))}" for key, value in facts.items())
        clock = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S.%f")[:-3]
        line = "  ".join(part for part in (clock, self._coloured(f"{shown:<14}", event), task, rest) if part)
        if record.exc_info:
            line += "".join(f"\n{_printable(text)}" for text in self.formatException(record.exc_info).splitlines())
        return line

    def _coloured(self, text: str, event: str) -> str:
        code = _COLOURS.get(event.removeprefix("job."))
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour and code else text


def _facts(record: logging.LogRecord, *, own: bool) -> dict[str, Any]:
    """Return the members beside time, level and event: Headway's own, then those passed as ``extra``."""
    given = record.msg.facts if isinstance(record.msg, LogEvent) else getattr(record, "headway", None)
    facts = {key: value for key, value in given.items() if value is not None} if isinstance(given, Mapping) else {}
    if not own:
        for key, value in record.__dict__.items():
            if key not in _STANDARD:
                facts.setdefault(key, value)
    return facts


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage().rstrip()
    except Exception:  # The record's arguments do not fit its text.
        return f"{_safe_text(record.msg)} {_safe_text(record.args)}"


def _safe_text(value: object) -> str:
    try:
        return str(value)
    except Exception:
        return object.__repr__(value)


def _printable(text: str) -> str:
    """Escape what a terminal would act upon. Printable characters of every language stay."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def fill_closed_streams() -> None:
    """Open the null device for each closed standard stream, or else output would go into the next opened file."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # The system assigns the lowest free number.
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, "w" if descriptor else "r", closefd=False))  # noqa: SIM115


def _crashed(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
        return
    log.critical("process.crashed", extra={"headway": {"error": kind.__name__}}, exc_info=(kind, error, traceback))
    flush_logs()


def _thread_died(hook: threading.ExceptHookArgs) -> None:
    if hook.exc_type is SystemExit or hook.exc_value is None:
        return
    name = hook.thread.name if hook.thread is not None else None
    caught = (hook.exc_type, hook.exc_value, hook.exc_traceback)
    log.error("thread.crashed", extra={"headway": {"thread": name}}, exc_info=caught)


def _unraisable(hook: sys.UnraisableHookArgs) -> None:
    if hook.exc_value is not None:
        caught = (hook.exc_type, hook.exc_value, hook.exc_traceback)
        facts = {"during": hook.err_msg, "object": _safe_text(hook.object)[:200]}
        log.error("error.ignored", extra={"headway": facts}, exc_info=caught)
