"""The whole queue at a glance: lanes and slots, tenants, limits, and what other policies and slots would change."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Query, Request
from starlette.responses import Response

from headway.core.policy.lint import check_policy
from headway.core.policy.reader import read_policy
from headway.core.what_if import change_queue
from headway.estimates.load import DEFAULT_SLOTS
from headway.estimates.scaling import advise_slots, read_within
from headway.server.auth import Scope
from headway.server.forecast import ForecastComparison
from headway.server.pages import Cursor, Page, PageLimit, read_cursor
from headway.server.routing import Routes, caller_of, encode, reply
from headway.server.schemas import rest
from headway.server.schemas.dashboard import (
    ForecastReply,
    ForecastRequest,
    LimitsReply,
    Overview,
    ScaleReply,
    TenantPage,
)
from headway.server.service import service_of

TenantOrder = Literal["unfairness", "tenant", "waiting", "running", "oldest", "had", "wait"]
TENANTS_PAGE = 100

routes = Routes("queue", "/api/v1", whole=True)


@routes.get("/queue/overview", Scope.READ, Overview, "The queue at a glance")
async def get_overview(request: Request) -> Response:
    """Return lanes, slots, why tasks wait and when new ones would start. It is at most a second old."""
    return reply(await service_of(request).views.overview())


@routes.get("/tenants", Scope.READ, TenantPage, "Tenants: what they have and what they are entitled to", whole=False)
async def list_tenants(
    request: Request,
    sort: Annotated[
        TenantOrder, Query(description="The tenant that suffers most first, unless another is given.")
    ] = "unfairness",
    limit: PageLimit = TENANTS_PAGE,
    cursor: Cursor = None,
) -> Response:
    """List the tenants with work now or in the last hour. A token of one tenant gets that tenant alone."""
    service, tenant = service_of(request), caller_of(request).tenant
    view = await service.views.tenants()
    items = [one for one in view["items"] if tenant in (None, one["tenant"])]
    items.sort(key=_ORDERS[sort])
    start, page = 0 if cursor is None else read_cursor(cursor), Page("items", limit)
    more = next((number for number, one in enumerate(items[start:], start) if not page.add(one)), None)
    facts = {"at": view["at"], "complete": view["complete"]}
    body = encode(facts)[:-1] + b"," + bytes(page.answer(None if more is None else str(more)).body)[1:]
    return Response(body, media_type="application/json")


def _oldest(one: dict[str, Any]) -> tuple[bool, str, str]:
    return one["oldest_at"] is None, one["oldest_at"] or "", one["tenant"]


_ORDERS: dict[str, Any] = {
    "unfairness": lambda one: (-one["unfairness"], -one["waiting"], one["tenant"]),
    "tenant": lambda one: one["tenant"],
    "waiting": lambda one: (-one["waiting"], one["tenant"]),
    "running": lambda one: (-one["running"], one["tenant"]),
    "oldest": _oldest,
    "had": lambda one: (-(one["had_share"] or 0), one["tenant"]),
    "wait": lambda one: (-(one["wait_p50"] or 0), one["tenant"]),
}


@routes.get("/limits", Scope.READ, LimitsReply, "Limits and the ladder")
async def get_limits(request: Request) -> Response:
    """Return each limit with what runs and waits under it, and the ladder with the tasks on it."""
    return reply(await service_of(request).views.limits())


@routes.post(
    "/forecast",
    Scope.READ,
    ForecastReply,
    "What another policy or number of slots would change",
    problems=("policy",),
)
async def forecast(request: Request, wanted: ForecastRequest) -> Response:
    """Return when tasks would start before and after a change, by lane, tenant and limit. Nothing changes."""
    service = service_of(request)
    now, policy = await service.forecast(), await service.policy()
    new = policy if wanted.policy is None else read_policy(wanted.policy, "the policy")
    queue = change_queue(now.queue, policy, new, wanted.slots)
    change = ForecastComparison(now, policy, now.under(new, queue), new)
    slots = [sum(worker.slots for worker in one.active_workers) for one in (now.queue, queue)]
    workers = [worker.slots for worker in queue.active_workers] or [DEFAULT_SLOTS]
    findings = check_policy(new, slots=max(workers), workers=len(workers)).findings if wanted.policy is not None else ()
    return reply(
        {
            "slots": {"before": slots[0], "after": slots[1]},
            "lanes": change.lanes(),
            "tenants": [*change.tenants(await service.views.tenant_lanes())],
            "limits": [*change.limits((await service.views.breakdown()).blocked)],
            "findings": [one._asdict() for one in findings],
        }
    )


@routes.get("/scale", Scope.READ, ScaleReply, "How many slots a lane wants", problems=("config",))
async def get_scale(
    request: Request,
    lane: Annotated[rest.Name, Query(description="The lane whose tasks should start in time.")],
    within: Annotated[str, Query(max_length=20, description="How long its tasks may wait: `30`, `30s` or `5m`.")],
) -> Response:
    """Return how many slots let every waiting task of a lane start in time, by the forecast. For autoscalers.

    Never less than what runs, and 0 only if no task of the lane waits, runs, is held or is due soon.
    """
    service = service_of(request)
    seconds = read_within(within)
    forecast, stats = await service.forecast(), await service.client.stats()
    return reply(advise_slots(forecast, stats, await service.policy(), lane, seconds)._asdict())
