"""Traces jobs by OpenTelemetry's messaging conventions. A process that does not trace pays nothing.

The trace id of a job holds the W3C ``traceparent`` of the span that sent the job. People and logs see only its 32-digit
trace id. Headway uses OpenTelemetry only in processes where the app has imported it and set up a provider.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from headway.core.errors import RateLimited, RetryAfter, Snooze
from headway.core.job import NewJob

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanContext, Tracer

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_CHECK_EVERY = 1.0  # Seconds between checks whether the app has set up a provider.
_ARGUMENTS_MAX = 2_000  # Characters of arguments on a span, if the settings ask for arguments.

_checked_at = 0.0
_found: Tracer | None = None
_provider: object = None


def parse_traceparent(text: str | None) -> tuple[int, int, int] | None:
    """Return trace id, span id and flags of a traceparent, or None if it is malformed, as the standard asks."""
    found = _TRACEPARENT.fullmatch(text) if text and len(text) >= 55 else None
    if found is None or (found[4] and text and text.startswith("00")):
        return None
    return int(found[1], 16), int(found[2], 16), int(found[3], 16)


def taken_trace(header: str | None) -> str | None:
    """Return the part of a request's ``traceparent`` that a job stores, or None if it is malformed."""
    return header[:55] if header is not None and parse_traceparent(header) is not None else None


def shown_trace(trace_id: str | None, job_id: str) -> str:
    """Return the trace id that people and logs see.

    It is the 32 digits of a traceparent, another trace id unchanged, or the digits of the job id if none is stored.
    """
    if trace_id is None:
        return job_id.replace("-", "")
    return trace_id[3:35] if len(trace_id) == 55 and parse_traceparent(trace_id) is not None else trace_id


def active() -> bool:
    """Return whether this process traces: OpenTelemetry is in use, and a provider is set up."""
    return "opentelemetry.trace" in sys.modules and _tracer() is not None


def _tracer() -> Tracer | None:
    global _checked_at, _found, _provider
    now = time.monotonic()
    if now - _checked_at < _CHECK_EVERY and _checked_at:  # Asking for a missing provider takes microseconds.
        return _found
    from opentelemetry import trace

    provider = trace.get_tracer_provider()
    if isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider)):
        _found = _provider = None
    elif provider is not _provider:
        from headway.version import __version__

        _found, _provider = provider.get_tracer("headway", __version__), provider
    _checked_at = now
    return _found


def forget() -> None:
    """Check for a provider at the next call, because one was set up or removed."""
    global _checked_at
    _checked_at = 0.0


class SubmitSpan:
    """Puts one span around a submit. If this process traces, ``jobs`` carry its context inside the block.

    A job keeps a trace id that a client chose.
    """

    def __init__(self, jobs: Sequence[NewJob]) -> None:
        self.jobs = jobs
        self._span: Span | None = None

    def __enter__(self) -> Sequence[NewJob]:
        tracer = _tracer() if "opentelemetry.trace" in sys.modules else None
        if tracer is not None and self.jobs:
            self._begin(tracer)
        return self.jobs

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._span is not None:
            if error is not None:
                _mark_failed(self._span, error)
            self._span.end()

    def _begin(self, tracer: Tracer) -> None:
        from opentelemetry.trace import SpanKind

        jobs = self.jobs
        tasks = sorted({job.task for job in jobs})
        name = tasks[0] if len(tasks) == 1 else f"{len(tasks)} tasks"
        first = jobs[0]
        given = first.trace_id if len({job.trace_id for job in jobs}) == 1 else None
        attributes: dict[str, Any] = {
            "messaging.system": "headway",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": name,
        }
        if len(jobs) > 1:
            attributes["messaging.batch.message_count"] = len(jobs)
        else:
            attributes |= {"messaging.message.id": first.job_id, "headway.lane": first.lane}
            attributes["messaging.message.body.size"] = len(first.payload)
        parent = _parent(given)
        self._span = tracer.start_span(f"send {name}", context=parent, kind=SpanKind.PRODUCER, attributes=attributes)
        sent = self._span.get_span_context()
        if not sent.is_valid:
            return
        carried = f"00-{sent.trace_id:032x}-{sent.span_id:016x}-{int(sent.trace_flags):02x}"
        # The span may replace a job's trace id if the job has none, or one of the same trace.
        self.jobs = [
            job._replace(trace_id=carried)
            if job.trace_id is None or shown_trace(job.trace_id, "") == carried[3:35]
            else job
            for job in jobs
        ]


