"""The web service: a page, the drawings, and Headway's own interface below /headway."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Annotated, Any

from drawings import programs, queue, talker
from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import FileResponse, Response
from starlette.middleware.trustedhost import TrustedHostMiddleware

from headway import Headway, HeadwayError, State
from headway.server import client_of, headway_api

PAGE = Path(__file__).resolve().parent / "page"
PARTS = {
    "index.html": "text/html",
    "page.css": "text/css",
    "page.js": "text/javascript",
    "task.js": "text/javascript",
    "shell.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
KINDS = {"drawing.svg": "image/svg+xml", "drawing.pdf": "application/pdf"}
PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
# What a user's program has written is shown as an image or saved, and never becomes a page of this site.
DRAWING_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "private, max-age=3600",
}

app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
app.add_middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
app.mount("/headway", headway_api(queue))


@app.get("/programs")
async def list_programs() -> dict[str, Any]:
    """Return the drawing programs, and the program of the shell."""
    listed = [{"name": one.name, "title": one.title, "file": one.file, "sample": one.sample} for one in programs]
    return {"programs": listed, "shell": talker.title}


@app.get("/drawings/{job_id}/{name}")
async def get_drawing(job_id: str, name: str, queue: Annotated[Headway, Depends(client_of(queue))]) -> Response:
    """Return a file that a job has drawn, for as long as its result is kept."""
    job = queue.job(job_id)
    try:
        result = await job.aresult() if await job.astatus() == State.COMPLETED else {"files": {}}
        kind, drawing = KINDS[name], result["files"][name]
    except (HeadwayError, KeyError, TypeError):
        raise HTTPException(404, "no such drawing") from None
    content = base64.b64decode(drawing["base64"]) if isinstance(drawing, dict) else drawing
    named = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type=kind, headers=DRAWING_HEADERS | named)


@app.get("/{name}")
@app.get("/")
async def get_page(name: str = "index.html") -> Response:
    """Return the page and its parts."""
    if name not in PARTS:
        raise HTTPException(404, "no such page")
    return FileResponse(PAGE / name, media_type=PARTS[name], headers=PAGE_HEADERS)
