"""What `headway … --server` asks: the verbs of the store that operators' commands are made of."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import Request
from starlette.responses import Response

from headway.engine.audit import record
from headway.engine.operating import (
    CHANGING,
    DOCUMENTS,
    LOOKING,
    PATH,
    RULING,
    Cancel,
    Drain,
    Purge,
    Question,
    Retry,
    Write,
    check_question,
    perform,
)
from headway.server.auth import Caller, Scope
from headway.server.guard import too_deep
from headway.server.problems import Problem
from headway.server.routes.tasks import reply
from headway.server.routing import Routes, caller_of
from headway.server.service import service_of
from headway.stores.base import Store

NAMED = 20  # Jobs that an entry of the audit names; of more it tells the number.

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
    """Do something, and note who did."""
    store, caller = await service_of(request).store(), caller_of(request)
    before = await _before(store, question)
    done = await perform(store, question)
    await _note(store, caller, question, before, done)
    return reply(done)


async def _before(store: Store, question: Question) -> Any:
    if not isinstance(question, Write) or question.kind not in DOCUMENTS:
        return None
    known = await store.read(question.kind, question.name)
    return msgspec.json.decode(known[0].body) if known else None


async def _note(store: Store, caller: Caller, question: Question, before: Any, done: Any) -> None:
    match question:
        case Cancel(job_ids) | Retry(job_ids):
            after = dict(zip(job_ids, done, strict=True)) if len(job_ids) <= NAMED else {"jobs": len(job_ids)}
            what = "task.cancel" if isinstance(question, Cancel) else "task.retry"
            await record(store, who=caller.who, what=what, target=", ".join(job_ids[:NAMED]), after=after)
        case Purge(states, job_ids):
            named = ", ".join((job_ids or [])[:NAMED]) or f"any {', '.join(states)}"
            await record(store, who=caller.who, what="task.purge", target=named, after={"removed": done})
        case Drain(worker_id):
            await record(store, who=caller.who, what="worker.drain", target=worker_id, after={"draining": done})
        case Write(kind, name, body) if body is not None and done is not None:
            after = msgspec.json.decode(body)
            await record(store, who=caller.who, what=f"{kind}.write", target=name, before=before, after=after)
