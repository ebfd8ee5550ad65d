"""Reads and writes columns of SQLite. A column may hold a value of any type if another program wrote it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headway.stores.sql.rows import RowCodec, RunFields, json_text
from headway.stores.texts import escape_surrogates
from headway.stores.unreadable import DAMAGE, why_unreadable


class SqliteRows(RowCodec):
    """Stores lists as JSON, and texts unchanged except for lone surrogates, which it escapes."""

    def text(self, value: str | None) -> str | None:
        return None if value is None else escape_surrogates(value)

    def read_text(self, value: Any) -> str | None:
        if value is None or isinstance(value, str):
            return value
        return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)

    def array(self, values: Iterable[object]) -> str:
        return json_text(list(values))

    def read_array(self, value: Any) -> tuple[str, ...]:
        return self.read_strings(value)

    def are_plain(self, task: Any, payload: Any, tenant: Any, trace_id: Any) -> bool:
        return (
            type(task) is str
            and type(payload) is bytes
            and (tenant is None or type(tenant) is str)
            and (trace_id is None or type(trace_id) is str)
        )

    def read_run(self, task: Any, payload: Any, tenant: Any, trace_id: Any, retry: Any) -> RunFields:
        try:
            rule = self.read_retry(retry)
            if self.are_plain(task, payload, tenant, trace_id):
                return RunFields(task, payload, tenant, trace_id, rule)
            unreadable = why_unreadable(TypeError("a column holds a value of another type"))
        except DAMAGE as problem:
            rule, unreadable = None, why_unreadable(problem)
        raw = payload if isinstance(payload, bytes) else str(payload).encode("utf-8", "backslashreplace")
        return RunFields(
            self.read_text(task) or "", raw, self.read_text(tenant), self.read_text(trace_id), rule, unreadable
        )


rows = SqliteRows()
