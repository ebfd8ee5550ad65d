"""Passes the trace id of a request to the jobs that it submits."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

from django.utils.decorators import sync_and_async_middleware

# The trace id of the current request.
request_trace: ContextVar[str | None] = ContextVar("ioqueue_request_trace", default=None)

LONGEST = 200


@sync_and_async_middleware
def trace_middleware(get_response: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Set a trace id for each request and its jobs: ``traceparent``, else ``X-Request-ID``, else a new one.

    Add ``"headway.integrations.django.middleware.trace_middleware"`` to ``MIDDLEWARE``.
    """
    if inspect.iscoroutinefunction(get_response):

        async def amiddleware(request: Any) -> Any:
            token = request_trace.set(trace_of(request))
            try:
                response: Awaitable[Any] = get_response(request)
                return await response
            finally:
                request_trace.reset(token)

        return amiddleware

    def middleware(request: Any) -> Any:
        token = request_trace.set(trace_of(request))
        try:
            return get_response(request)
        finally:
            request_trace.reset(token)

    return middleware


def trace_of(request: Any) -> str:
    """Return the trace id of a request. Ignores headers that are too long or not printable ASCII."""
    for header in ("traceparent", "X-Request-ID"):
        text = request.headers.get(header, "")
        if text and len(text) <= LONGEST and text.isascii() and text.isprintable():
            return str(text)
    return uuid.uuid4().hex
