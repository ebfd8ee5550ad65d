"""The OpenAPI document as JSON and as a page without scripts or external files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.responses import JSONResponse, Response

from headway.server.auth import Scope

STYLE = Path(__file__).with_name("docs.css").read_text()


def add_docs(api: FastAPI) -> None:
    """Serve ``/openapi.json`` and ``/docs``."""

    async def schema() -> Response:
        return JSONResponse(api.openapi())

    async def page() -> Response:
        return Response(_page(api.openapi()), media_type="text/html; charset=utf-8")

    async def style() -> Response:
        return Response(STYLE, media_type="text/css")

    for path, function in (("/openapi.json", schema), ("/docs", page), ("/docs.css", style)):
        api.add_api_route(path, function, include_in_schema=False, openapi_extra={"x-scope": Scope.PUBLIC.value})


def _page(schema: dict[str, Any]) -> str:
    families: dict[str, list[str]] = {}
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            for tag in operation.get("tags", ["other"])[:1]:
                families.setdefault(tag, []).append("".join(_operation(schema, path, method, operation)))
    body = "".join(f"<h2>{escape(tag)}</h2>{''.join(parts)}" for tag, parts in families.items())
    about = "".join(f"<p>{_text(part)}</p>" for part in schema["info"]["description"].split("\n\n"))
    title = f"{escape(schema['info']['title'])} {escape(schema['info']['version'])}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="docs.css"></head>'
        f'<body><h1>{title}</h1>{about}<p><a href="openapi.json">openapi.json</a></p>{body}</body></html>'
    )


def _operation(schema: dict[str, Any], path: str, method: str, operation: dict[str, Any]) -> Iterator[str]:
    old = ' class="old"' if operation.get("deprecated") else ""
    yield f'<details><summary><span class="method">{method.upper()}</span><code{old}>{escape(path)}</code> '
    scope = escape(operation.get("x-scope", "public"))
    yield f'{escape(operation.get("summary", ""))}<span class="scope">{scope}</span>'
    yield f"</summary><p>{_text(operation.get('description', ''))}</p>"
    parameters = operation.get("parameters", [])
    if parameters:
        yield "<table>"
        for parameter in parameters:
            text = parameter.get("description", "")
            must = "required" if parameter.get("required") else ""
            yield f"<tr><td><code>{escape(parameter['name'])}</code></td><td>{escape(parameter['in'])}</td>"
            yield f"<td>{must}</td><td>{_text(text)}</td></tr>"
        yield "</table>"
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if body:
        yield f"<p>Body</p><pre>{escape(_sketch(schema, body))}</pre>"
        yield from _members(schema, body)
    yield "<table>"
    for status, response in operation["responses"].items():
        yield f"<tr><td><code>{escape(str(status))}</code></td><td>{_text(response.get('description', ''))}</td></tr>"
    yield "</table></details>"


def _text(text: str) -> str:
    """Return text as HTML, with code for what is between backticks."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _members(schema: dict[str, Any], shape: dict[str, Any]) -> Iterator[str]:
    """Yield a table of the members of a body, if any of them has a description."""
    found = _resolved(schema, shape.get("items", shape))
    described = {name: part.get("description", "") for name, part in found.get("properties", {}).items()}
    if any(described.values()):
        yield "<table>"
        for name, text in described.items():
            must = "required" if name in found.get("required", ()) else ""
            yield f"<tr><td><code>{escape(name)}</code></td><td>{must}</td><td>{_text(text)}</td></tr>"
        yield "</table>"


def _resolved(schema: dict[str, Any], shape: dict[str, Any]) -> dict[str, Any]:
    name = shape.get("$ref", "").rpartition("/")[2]
    found: dict[str, Any] = schema["components"]["schemas"].get(name, shape)
    return found


def _sketch(schema: dict[str, Any], shape: dict[str, Any]) -> str:
    """Return an example of a body, or the names of its members."""
    found = _resolved(schema, shape)
    examples = found.get("examples") or shape.get("examples")
    if examples:
        return json.dumps(examples[0], indent=2)
    return json.dumps({key: part.get("type", "…") for key, part in found.get("properties", {}).items()}, indent=2)