def _parent(given: str | None) -> Context | None:
    """Return the context that came with a job, or None if the current span has the same trace and so is nearer."""
    from opentelemetry import trace

    parts = parse_traceparent(given)
    current = trace.get_current_span().get_span_context()
    return None if parts is None or current.trace_id == parts[0] else _context_of(given)


class TracedRun(Protocol):
    """The facts of a running job that a span records."""

    @property
    def job_id(self) -> str: ...
    @property
    def task(self) -> str: ...
    @property
    def lane(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def trace_id(self) -> str: ...
    @property
    def traceparent(self) -> str | None: ...
    @property
    def sources(self) -> Mapping[str, str]: ...


def around_runs(
    worker_id: str, arguments: Callable[[Any], Mapping[str, Any]] | None = None
) -> Callable[[Any, Callable[..., Awaitable[Any]]], Awaitable[Any]]:
    """Build the middleware that puts a span around each run. ``arguments`` returns the arguments to show, if any."""

    async def traced(run: TracedRun, call_next: Callable[..., Awaitable[Any]]) -> Any:
        tracer = _tracer()
        if tracer is None:
            return await call_next()
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind

        attributes: dict[str, Any] = {
            "messaging.system": "headway",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": run.task,
            "messaging.message.id": run.job_id,
            "messaging.client.id": worker_id,
            "headway.lane": run.lane,
            "headway.attempt": run.attempt,
            "headway.trace_id": run.trace_id,
        }
        if arguments is not None:
            attributes["headway.arguments"] = json.dumps(arguments(run), default=str)[:_ARGUMENTS_MAX]
        with tracer.start_as_current_span(
            f"process {run.task}",
            context=_context_of(run.traceparent) or Context(),  # Never the context of the worker's start.
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=_links_to(run.sources),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                return await call_next()
            except (Snooze, RateLimited) as later:
                span.set_attribute("headway.outcome", type(later).__name__)
                raise
            except BaseException as error:
                _mark_failed(span, error)
                if isinstance(error, RetryAfter):
                    span.set_attribute("headway.outcome", "RetryAfter")
                raise

    return traced


def _context_of(carried: str | None) -> Context | None:
    """Return the context of a traceparent, or None, which means the current context, if it is missing or malformed."""
    remote = _span_of(carried)
    if remote is None:
        return None
    from opentelemetry import trace

    return trace.set_span_in_context(trace.NonRecordingSpan(remote))


def _links_to(sources: Mapping[str, str]) -> list[Link]:
    """Return links to the spans that sent the jobs whose results a job takes. Each names its job."""
    if not sources:
        return []
    from opentelemetry.trace import Link

    found = ((job_id, _span_of(carried)) for job_id, carried in sources.items())
    return [Link(span, {"messaging.message.id": job_id}) for job_id, span in found if span is not None]


def _span_of(carried: str | None) -> SpanContext | None:
    """Return the span that a traceparent names, or None if it is missing or malformed."""
    parts = parse_traceparent(carried)
    if parts is None:
        return None
    from opentelemetry import trace

    trace_id, span_id, flags = parts
    return trace.SpanContext(trace_id, span_id, is_remote=True, trace_flags=trace.TraceFlags(flags))


def _mark_failed(span: Span, error: BaseException) -> None:
    """Set the error status of a span, without the message, which may hold secrets and stays with the job."""
    from opentelemetry.trace import Status, StatusCode

    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    remote_error = getattr(getattr(error, "ending", None), "error", None)  # The error was raised in another process.
    name = getattr(remote_error, "type", name)
    span.set_attribute("error.type", name)
    span.set_status(Status(StatusCode.ERROR, name))
