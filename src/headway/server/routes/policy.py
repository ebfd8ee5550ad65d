"""The current policy: read it, check another, apply it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

from fastapi import Body, Path, Query, Request
from starlette.responses import Response

from headway.core.policy.document import Policy
from headway.core.policy.reader import read_policy
from headway.core.policy.writer import policy_data
from headway.estimates.load import check_here
from headway.policy_store.versions import PolicyVersion, apply_policy, current_version, history, read_applied, roll_back
from headway.security.audited_store import audited
from headway.server.auth import Scope
from headway.server.pages import PAGE, Cursor, Page, PageLimit, read_cursor
from headway.server.routing import Routes, caller_of, reply
from headway.server.schemas.operations import PolicyChecked, PolicyReply, PolicyVersions, Rollback
from headway.server.schemas.rest import NUMBER_MAX
from headway.server.service import service_of
from headway.stores.base import Store

NOTE_MAX = 500

routes = Routes("policy", "/api/v1", whole=True)


@routes.get("/policy", Scope.READ, PolicyReply, "The policy in force")
async def get_policy(request: Request) -> Response:
    """Return the current policy and its version, with every default filled in."""
    store = await service_of(request).store()
    return _policy_reply(await read_applied(store, await current_version(store)))


@routes.get("/policy/versions", Scope.READ, PolicyVersions, "Versions of the policy")
async def list_versions(
    request: Request,
    limit: PageLimit = PAGE,
    cursor: Cursor = None,
) -> Response:
    """List every version that was applied, newest first, without the policies themselves."""
    store = await service_of(request).store()
    current, page, last = await current_version(store), Page("items", limit), ""
    below = None if cursor is None else read_cursor(cursor)
    for applied in reversed(await history(store)):
        if below is not None and applied.version >= below:
            continue
        if not page.add(applied.facts() | {"current": applied.version == current}):
            return page.answer(last)
        last = str(applied.version)
    return page.answer(None)


@routes.get("/policy/versions/{version}", Scope.READ, PolicyReply, "One version of the policy", problems=("policy",))
async def get_version(request: Request, version: Annotated[int, Path(ge=0, le=NUMBER_MAX)]) -> Response:
    """Return any version of the policy. 0 is the built-in policy."""
    return _policy_reply(await read_applied(await service_of(request).store(), version))


@routes.put(
    "/policy",
    Scope.ADMIN,
    (PolicyReply | PolicyChecked, "It is in force; or, with `dry_run`, what it would mean."),
    "Apply a policy",
    problems=("policy", "policy_conflict"),
)
async def put_policy(
    request: Request,
    policy: Annotated[dict[str, Any], Body(examples=[{"lanes": {"low": {"level": 2, "weight": 2}}}])],
    dry_run: Annotated[bool, Query(description="Check it and change nothing.")] = False,
    note: Annotated[str, Query(max_length=NOTE_MAX, description="Why; kept with the version.")] = "over HTTP",
    if_version: Annotated[
        int | None, Query(ge=0, le=NUMBER_MAX, description="The version it is based on; 409 if that is not in force.")
    ] = None,
) -> Response:
    """Apply a policy as a new version, without a restart. The body has the keys of a policy file.

    `problems` lists all errors, `warnings` what may be unintended. `POST /policy/rollback` undoes it.
    """
    service = service_of(request)
    store = await service.store()
    read = read_policy(policy, "the body")
    checked = await _check(store, read)
    if dry_run:
        return reply({"valid": True, "policy": policy_data(read), **checked})
    now_at = (await service.queue_view.fresh()).now_at
    store_for = audited(store, caller_of(request).who)
    applied = await apply_policy(store_for, read, now_at=now_at, note=note, if_version=if_version)
    await service.app.in_force.refresh(store, every=0)
    return _policy_reply(applied, checked)


@routes.post("/policy/rollback", Scope.ADMIN, PolicyReply, "Put an earlier policy in force again", problems=("policy",))
async def rollback(request: Request, wanted: Rollback) -> Response:
    """Apply an earlier policy again, as a new version: the previous one, or the one named."""
    service = service_of(request)
    store, now_at = await service.store(), (await service.queue_view.fresh()).now_at
    applied = await roll_back(audited(store, caller_of(request).who), to=wanted.to, now_at=now_at)
    await service.app.in_force.refresh(store, every=0)
    return _policy_reply(applied, await _check(store, applied.policy))


async def _check(store: Store, policy: Policy) -> dict[str, Any]:
    """Return the warnings about a policy, as texts and as codes."""
    found = (await check_here(store, policy)).findings
    warnings = [f"{one.key}: {one.text}" if one.key else one.text for one in found]
    return {"warnings": warnings, "findings": [one._asdict() for one in found]}


def _policy_reply(applied: PolicyVersion, checked: Mapping[str, Any] = MappingProxyType({})) -> Response:
    return reply(applied.facts() | {"policy": applied.data, **checked})
