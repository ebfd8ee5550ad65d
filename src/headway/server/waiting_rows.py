"""Why the waiting tasks of a list wait, and when they start: computed by class, for a list of any length."""

from __future__ import annotations

from typing import Any

from headway.core.job import ClassKey, JobRecord, State
from headway.core.policy.document import Policy
from headway.core.policy.estimate import EstimateRequest, Forecast
from headway.core.policy.why import ReasonIndex
from headway.core.snapshot import ClassView
from headway.server.serializers import estimate_values, reason_values


class WaitingRows:
    """Explains the waiting tasks of a list from one forecast."""

    def __init__(self, forecast: Forecast, policy: Policy) -> None:
        self._forecast = forecast
        self._reasons = ReasonIndex(forecast.queue, policy)
        self._views = {view.key: view for view in forecast.queue.snapshot.classes}

    def reason_of(self, job: JobRecord) -> str | None:
        """Return the code of the first reason why a task waits."""
        return self._reasons.code_of(job)

    def explain(self, job: JobRecord) -> dict[str, Any]:
        """Return the fields of a waiting task about its start, or nothing for another task."""
        if job.state is not State.QUEUED:
            return {}
        reason = self._reasons.of(job)
        key = ClassKey(job.lane, job.needs, job.rung)
        view = self._views.get(key)
        ahead = _ahead(job, view, self._forecast.queue.now_at)
        own = ahead if view is not None and view.fair else None
        request = EstimateRequest(
            key, job.task, job.tenant, ahead, own, job.due_at, job.blocked_by, self._reasons.limits(job)
        )
        estimate = self._forecast.near(request)
        return {
            "why": reason_values([] if reason is None else [reason]),
            "estimate": estimate_values(estimate),
            "queue_position": estimate.position,
        }


def _ahead(job: JobRecord, view: ClassView | None, now_at: int) -> int:
    """Return about how many tasks of its class are ahead of a task, by its age, as if they had arrived evenly."""
    if view is None or view.oldest_at is None or job.eligible_at is None or now_at <= view.oldest_at:
        return 0
    part = (job.eligible_at - view.oldest_at) / (now_at - view.oldest_at)
    return max(0, int(view.waiting * min(1.0, part)) - 1)
