"""The policy in force: look at it, try another, apply it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body, Query, Request
from starlette.responses import Response

from headway.core.policy.reader import policy_data, read_policy
from headway.core.timestamps import write_moment
from headway.estimates.load import check_here
from headway.policy_store.versions import PolicyVersion, apply_policy, read_applied, read_current
from headway.security.audited_store import audited
from headway.server.auth import Scope
from headway.server.replies import reply
from headway.server.routing import Routes, caller_of
from headway.server.schemas.rest import PolicyChecked, PolicyReply
from headway.server.service import service_of

NOTE_MAX = 500

routes = Routes("policy", "/api/v1")


@routes.get(
    "/policy",
    scope=Scope.READ,
    answers={200: PolicyReply},
    takes_input=False,
    whole=True,
    summary="The policy in force",
)
async def get_policy(request: Request) -> Response:
    """Return the policy in force with its version, whole: what was left out is filled in."""
    store = await service_of(request).store()
    return reply(_values(await read_current(store) or await read_applied(store, 0)))


@routes.put(
    "/policy",
    scope=Scope.ADMIN,
    answers={200: (PolicyReply | PolicyChecked, "It is in force; or, with `dry_run`, what it would mean.")},
    problems=("policy",),
    whole=True,
    summary="Apply a policy",
)
async def put_policy(
    request: Request,
    policy: Annotated[dict[str, Any], Body(examples=[{"lanes": {"low": {"level": 2, "weight": 2}}}])],
    dry_run: Annotated[bool, Query(description="Check it and change nothing.")] = False,
    note: Annotated[str, Query(max_length=NOTE_MAX, description="Why; kept with the version.")] = "",
) -> Response:
    """Put a policy in force as a new version, with no restart. The body has the keys of a policy file.

    `problems` lists everything that is wrong in it, `warnings` what will surprise. `headway policy rollback` goes back.
    """
    service = service_of(request)
    store = await service.store()
    read = read_policy(policy, "the body")
    checked = await check_here(store, read)
    warnings = [f"{found.key}: {found.text}" if found.key else found.text for found in checked.findings]
    if dry_run:
        return reply({"valid": True, "warnings": warnings, "policy": policy_data(read)})
    now_at = (await service.pictures.fresh()).now_at
    kept = audited(store, caller_of(request).who)
    applied = await apply_policy(kept, read, now_at=now_at, note=note or "over HTTP")
    await service.app.in_force.refresh(store, every=0)
    return reply(_values(applied) | {"warnings": warnings})


def _values(applied: PolicyVersion) -> dict[str, Any]:
    return {
        "version": applied.version,
        "applied_at": write_moment(applied.applied_at) if applied.version else None,
        "note": applied.note,
        "policy": applied.data,
    }
