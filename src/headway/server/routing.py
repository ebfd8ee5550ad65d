"""Declare routes. Each names the scope it needs, its replies and its problems."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar, get_args, get_origin

import msgspec
from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from headway.core.suggest import did_you_mean
from headway.server.auth import Principal, Scope, authorise
from headway.server.guard import DEPTH_MAX, too_deep
from headway.server.problems import FIELD_MAX, PROBLEM_JSON, STATUSES, Problem

F = TypeVar("F", bound=Callable[..., Any])

# Problems of every route, of routes with a scope, of routes with effects, and of routes with input.
ANYWHERE = ("wrong_host", "forwarded", "store_unavailable")
SCOPED = ("unauthenticated", "forbidden", "too_many_attempts")
UNSAFE = ("forbidden_origin", "unsupported_media_type", "too_large")
WITH_INPUT = ("malformed", "invalid")

encode = msgspec.json.Encoder().encode  # For the JSON of replies.


class Routes:
    """A group of routes. Each must declare a scope.

    ``whole``: the routes concern all tenants, so a token of one tenant cannot use them. ``missing``: the problem if
    there is nothing with the id in a path.
    """

    def __init__(self, tag: str, prefix: str = "", *, whole: bool = False, missing: str = "job_not_found") -> None:
        self.router = APIRouter(prefix=prefix, tags=[tag])
        self._whole = whole
        self._missing = missing

    def get(self, path: str, scope: Scope, answer: Any, summary: str, **options: Any) -> Callable[[F], F]:
        return self._route("GET", path, scope, answer, summary, **options)

    def post(self, path: str, scope: Scope, answer: Any, summary: str, **options: Any) -> Callable[[F], F]:
        return self._route("POST", path, scope, answer, summary, **options)

    def put(self, path: str, scope: Scope, answer: Any, summary: str, **options: Any) -> Callable[[F], F]:
        return self._route("PUT", path, scope, answer, summary, **options)

    def delete(self, path: str, scope: Scope, answer: Any, summary: str, **options: Any) -> Callable[[F], F]:
        return self._route("DELETE", path, scope, answer, summary, **options)

    def _route(
        self,
        method: str,
        path: str,
        scope: Scope,
        answer: Any,
        summary: str,
        *,
        status: int = 200,
        also: Mapping[int, Any] | None = None,
        problems: Sequence[str] = (),
        headers: Mapping[str, str] | None = None,
        whole: bool | None = None,
        many: bool = False,
        body: Sequence[type[msgspec.Struct]] = (),
        body_required: bool = True,
        deprecated: bool | None = None,
    ) -> Callable[[F], F]:
        """Declare a route. ``answer``: a model or (model, description). ``also``: further answers by status.

        ``headers``: headers that the function reads itself, at a tenth of the framework's cost. ``many``: the body is a
        list, and the function checks the depth of each item. ``body``: messages that the function reads itself.
        """
        answers = {status: answer} | dict(also or {})
        responses: dict[int | str, dict[str, Any]] = {code: _described(one) for code, one in answers.items()}
        changes = method != "GET"
        guard_all = self._whole if whole is None else whole

        def declare(function: F) -> F:
            takes_input = changes or bool(inspect.signature(function).parameters.keys() - {"request"})
            codes = [*ANYWHERE, *problems]
            codes += [self._missing] if "_id}" in path else ()
            codes += SCOPED if scope is not Scope.PUBLIC else ()
            codes += UNSAFE if changes else ()
            codes += WITH_INPUT if takes_input else ()
            self.router.add_api_route(
                path,
                function,
                methods=[method],
                status_code=min(answers),
                summary=summary,
                deprecated=deprecated,
                responses=responses | _problems(codes),
                response_model=None,
                response_class=Response,
                route_class_override=_guarded(scope, whole=guard_all, checked=changes and not many, strict=takes_input),
                openapi_extra=_security(scope) | _headers(headers or {}) | _body(body, required=body_required),
            )
            return function

        return declare


def _guarded(scope: Scope, *, whole: bool, checked: bool, strict: bool) -> type[APIRoute]:
    """Return the class of routes that check a scope before they read the request.

    ``strict``: refuse unknown query parameters, because a misspelt filter would filter nothing.
    """

    class Scoped(APIRoute):
        needs = scope

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()
            reads_json = self.body_field is not None
            kinds = {one.alias: one.field_info.annotation for one in self.dependant.query_params}
            # Whether each parameter may be repeated, because it takes a list.
            known = {
                name: any(get_origin(part) is list for part in (kind, *get_args(kind))) for name, kind in kinds.items()
            }

            async def handle_allowed(request: Request) -> Response:
                request.state.caller = caller = await authorise(request, scope)
                if whole and caller.tenant is not None:
                    raise Problem("forbidden", "this token is for one tenant, but this route concerns all tenants")
                if strict and request.scope["query_string"]:
                    _check_names(request.query_params.multi_items(), known)
                if checked:
                    check_depth(await request.body())
                if reads_json and (body := await request.body()):
                    request._json = read_json(body)  # The framework reads this attribute first.
                return await handle(request)

            return handle_allowed

    return Scoped


def _check_names(given: Iterable[tuple[str, str]], known: Mapping[str, bool]) -> None:
    """Refuse unknown query parameters, and repeated ones that take one value. Raises ``Problem``."""
    seen: set[str] = set()
    for name, _ in given:
        if name not in known:
            names = f"parameters: {', '.join(sorted(known))}" if known else "it takes none"
            raise Problem(
                "invalid",
                f"no parameter {name[:FIELD_MAX]!r} here{did_you_mean(name[:FIELD_MAX], list(known))} ({names})",
            )
        if name in seen and not known[name]:
            raise Problem("invalid", f"{name} is given twice; it takes one value")
        seen.add(name)


def reply(values: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a JSON reply."""
    return Response(encode(values), status, headers, "application/json")


