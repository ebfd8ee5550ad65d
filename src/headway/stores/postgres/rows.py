"""How PostgreSQL stores texts and lists in columns, and how to read the results of its functions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from headway.core.job import ClassKey, JobId, RetryRule
from headway.core.policy.enforced import RuleIndex
from headway.core.policy.ladder import summarize_running
from headway.core.snapshot import ClassView, Snapshot
from headway.stores.base import WAITING_COUNTED
from headway.stores.sql.rows import RowCodec, RunFields
from headway.stores.unreadable import DAMAGE, why_unreadable

RUNNING_KEY = "="  # Begins the keys that count running jobs for the ladder and the pool, and no limit's key.
_ESCAPED = "\x01"

_more = msgspec.json.Decoder(tuple[int, int, int, int, str | None, int])
_snapshot = msgspec.json.Decoder(
    tuple[
        list[
            tuple[
                int, str, str, tuple[str, ...], bool, bool, int, int | None, int | None, int, int | None, int, int,
            ]
        ]
        | None,
        int | None,
        tuple[int, int, tuple[int, ...], list[tuple[JobId, str | None, str | None, int]]] | None,
    ]
)  # fmt: skip


class PostgresRows(RowCodec):
    """Lists are arrays. NUL and lone surrogates, which PostgreSQL cannot store in a text, are escaped after a mark."""

    def text(self, value: str | None) -> str | None:
        if value is None or (value.isascii() and "\0" not in value and not value.startswith(_ESCAPED)):
            return value
        if "\0" in value or value.startswith(_ESCAPED) or any("\ud800" <= letter <= "\udfff" for letter in value):
            return _ESCAPED + json.dumps(value)
        return value

    def texts(self, values: Sequence[str | None]) -> list[str | None]:
        """Write a column of checked texts. Only a text that begins with the mark is escaped."""
        return [self.text(value) if value is not None and value < "\x02" else value for value in values]

    def read_text(self, value: Any) -> str | None:
        """Read a text. One that begins with the mark but was never escaped is read as it is."""
        text: str | None = value
        if text is None or not text.startswith(_ESCAPED):
            return text
        try:
            read = json.loads(text[1:])
        except ValueError:
            return text
        return read if isinstance(read, str) else text

    def array(self, values: Iterable[object]) -> list[object]:
        return list(values)

    def read_array(self, value: Any) -> tuple[str, ...]:
        return tuple(value)

    def are_plain(self, task: Any, payload: Any, tenant: Any, trace_id: Any) -> bool:
        return bool(
            task >= "\x02" and (tenant is None or tenant >= "\x02") and (trace_id is None or trace_id >= "\x02")
        )

    def read_run(self, task: Any, payload: Any, tenant: Any, trace_id: Any, retry: Any) -> RunFields:
        rule, unreadable = self.try_retry(retry)
        task = self.read_text(task) or ""
        return RunFields(task, payload, self.read_text(tenant), self.read_text(trace_id), rule, unreadable)

    def read_limit_keys(self, value: Any) -> tuple[str, ...]:
        return tuple(key for key in value or () if not key.startswith(RUNNING_KEY))

    def why_no_strings(self, value: str) -> str | None:
        """Return why a text is not a list of texts."""
        try:
            self.read_strings(value)
        except DAMAGE as problem:
            return why_unreadable(problem)
        return None

    def try_retry(self, value: str | None) -> tuple[RetryRule | None, str | None]:
        """Read a rule for retries, or return why it cannot be read."""
        try:
            return self.read_retry(value), None
        except DAMAGE as problem:
            return None, why_unreadable(problem)


rows = PostgresRows()


def read_more(value: str) -> tuple[int, int, int, int, str | None, int]:
    """Read the further fields of a claimed job that was retried, delayed or held, or has a rule for retries."""
    return _more.decode(value)


def read_snapshot(
    snapshot: str, now_at: int, rule_index: RuleIndex
) -> tuple[Snapshot, dict[ClassKey, int], dict[int, tuple[int, int]]]:
    """Read the result of the function ``snapshot``.

    Return also the ids of the classes, and by id the order key where a scan may start and the rewind it is valid for.
    """
    listed, next_due_at, running = _snapshot.decode(snapshot)
    running_jobs = None
    if running is not None:
        slots, count, counts, able = running  # Only the jobs that can make room are listed one by one.
        running_jobs = summarize_running(rule_index.ladder, slots, able)._replace(free=slots - count, counts=counts)
    views: list[ClassView] = []
    numbers: dict[ClassKey, int] = {}
    floors: dict[int, tuple[int, int]] = {}
    for (
        class_id, lane, rung, needs, persist, fair, line, oldest_at, head_key, open_queues, blocked_key, rewound, clock,
    ) in listed or ():  # fmt: skip
        key = ClassKey(lane, needs, rung or None, persist)
        numbers[key] = class_id
        # Where tenants share, a job may still be put before the first that waits, but not before what was taken.
        reached = clock if fair else head_key
        if persist and reached is not None:
            floors[class_id] = (reached, rewound)
        heads = [found for found in (head_key, blocked_key) if found is not None]
        views.append(
            ClassView(
                key,
                min(line + open_queues, WAITING_COUNTED),
                oldest_at,
                min(heads, default=0),
                fair,
                rule_index.blocked_reason(lane, key.rung, running_jobs if persist else None),
            )
        )
    return Snapshot(now_at, tuple(views), next_due_at, running_jobs), numbers, floors
