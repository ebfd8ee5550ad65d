"""Error replies: ``application/problem+json`` with a stable code."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from headway.core.errors import CountGrew, ExpectNeeded, HeadwayError, IdempotencyConflict, PolicyError, QueueFull
from headway.core.log_event import LogEvent
from headway.core.suggest import cut

log = logging.getLogger("headway.server")

PROBLEM_JSON = "application/problem+json"

# Every code of a reply, with its HTTP status. Clients match on the code; the text may change.
_CODES: Mapping[int, tuple[str, ...]] = {
    400: ("malformed",),
    401: ("unauthenticated",),
    403: ("forbidden", "tenant_mismatch", "forbidden_origin", "forwarded"),
    404: ("not_found", "job_not_found", "worker_not_found", "cron_not_found", "operation_not_found", "batch_not_found"),
    405: ("method_not_allowed", "switched_off"),
    409: (
        "idempotency_conflict",
        "illegal_move",
        "lease_lost",
        "worker_unknown",
        "policy_conflict",
        "not_stored",
        "count_grew",
        "batch_closed",
        "upstream_failed",
    ),
    413: ("payload_too_large", "too_large"),
    415: ("unsupported_media_type",),
    421: ("wrong_host",),
    422: (
        "invalid",
        "bad_arguments",
        "payload",
        "config",
        "policy",
        "unknown_option",
        "expect_needed",
        "cycle",
        "bad_edge",
        "step",
    ),
    429: ("queue_full", "too_many", "too_many_attempts", "too_many_streams", "rate_exceeded"),
    500: ("internal",),
    503: ("store_unavailable", "store_busy", "store_full", "store", "stopping"),
}
STATUSES: Mapping[str, int] = {code: status for status, codes in _CODES.items() for code in codes}
FIELD_MAX, TEXT_MAX = 100, 300  # Characters of the caller's input that a reply repeats.
DETAIL_MAX = 2_000  # Characters of the detail of a problem, including the caller's input.
PROBLEMS_MAX = 100  # Mistakes in a policy that a reply lists.
RETRY_AFTER = {  # Seconds of the Retry-After header.
    "queue_full": 5, "too_many": 5, "too_many_streams": 5, "rate_exceeded": 1, "store_unavailable": 1, "store_busy": 1,
    "store_full": 30, "stopping": 1,
}  # fmt: skip


class Problem(Exception):
    """An error reply. Facts become members of its document."""

    def __init__(self, code: str, detail: str, *, headers: Mapping[str, str] | None = None, **facts: Any) -> None:
        detail = cut(detail, DETAIL_MAX)
        super().__init__(detail)
        self.status = STATUSES[code]
        self.code = code
        self.detail = detail
        later = {"Retry-After": str(RETRY_AFTER[code])} if code in RETRY_AFTER else {}
        self.headers = later | dict(headers or {})
        self.facts = facts


def answer(problem: Problem) -> Response:
    return Response(body(problem), status_code=problem.status, headers=problem.headers or None, media_type=PROBLEM_JSON)


def body(problem: Problem) -> bytes:
    """Return the JSON document of a problem."""
    document = {
        **problem.facts,
        "type": f"urn:headway:problem:{problem.code}",
        "title": HTTPStatus(problem.status).phrase,
        "status": problem.status,
        "detail": problem.detail,
        "code": problem.code,
    }
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:  # It repeats a lone surrogate of the caller, which only an escape can hold.
        return json.dumps(document).encode()


def problem_of(error: HeadwayError) -> Problem:
    code = error.code if error.code in STATUSES else "internal"
    facts: dict[str, Any] = {}
    if isinstance(error, PolicyError):
        facts["problems"] = [
            {"key": cut(problem.key, TEXT_MAX), "text": cut(problem.text, DETAIL_MAX)}
            for problem in error.problems[:PROBLEMS_MAX]
        ]
    if isinstance(index := error.facts.get("index"), int):
        facts["index"] = index
    if isinstance(error, (CountGrew, ExpectNeeded)):
        facts["count"] = error.facts["count"]
    if isinstance(error, QueueFull) and error.facts.get("tenant") is None:
        # Tenants do not learn the figures of other tenants.
        return Problem(code, "as many tasks wait as the policy allows (max_depth); try again later", **facts)
    if isinstance(error, IdempotencyConflict):
        return Problem(code, "this idempotency key was used before, with another task or other parameters", **facts)
    if code == "internal":
        log.error(LogEvent("request.failed", error=type(error).__name__), exc_info=error)
        return Problem(code, "the server made a mistake; its log tells more")
    # The text of a store error may name hosts and files.
    detail = str(error) if STATUSES[code] != HTTPStatus.SERVICE_UNAVAILABLE else "the store cannot be reached just now"
    return Problem(code, detail, **facts)


def install(api: FastAPI, allowed: Callable[[str], Collection[str]] = lambda _: ()) -> None:
    """Turn every error into a problem. ``allowed``: the methods of a path, for the header ``Allow``."""

    async def on_problem(_: Request, error: Any) -> Response:
        return answer(error)

    async def on_error(_: Request, error: Any) -> Response:
        return answer(problem_of(error))

    async def on_invalid(_: Request, error: Any) -> Response:
        return answer(invalid(error.errors()))

    async def on_http(request: Request, error: Any) -> Response:
        codes = {400: "malformed", 404: "not_found", 405: "method_not_allowed", 413: "too_large"}
        code = codes.get(error.status_code, "malformed")
        headers = dict(error.headers or {})
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))  # It may be mounted in another.
        if code == "method_not_allowed" and (methods := allowed(path)):
            headers["Allow"] = ", ".join(sorted(methods))
        return answer(Problem(code, str(error.detail), headers=headers))

    async def on_bug(_: Request, error: Any) -> Response:
        return answer(Problem("internal", "the server made a mistake; its log tells more"))

    api.add_exception_handler(Problem, on_problem)
    api.add_exception_handler(HeadwayError, on_error)
    api.add_exception_handler(RequestValidationError, on_invalid)
    api.add_exception_handler(HTTPException, on_http)
    api.add_exception_handler(Exception, on_bug)


def _field(place: Sequence[Any]) -> str:
    """Return the name of a field, by its place in the body."""
    parts = [str(part)[:FIELD_MAX] for part in place[1:]]
    return cut(".".join(parts) or str(place[0]), TEXT_MAX)


def invalid(errors: Sequence[Any]) -> Problem:
    """Return the problem for invalid fields. It never repeats their values, which may be secret or large."""
    if any(str(error.get("type", "")).startswith("json_invalid") for error in errors):
        return Problem("malformed", "the body is not JSON")
    found = [{"field": _field(error["loc"]), "text": str(error["msg"])[:TEXT_MAX]} for error in errors[:20]]
    text = "; ".join(f"{one['field']}: {one['text']}" for one in found[:3])
    place = errors[0]["loc"][1:2] if errors else ()  # Of the first error: a number if the body is a list.
    problem = Problem("invalid", text, errors=found)
    if place and isinstance(place[0], int):
        problem.facts["index"] = place[0]
    return problem
