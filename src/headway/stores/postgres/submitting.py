"""Submit: the columns of a batch of jobs, and what the answers mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headway.core.job import ClassKey, JobId, NewJob, Submitted
from headway.core.policy.rules import Rulebook
from headway.stores.base import check_same
from headway.stores.postgres import rows


def columns(jobs: Sequence[NewJob], class_ids: Mapping[ClassKey, int], book: Rulebook) -> tuple[bool, list[Any]]:
    """Give the columns of a batch, and whether any of its jobs might be known already by more than its id.

    Jobs of one class and tenant are a group, numbered from 1; columns in which no job says anything are None.
    """
    groups: dict[tuple[int, str | None, bool], int] = {}
    numbers: list[int] = []
    steps: list[int] = []
    for job in jobs:
        group = (class_ids[job.class_key], job.tenant, job.persist)
        numbers.append(groups.setdefault(group, len(groups) + 1))
        steps.append(book.step_us(job.task, job.tenant or ""))
    (ids, tasks, payloads, digests, _, retries, timeouts, _, _, _, retry, delays, dues, expiries, keys, key_ms, uniques,
     traces, _, limits) = zip(*jobs, strict=True)  # fmt: skip
    careful = any(keys) or any(uniques) or len(set(ids)) < len(ids)
    values = [
        [class_id for class_id, _, _ in groups],
        [tenant for _, tenant, _ in groups],
        [persist for _, _, persist in groups],
        list(ids), list(tasks), list(payloads), numbers, steps, list(timeouts), list(retries),
        _said([rows.retry_text(rule) for rule in retry]),
        list(delays) if any(delays) else None,
        _said(dues), _said(expiries), _said(keys),
        list(key_ms) if any(keys) else None,
        list(digests) if any(keys) else None,
        _said(uniques), _said([rows.text(trace) for trace in traces]),
        _said([rows.strings_text(bound) for bound in limits]),
    ]  # fmt: skip
    return careful, values


def answers(jobs: Sequence[NewJob], row: Mapping[str, Any]) -> list[Submitted]:
    """Read what became of a batch. Raises ``IdempotencyConflict``."""
    if row["status"] == "conflict":
        check_same(None, row["what"], jobs[row["bad"]], row["bad"], row["what"])
    found = [Submitted(job.job_id) for job in jobs]
    for index, job_id in zip(row["known"], row["known_ids"], strict=True):
        found[index] = Submitted(JobId(job_id), deduplicated=True)
    return found


def _said(values: Sequence[Any]) -> list[Any] | None:
    return list(values) if any(value is not None for value in values) else None
