"""Submits a batch of jobs as columns, and reads the answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headway.core.job import ClassKey, JobId, NewJob, SubmitReply
from headway.core.policy.enforced import RuleIndex
from headway.stores.base import check_same
from headway.stores.postgres.rows import rows


class SubmitBatch:
    """Jobs as the columns of a statement.

    Jobs of one class and tenant are a group, numbered from 1. Columns without a value are None. ``careful``: some
    jobs may already exist by their idempotency or unique key.
    """

    def __init__(self, jobs: Sequence[NewJob], class_ids: Mapping[ClassKey, int], rule_index: RuleIndex) -> None:
        self.jobs = jobs
        groups: dict[tuple[ClassKey, str | None], int] = {}
        numbers: list[int] = []
        steps: list[int] = []
        for job in jobs:
            numbers.append(groups.setdefault((job.class_key, job.tenant), len(groups) + 1))
            steps.append(rule_index.step_us(job.task, job.tenant or ""))
        self._keys = [key for key, _ in groups]
        (ids, tasks, payloads, digests, _, retries, timeouts, _, _, _, retry, delays, dues, expiries, keys, key_ms,
         uniques, traces, _, limits) = zip(*jobs, strict=True)  # fmt: skip
        keyed = any(key is not None for key in keys)
        self.careful = keyed or any(key is not None for key in uniques) or len(set(ids)) < len(ids)
        self.columns: list[Any] = [
            [class_ids.get(key) for key in self._keys],
            rows.texts([tenant for _, tenant in groups]),
            [key.persist for key in self._keys],
            [key.lane for key in self._keys],
            [key.rung or "" for key in self._keys],
            [rows.strings_text(key.needs) or "[]" for key in self._keys],
            list(ids), rows.texts(tasks), list(payloads), numbers, steps, list(timeouts), list(retries),
            _said([rows.retry_text(rule) for rule in retry]),
            list(delays) if any(delays) else None,
            _said(dues), _said(expiries), _said(rows.texts(keys)),
            list(key_ms) if keyed else None,
            list(digests) if keyed else None,
            _said(rows.texts(uniques)), _said(rows.texts(traces)),
            _said([rows.strings_text(bound) for bound in limits]),
        ]  # fmt: skip

    def classes(self, row: Mapping[str, Any]) -> dict[ClassKey, int]:
        """Return the ids of the classes of its jobs."""
        found = zip(self._keys, row["classes"] or (), strict=False)
        return {key: class_id for key, class_id in found if class_id is not None}

    def answers(self, row: Mapping[str, Any]) -> list[SubmitReply]:
        """Read the replies for the jobs. Raises ``IdempotencyConflict``."""
        if row["status"] == "conflict":
            check_same(None, row["what"], self.jobs[row["bad"]], row["bad"], row["what"])
        found = [SubmitReply(job.job_id) for job in self.jobs]
        for index, job_id in zip(row["known"], row["known_ids"], strict=True):
            found[index] = SubmitReply(JobId(job_id), deduplicated=True)
        return found


class PlainSubmit:
    """One statement for plain jobs: without key, tenant, delay and expiry.

    Values that all jobs of a batch share are sent once, since the driver encodes arrays value by value.
    """

    def __init__(self, jobs: Sequence[NewJob], statement: str, values: Sequence[Any]) -> None:
        self._jobs = jobs
        self.statement = statement
        self.values = values

    def answers(self) -> list[SubmitReply]:
        return [SubmitReply(job.job_id) for job in self._jobs]


def as_plain(jobs: Sequence[NewJob], class_ids: Mapping[ClassKey, int]) -> PlainSubmit | None:
    """Return the short statement for a batch if all of its jobs are plain and all classes are known, else None."""
    if len(jobs) == 1:
        return _one(jobs, class_ids)
    (ids, tasks, payloads, _, lanes, retries, timeouts, needs, rungs, tenants, retry, delays, dues, expiries, keys, _,
     uniques, traces, persists, limits) = zip(*jobs, strict=True)  # fmt: skip
    if (
        any(delays)
        or not all(persists)
        or len(set(ids)) < len(ids)
        or not all(map(_is_blank, (tenants, dues, expiries, keys, uniques)))
    ):
        return None
    groups: list[int | None] | None = None
    if _is_same(lanes) and _is_same(needs) and _is_same(rungs):
        classes = [class_ids.get(jobs[0].class_key)]
    else:
        groups = [class_ids.get(job.class_key) for job in jobs]
        classes = list(set(groups))
    if None in classes:
        return None
    values = [
        classes, classes[0], rows.text(tasks[0]), timeouts[0], retries[0], "\n".join(ids), payloads, groups,
        None if _is_same(tasks) else rows.texts(tasks),
        None if _is_same(timeouts) else timeouts,
        None if _is_same(retries) else retries,
        None if _is_blank(retry) else [rows.retry_text(rule) for rule in retry],
        None if _is_blank(traces) else rows.texts(traces),
        [rows.strings_text(bound) for bound in limits] if any(limits) else None,
    ]  # fmt: skip
    return PlainSubmit(jobs, "submit_many", values)


def _one(jobs: Sequence[NewJob], class_ids: Mapping[ClassKey, int]) -> PlainSubmit | None:
    [job] = jobs
    class_id = class_ids.get(job.class_key)
    if (
        class_id is None
        or not job.persist
        or job.delay_ms
        or not _is_blank((job.tenant, job.due_at, job.expires_ms, job.idempotency_key, job.unique_key))
    ):
        return None
    values = (
        class_id, job.job_id, rows.text(job.task), job.payload, job.timeout_ms, job.max_retries,
        rows.retry_text(job.retry), rows.text(job.trace_id), rows.strings_text(job.limits),
    )  # fmt: skip
    return PlainSubmit(jobs, "submit_one", values)


def _is_same(values: Sequence[Any]) -> bool:
    return values.count(values[0]) == len(values)


def _is_blank(values: Sequence[Any]) -> bool:
    return values.count(None) == len(values)


def _said(values: Sequence[Any]) -> list[Any] | None:
    return list(values) if any(value is not None for value in values) else None
