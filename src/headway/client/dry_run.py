"""The report of a dry run: what would happen to a job if it was submitted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from headway.core.diagnostics import JobDiagnostics, LimitView
from headway.core.job import JobRecord, NewJob, State
from headway.core.policy.enforced import PAUSE, RuleIndex
from headway.core.policy.estimate import Estimate
from headway.core.policy.units import write_rate
from headway.core.policy.why import Reason
from headway.core.preview import SubmitPreview
from headway.core.timestamps import write_moment


class DryRun(NamedTuple):
    """A job that is not submitted, and what would happen to it.

    ``existing``: the job that a submit would return in its place. None if the store has removed it.
    """

    job: NewJob
    preview: SubmitPreview
    estimate: Estimate | None = None
    reasons: Sequence[Reason] = ()
    existing: JobRecord | None = None


def dry_run_values(run: DryRun) -> dict[str, Any]:
    """Return a dry run as values."""
    job, preview = run.job, run.preview
    position = None if run.estimate is None else run.estimate.position
    reasons = [{"code": one.code, "text": one.text, **one.facts} for one in _reasons(run)]
    return {
        "valid": True,
        "task_type": job.task,
        "priority": job.lane,
        "tenant": job.tenant,
        "duration": job.rung,
        "required_capabilities": list(job.needs),
        "max_retries": job.max_retries,
        "timeout_seconds": job.timeout_ms / 1_000,
        "deduplicated": preview.existing is not None,
        "task_id": preview.existing,
        "status": _status(run),
        "queue_position": position,
        "estimate": None if run.estimate is None else asdict(run.estimate),
        "reasons": reasons,
        "limits": [_limit_values(view) for view in _limits(preview.diagnosis)],
    }


def _status(run: DryRun) -> str | None:
    if run.preview.existing is not None:
        return None if run.existing is None else run.existing.state.value
    return (State.QUEUED if run.preview.cancelled_by is None else State.CANCELLED).value


def _reasons(run: DryRun) -> Sequence[Reason]:
    source = run.preview.cancelled_by
    if source is None:
        return run.reasons
    return [Reason("depends", f"is cancelled at once, because {source} did not complete", {"sources": [source]})]


def _limits(diagnosis: JobDiagnostics | None) -> Iterator[LimitView]:
    """Yield the limits that apply to a job. Those of a job that is not due yet are not part of its diagnostics."""
    if diagnosis is None:
        return
    views = diagnosis.limits
    if not views:
        job, queue = diagnosis.job, diagnosis.queue
        running = Counter(key for one in queue.executing for key in one.held)
        keys = RuleIndex(queue.rules).keys(job.task, job.tenant, job.limits)
        views = tuple(LimitView(key, rule, running[key], None) for key, rule in keys)
    yield from (view for view in views if not view.key.startswith(PAUSE))


def _limit_values(view: LimitView) -> dict[str, Any]:
    rule = view.rule
    return {
        "limit": view.key,
        "running": view.used,
        "concurrency": rule.concurrency,
        "rate": None if rule.count is None else write_rate(rule.count, rule.period_ms),
        "next_start_at": write_moment(view.conforms_at),
    }
