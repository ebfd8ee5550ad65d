"""The message of a log line: the code of an event, and its facts."""

from __future__ import annotations

from typing import Any


class LogEvent(str):
    """The message of a log line. ``docs/reference/logs.md`` lists every code.

    Headway's formatters write the code and each fact as a field. Other formatters write the text
    ``store.unavailable retry_in=0.1 error=connection refused``. Facts that are None are left out.
    """

    __slots__ = ("code", "facts")

    code: str
    facts: dict[str, Any]

    def __new__(cls, code: str, /, **facts: Any) -> LogEvent:
        facts = {name: value for name, value in facts.items() if value is not None}
        event = super().__new__(cls, " ".join([code, *(f"{name}={value}" for name, value in facts.items())]))
        event.code, event.facts = code, facts
        return event