def check_depth(body: bytes) -> None:
    """Raise ``Problem`` for JSON that nests too deeply."""
    if too_deep(body):
        raise Problem("malformed", f"the body nests more than {DEPTH_MAX} levels deep")


def read_json(body: bytes) -> Any:
    """Read a JSON body in UTF-8. Raises ``Problem``, also for an object that has a member twice.

    Python takes the last of two values. A proxy that checks the first one would have checked something else.
    """
    try:
        return json.loads(body.decode(), object_pairs_hook=_once)
    except _TwiceError as twice:
        raise Problem("malformed", f"an object has the member {str(twice)[:FIELD_MAX]!r} twice") from None
    except (ValueError, RecursionError):
        raise Problem("malformed", "the body is not JSON") from None


class _TwiceError(Exception):
    pass


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise _TwiceError(name)
            seen.add(name)
    return members


def caller_of(request: Request) -> Principal:
    caller: Principal = request.state.caller
    return caller


def _security(scope: Scope) -> dict[str, Any]:
    return {"security": []} if scope is Scope.PUBLIC else {"security": [{"bearer": []}], "x-scope": scope.value}


def _headers(headers: Mapping[str, str]) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1, "maxLength": 255}
    described = [
        {"name": name, "in": "header", "description": text, "schema": schema} for name, text in headers.items()
    ]
    return {"parameters": described} if described else {}


def _body(messages: Sequence[type[msgspec.Struct]], *, required: bool) -> dict[str, Any]:
    """Return the OpenAPI request body for a body that is one of several messages."""
    if not messages:
        return {}
    kinds = [_reference(one) for one in messages] + ([] if required else [{"type": "null"}])
    schema = kinds[0] if len(kinds) == 1 else {"oneOf": kinds}
    return {"requestBody": {"content": {"application/json": {"schema": schema}}, "required": required}}


def _reference(message: type[msgspec.Struct]) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{message.__name__}"}


def _described(answer: Any) -> dict[str, Any]:
    model, text = answer if isinstance(answer, tuple) else (answer, None)
    described: dict[str, Any] = {"description": text or (model.__doc__ or "").partition("\n")[0]}
    if isinstance(model, type) and issubclass(model, msgspec.Struct):
        described["content"] = {"application/json": {"schema": _reference(model)}}
    elif model is not None:
        described["model"] = model
    return described


def _problems(codes: Sequence[str]) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI responses for the problems of a route, by status."""
    found: dict[int | str, dict[str, Any]] = {}
    for status in sorted({STATUSES[code] for code in codes}):
        named = sorted({code for code in codes if STATUSES[code] == status})
        schema = {"allOf": [{"$ref": "#/components/schemas/Problem"}], "properties": {"code": {"enum": named}}}
        found[status] = {"description": f"`code`: {', '.join(named)}", "content": {PROBLEM_JSON: {"schema": schema}}}
    return found
