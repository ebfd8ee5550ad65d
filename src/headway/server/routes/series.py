"""Routes for counts over time."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request
from starlette.responses import Response

from headway.core.errors import ConfigError
from headway.core.policy.units import parse_length
from headway.core.search import read_time
from headway.core.timestamps import write_moment
from headway.metrics.series import (
    ALL,
    ENDED,
    HOUR_MS,
    HOURS_KEPT_MS,
    MINUTE_MS,
    MINUTES_KEPT_MS,
    RETRIED,
    SeriesRow,
    SeriesStep,
    read_series,
    wait_quantile,
)
from headway.server.auth import Scope
from headway.server.problems import Problem
from headway.server.routing import Routes, reply
from headway.server.schemas import rest
from headway.server.schemas.dashboard import SeriesReply
from headway.server.service import service_of

POINTS_MAX = 3_000  # Points of a reply: 48 hours by the minute.

routes = Routes("queue", "/api/v1", whole=True)


@routes.get("/series", Scope.READ, SeriesReply, "What happened over time", problems=("config",))
async def get_series(
    request: Request,
    lane: Annotated[rest.Name | None, Query(description="One lane; all of them together if left out.")] = None,
    since: Annotated[str, Query(max_length=40, description="A length before now such as `2h`, or a time.")] = "1h",
    step: Annotated[str | None, Query(max_length=20, description="`1m`, `1h`, or several of them.")] = None,
) -> Response:
    """Return one row a minute, kept for 48 hours, or one row an hour, kept for 30 days.

    Without `step` it is a minute for the last 48 hours and an hour for more. The newest row may be a minute old.
    """
    service = service_of(request)
    store = await service.store()
    now_at = (await service.queue_view.fresh()).now_at
    since_at = max(read_time("since", since, now_at), now_at - HOURS_KEPT_MS)
    step_ms = _read_step(step, now_at - since_at)
    steps = await read_series(store, since_at=since_at, step_ms=step_ms, now_at=now_at)
    points = [point_values(one, lane or ALL) for one in steps[-POINTS_MAX:]]
    return reply({"lane": lane, "step_seconds": step_ms // 1_000, "points": points})


def point_values(step: SeriesStep, lane: str) -> dict[str, Any]:
    """Return one step of a lane."""
    row = step.lanes.get(lane) or SeriesRow()
    return {
        "at": write_moment(step.at),
        "seconds": step.length_ms / 1_000,
        "submitted": row.submitted,
        "started": row.started,
        "ended": {end: row.ended.get(end, 0) for end in ENDED},
        "retried": row.ended.get(RETRIED, 0),
        "wait_p50": wait_quantile(row.waits, 0.5),
        "wait_p90": wait_quantile(row.waits, 0.9),
        "waiting": row.waiting,
        "running": row.running,
        "slots": step.slots,
    }


def _read_step(text: str | None, span_ms: int) -> int:
    if text is None:
        return MINUTE_MS if span_ms <= MINUTES_KEPT_MS else HOUR_MS
    words = {"minute": "1m", "hour": "1h", "day": "1d"}
    try:
        step_ms = parse_length(int(text) if text.isdecimal() else words.get(text, text))
    except ValueError as problem:
        raise Problem("invalid", f"step: {problem}") from None
    if step_ms < MINUTE_MS or step_ms % MINUTE_MS or (step_ms > HOUR_MS and step_ms % HOUR_MS):
        raise ConfigError(f"step must be whole minutes or hours, got {text[:20]!r}")
    return step_ms
