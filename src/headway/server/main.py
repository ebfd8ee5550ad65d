"""A server and a worker in one process, as in fasdis: ``uvicorn headway.server.main:app --port 8000``.

HEADWAY_APP names the app. Without it the demo tasks run. The worker runs on the same loop, with three slots unless
another number is set. One of them is reserved for high.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

from headway.client.app import Headway
from headway.client.loading import load_app
from headway.client.settings import gather
from headway.server.api import headway_api
from headway.worker.embedded import Worker

SLOTS = 3


def create() -> FastAPI:
    """Build the application, with a worker that runs as long as it does."""
    app = _app()
    if "slots" not in gather():
        app.configure(slots=SLOTS)
    api = headway_api(app)
    serve = api.router.lifespan_context

    @asynccontextmanager
    async def serve_and_work(scope: Any) -> AsyncIterator[Any]:
        async with serve(scope) as state, Worker(app) as worker:
            api.state.service.instances.rename(worker.worker_id)
            yield state

    api.router.lifespan_context = serve_and_work
    return api


def _app() -> Headway:
    path = os.environ.get("HEADWAY_APP")
    if path:
        return load_app(path)
    from headway.demo import app

    return app


def __getattr__(name: str) -> Any:
    """Build ``app`` on first access, so that importing this module opens and starts nothing."""
    if name != "app":
        raise AttributeError(name)
    globals()["app"] = made = create()
    return made
