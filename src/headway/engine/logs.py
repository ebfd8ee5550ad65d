"""Logs: one line for each state change, for people on a terminal or as JSON."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

_COLOURS = {"completed": "32", "failed": "31", "dead_letter": "31", "cancelled": "33", "retried": "33", "started": "36"}


def configure_logs(form: str | None, level: str = "info") -> None:
    """Send Headway's lines to standard error. ``form``: console, json, or None to choose by what it leads to."""
    handler = logging.StreamHandler(sys.stderr)
    terminal = sys.stderr.isatty()
    handler.setFormatter(
        JsonFormatter()
        if (form or ("console" if terminal else "json")) == "json"
        else ConsoleFormatter(colour=terminal)
    )
    logger = logging.getLogger("headway")
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(level.upper())


class JsonFormatter(logging.Formatter):
    """One JSON object a line; control characters cannot break out of it."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": _moment(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
        }
        line |= {key: value for key, value in _facts(record).items() if value is not None}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class ConsoleFormatter(logging.Formatter):
    """A readable line: time, event, what it concerns."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        facts = {key: value for key, value in _facts(record).items() if value is not None}
        event = record.getMessage()
        if record.levelno >= logging.WARNING and not facts:
            event = f"{record.levelname.lower()}: {event}"
        task = facts.pop("task", "")
        rest = "  ".join(f"{key}={value}" for key, value in facts.items())
        clock = _moment(record).astimezone().strftime("%H:%M:%S.%f")[:-3]
        line = "  ".join(part for part in (clock, self._paint(f"{event:<14}", event), str(task), rest) if part)
        line = line.encode("unicode_escape").decode() if not line.isprintable() else line
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line

    def _paint(self, text: str, event: str) -> str:
        code = _COLOURS.get(event.removeprefix("job."))
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour and code else text


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    facts = getattr(record, "headway", None)
    return dict(facts) if isinstance(facts, dict) else {}


def _moment(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)
