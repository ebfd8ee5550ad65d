"""What `headway … --server` asks: the verbs of the store that operators' commands are made of."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import Request
from starlette.responses import Response

from headway.security.audit import Group
from headway.security.audited_store import audited
from headway.server.auth import Scope
from headway.server.guard import too_deep
from headway.server.operator_rpc import (
    CHANGING,
    LOOKING,
    PATH,
    RULING,
    Changing,
    Question,
    RetryCommand,
    check_question,
    perform,
)
from headway.server.problems import Problem
from headway.server.replies import reply
from headway.server.routing import Routes, caller_of
from headway.server.service import service_of

routes = Routes("operate", PATH)


@routes.post("/look/{verb}", scope=Scope.READ, answers={200: (None, "What was asked.")}, include_in_schema=False)
async def look(request: Request, verb: str) -> Response:
    """Look at jobs, workers, numbers, policies."""
    service, question = service_of(request), await _read(request, verb, LOOKING)
    async with service.listing:
        return reply(await perform(await service.store(), question))


@routes.post("/change/{verb}", scope=Scope.SUBMIT, answers={200: (None, "What came of it.")}, include_in_schema=False)
async def change(request: Request, verb: str) -> Response:
    """Cancel and retry jobs."""
    return await _do(request, await _read(request, verb, CHANGING))


@routes.post("/rule/{verb}", scope=Scope.ADMIN, answers={200: (None, "What came of it.")}, include_in_schema=False)
async def rule(request: Request, verb: str) -> Response:
    """Remove jobs, send workers away, change policies and pauses."""
    return await _do(request, await _read(request, verb, RULING))


async def _read(request: Request, verb: str, verbs: dict[str, Any]) -> Any:
    """Read a question. A token of one tenant is not for this: answers tell of all of them."""
    if caller_of(request).tenant is not None:
        raise Problem("forbidden", "this token is for one tenant, and commands with --server look at all of them")
    kind = verbs.get(verb)
    if kind is None:
        raise Problem("not_found", "there is no such verb; commands and server must be of the same release")
    body = await request.body()
    if too_deep(body):
        raise Problem("malformed", "the body nests too deep")
    try:
        question = msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as problem:
        raise Problem("malformed", f"the body does not fit: {problem}") from None
    check_question(question)
    return question


async def _do(request: Request, question: Question) -> Response:
    """Do something, and record who did."""
    service, caller = service_of(request), caller_of(request)
    if isinstance(question, RetryCommand):
        service.quotas.submit(caller, len(question.job_ids))
    store = await service.store()
    group: Group = "operators" if caller.operates or not isinstance(question, Changing) else "callers"
    return reply(await perform(audited(store, caller.who, group=group), question))
