"""Why the waiting tasks of a list wait, and when they start: by class, with a bounded number of reads for any list."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headway.core.diagnostics import JobDiagnostics
from headway.core.job import ClassKey, JobId, JobRecord, State
from headway.core.policy.document import Policy
from headway.core.policy.estimate import EstimateRequest, Forecast
from headway.core.policy.why import ReasonIndex
from headway.core.snapshot import ClassView
from headway.server.serializers import estimate_values
from headway.stores.base import BlockedStats

ANCHORS_MAX = 8  # Tasks of a list whose places the store counts: the newest of each class, or of each tenant there.

Diagnose = Callable[[JobId], Awaitable[JobDiagnostics | None]]


@dataclass(slots=True)
class RowAnchor:
    """The newest task of a class in a list, whose place the store has counted. ``listed``: older ones after it."""

    ahead: int
    own: int
    seq: int
    eligible_at: int
    listed: int = 0


class WaitingRows:
    """Explains the waiting tasks of a list, which must come newest first."""

    def __init__(
        self, forecast: Forecast, policy: Policy, blocked: Mapping[str, BlockedStats], diagnose: Diagnose
    ) -> None:
        self._forecast = forecast
        self._diagnose = diagnose
        self._reasons = ReasonIndex(forecast.queue, policy, {key: one.open_at for key, one in blocked.items()})
        self._views = {view.key: view for view in forecast.queue.snapshot.classes}
        self._anchors: dict[tuple[ClassKey, str | None, str | None], RowAnchor | None] = {}

    def reason_of(self, job: JobRecord) -> str | None:
        """Return the code of the first reason why a task waits."""
        return self._reasons.code_of(job)

    async def explain(self, job: JobRecord) -> dict[str, Any]:
        """Return the fields of a waiting task about its start, or nothing for another task."""
        if job.state is not State.QUEUED:
            return {}
        reason, key = self._reasons.of(job), ClassKey(job.lane, job.needs, job.rung)
        ahead, own = await self._place(job, key)
        estimate = self._forecast.near(
            EstimateRequest(
                key, job.task, job.tenant, ahead, own, job.due_at, job.blocked_by, self._reasons.limits(job)
            )
        )
        position = self._forecast.places.of(key, ahead)
        return {
            "why": [] if reason is None else [reason.as_values()],
            "estimate": estimate_values(estimate, position),
            "queue_position": position,
        }

    async def _place(self, job: JobRecord, key: ClassKey) -> tuple[int, int | None]:
        """Return about how many tasks of its class are ahead of a task, and how many of them are its tenant's."""
        view, eligible_at = self._views.get(key), job.eligible_at
        if view is None or eligible_at is None:
            return 0, None
        group = (key, job.tenant if view.fair else None, job.blocked_by)
        if group not in self._anchors and len(self._anchors) < ANCHORS_MAX:
            found = await self._diagnose(job.job_id)
            waits = found is not None and found.job.state is State.QUEUED
            self._anchors[group] = (
                RowAnchor(found.ahead, found.ahead_own, job.seq, eligible_at) if found is not None and waits else None
            )
        anchor = self._anchors.get(group)
        if anchor is None:
            ahead = _by_age(eligible_at, view, self._forecast.queue.now_at)
            return ahead, ahead if view.fair else None
        part = _part(job.seq, eligible_at, anchor, view)
        listed, anchor.listed = anchor.listed, anchor.listed + 1
        ahead = max(0, min(round(anchor.ahead * part), anchor.ahead - listed))
        return ahead, max(0, min(round(anchor.own * part), anchor.own - listed)) if view.fair else None


def _part(seq: int, eligible_at: int, anchor: RowAnchor, view: ClassView) -> float:
    """Return where a task stands between the first one of its class (0) and the anchor (1).

    A class that no tenants share goes by number, any other by age.
    """
    if not view.fair and view.head_key and anchor.seq > view.head_key:
        return max(0.0, min(1.0, (seq - view.head_key) / (anchor.seq - view.head_key)))
    if view.oldest_at is None or anchor.eligible_at <= view.oldest_at:
        return 1.0
    return max(0.0, min(1.0, (eligible_at - view.oldest_at) / (anchor.eligible_at - view.oldest_at)))


def _by_age(eligible_at: int, view: ClassView, now_at: int) -> int:
    """Return about how many tasks are ahead, as if all tasks of the class had arrived evenly."""
    if view.oldest_at is None or now_at <= view.oldest_at:
        return 0
    return max(0, int(view.waiting * min(1.0, (eligible_at - view.oldest_at) / (now_at - view.oldest_at))) - 1)
