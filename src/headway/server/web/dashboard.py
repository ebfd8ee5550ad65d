"""Serve the dashboard at ``/ui/``: one page for all addresses below it, and its files under a digest of them."""

from __future__ import annotations

import gzip
from html import escape
from mimetypes import guess_type
from pathlib import Path
from typing import NamedTuple

from fastapi import FastAPI, Request
from starlette.responses import RedirectResponse, Response

from headway.server.auth import Scope
from headway.server.guard import IMMUTABLE
from headway.server.problems import Problem

STATIC = Path(__file__).with_name("static")
INDEX = "index.html"
NOT_BUILT = "<!doctype html><title>Headway</title><p>The dashboard is not built in this checkout. Run: make web"


class _StaticFile(NamedTuple):
    body: bytes
    compressed: bytes
    media_type: str


def add_dashboard(api: FastAPI, label: str | None = None) -> None:
    """Serve ``/ui/``, and send browsers there from ``/``. ``label``: the environment's name, which every page shows."""
    page = (STATIC / INDEX).read_text() if (STATIC / INDEX).is_file() else NOT_BUILT
    page = page.replace("{label}", escape(label or ""))
    files = _read_files()

    async def show_home(request: Request) -> Response:
        if "text/html" not in request.headers.get("accept", ""):
            raise Problem("not_found", "there is nothing at this address; /docs lists what is")
        return RedirectResponse("ui/")

    async def show_folder(request: Request) -> Response:
        return RedirectResponse("ui/")

    async def show_page(request: Request, path: str) -> Response:
        """Return a file, or the page with addresses relative to this one: the guard's policy allows no <base>."""
        if (file := files.get(path)) is not None:
            return _file_response(request, file)
        if path.endswith((".js", ".css", ".svg")):
            raise Problem("not_found", "this file belongs to another release of the dashboard; load the page again")
        body = page.replace("{root}", "../" * path.count("/") or "./")
        return Response(body, media_type="text/html; charset=utf-8")

    for address, function in (("/", show_home), ("/ui", show_folder), ("/ui/{path:path}", show_page)):
        scope = {"x-scope": Scope.PUBLIC.value}
        api.add_api_route(address, function, include_in_schema=False, openapi_extra=scope)


def _read_files() -> dict[str, _StaticFile]:
    found = {}
    for file in sorted(STATIC.glob("*/*")):
        body = file.read_bytes()
        media_type = guess_type(file.name)[0] or "application/octet-stream"
        compressed = gzip.compress(body, mtime=0)
        found[file.relative_to(STATIC).as_posix()] = _StaticFile(body, compressed, media_type)
    return found


def _file_response(request: Request, file: _StaticFile) -> Response:
    headers = {"Cache-Control": IMMUTABLE, "Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(file.compressed, headers=headers | {"Content-Encoding": "gzip"}, media_type=file.media_type)
    return Response(file.body, headers=headers, media_type=file.media_type)
