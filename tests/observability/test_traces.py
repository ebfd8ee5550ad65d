"""Traces from the submit through the store to the run: they follow the conventions, and cost nothing if not used."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.util._once import Once

from headway import Context, Headway, Retry, Snooze, Worker
from headway.client.links import Reference
from headway.observability import traces
from headway.observability.traces import parse_traceparent, shown_trace, taken_trace

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Set up tracing as an application does, and remove it afterwards."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())
    trace.set_tracer_provider(provider)
    traces.forget()
    yield exporter
    provider.shutdown()
    monkeypatch.undo()
    traces.forget()


@pytest.fixture
def app(tmp_path: Path) -> Headway:
    return Headway(f"sqlite:///{tmp_path}/headway.db?synchronous=normal", heartbeat=1, dead_after=5)


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


def one(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    [span] = named(spans, name)
    return span


def trace_id(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.trace_id:032x}"


def span_id(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


# ---------------------------------------------------------------------- the traceparent


@pytest.mark.parametrize(
    "text, readable",
    [
        pytest.param(PARENT, True, id="as the standard shows it"),
        pytest.param(f"cc{PARENT[2:]}-what-comes-later", True, id="a later version may say more"),
        pytest.param(f"{PARENT}-more", False, id="this version says no more"),
        pytest.param(f"ff{PARENT[2:]}", False, id="a version that never is"),
        pytest.param(PARENT.upper(), False, id="in capitals"),
        pytest.param(f"00-{'0' * 32}-{SPAN}-01", False, id="no trace"),
        pytest.param(f"00-{TRACE}-{'0' * 16}-01", False, id="no span"),
        pytest.param(TRACE, False, id="a trace id alone"),
        pytest.param("x" * 55, False, id="as long"),
        pytest.param("", False, id="nothing"),
        pytest.param(None, False, id="none"),
    ],
)
def test_a_traceparent_is_read_by_the_standard(text: str | None, readable: bool) -> None:
    assert (parse_traceparent(text) is not None) is readable
    assert (taken_trace(text) is not None) is readable


def test_people_see_the_trace_id_alone() -> None:
    # R5.29
    assert shown_trace(PARENT, "j") == TRACE
    assert shown_trace("order-77", "j") == "order-77"
    assert shown_trace("x" * 55, "j") == "x" * 55
    assert shown_trace(None, "0198-aa") == "0198aa"


# ---------------------------------------------------------------------- without tracing


def test_a_process_that_does_not_trace_never_loads_opentelemetry() -> None:
    code = (
        "import sys, headway; from headway.observability import traces; app = headway.Headway('memory://');"
        "app.task(name='t')(lambda: None).enqueue(); assert not traces.active();"
        "assert not any(name.startswith('opentelemetry') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


async def test_without_a_provider_nothing_is_written_on_a_job(app: Headway) -> None:
    traces.forget()
    assert not traces.active()

    @app.task
    async def work() -> None: ...

    async with app:
        assert (await (await work.aenqueue()).arecord()).trace_id is None


# ---------------------------------------------------------------------- with it


async def test_a_job_is_one_trace_from_the_caller_to_the_run(app: Headway, spans: InMemorySpanExporter) -> None:
    # R5.29
    seen: dict[str, Any] = {}

    @app.task(name="mail.send", context=True, priority="high")
    async def send(context: Context, to: str) -> None:
        seen["trace"], seen["traceparent"] = context.trace_id, context.traceparent
        seen["current"] = trace.get_current_span()

    async with app, Worker(app):
        with trace.get_tracer("test").start_as_current_span("request"):
            job = await send.aenqueue("ann")
        await job.aresult(timeout=20)
        kept = (await job.arecord()).trace_id
    request, sent, ran = one(spans, "request"), one(spans, "send mail.send"), one(spans, "process mail.send")
    assert {trace_id(span) for span in (request, sent, ran)} == {seen["trace"]}
    assert sent.parent is not None
    assert sent.parent.span_id == span_id(request)
    assert ran.parent is not None
    assert ran.parent.span_id == span_id(sent)
    assert kept == seen["traceparent"]
    assert kept is not None
    assert kept[:-2] == f"00-{trace_id(sent)}-{span_id(sent):016x}-"  # Then the flags.
    assert seen["current"].get_span_context().span_id == span_id(ran)
    assert (sent.kind, ran.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    told = dict(ran.attributes or {})
    assert told.pop("messaging.client.id")
    assert told == {
        "messaging.system": "headway",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "mail.send",
        "messaging.message.id": job.id,
        "headway.lane": "high",
        "headway.attempt": 1,
        "headway.trace_id": seen["trace"],
    }
    told = dict(sent.attributes or {})
    assert told.pop("messaging.message.body.size")
    assert told == {
        "messaging.system": "headway",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "mail.send",
        "messaging.message.id": job.id,
        "headway.lane": "high",
    }


async def test_a_job_submitted_by_a_job_is_of_the_same_trace(app: Headway, spans: InMemorySpanExporter) -> None:
    # R5.29
    @app.task(name="inner")
    def inner() -> None: ...

    @app.task(name="outer")
    async def outer() -> None:
        await (await inner.aenqueue()).aresult(timeout=20)

    async with app, Worker(app):
        await (await outer.aenqueue()).aresult(timeout=20)
    sent, ran = one(spans, "send inner"), one(spans, "process outer")
    assert sent.parent is not None
    assert sent.parent.span_id == span_id(ran)
    assert len({trace_id(span) for span in spans.get_finished_spans()}) == 1


async def test_a_trace_that_came_with_a_request_goes_on(app: Headway, spans: InMemorySpanExporter) -> None:
    @app.task(name="work")
    async def work() -> None: ...

    async with app, Worker(app):
        job = await work.using(trace_id=PARENT).aenqueue()
        await job.aresult(timeout=20)
    sent = one(spans, "send work")
    assert sent.parent is not None
    assert (trace_id(sent), f"{sent.parent.span_id:016x}") == (TRACE, SPAN)
    assert trace_id(one(spans, "process work")) == TRACE


async def test_a_trace_id_that_somebody_chose_stays(app: Headway, spans: InMemorySpanExporter) -> None:
    @app.task(name="work", context=True)
    async def work(context: Context) -> str:
        return context.trace_id

    async with app, Worker(app):
        job = await work.using(trace_id="order-77").aenqueue()
        assert await job.aresult(timeout=20) == "order-77"
    assert (one(spans, "process work").attributes or {})["headway.trace_id"] == "order-77"


async def test_every_attempt_has_a_span_and_those_that_failed_say_so(app: Headway, spans: InMemorySpanExporter) -> None:
    tries: list[int] = []

    @app.task(name="shaky", retry=Retry(base=0), context=True)
    async def shaky(context: Context, password: str) -> None:
        tries.append(context.attempt)
        if len(tries) == 1:
            raise ValueError(f"wrong password {password}")
        if len(tries) == 2:
            raise Snooze(0)

    async with app, Worker(app):
        await (await shaky.aenqueue("hunter2")).aresult(timeout=20)
    failed, snoozed, done = named(spans, "process shaky")
    assert [span.status.status_code for span in (failed, snoozed, done)] == [
        StatusCode.ERROR, StatusCode.UNSET, StatusCode.UNSET,
    ]  # fmt: skip
    assert (failed.attributes or {})["error.type"] == "ValueError"
    assert (snoozed.attributes or {})["headway.outcome"] == "Snooze"
    assert [(span.attributes or {})["headway.attempt"] for span in (failed, snoozed, done)] == [1, 2, 2]
    assert len({trace_id(span) for span in spans.get_finished_spans()}) == 1
    assert "hunter2" not in "".join(span.to_json() for span in spans.get_finished_spans())


async def test_arguments_are_on_a_span_only_if_wanted_and_never_secrets(
    tmp_path: Path, spans: InMemorySpanExporter
) -> None:
    app = Headway(f"sqlite:///{tmp_path}/headway.db?synchronous=normal", log_args=True)

    @app.task(name="login", redact=["iban"])
    async def login(user: str, password: str, iban: str) -> None: ...

    async with app, Worker(app):
        await (await login.aenqueue("ann", "hunter2", "DE99")).aresult(timeout=20)
    shown = str((one(spans, "process login").attributes or {})["headway.arguments"])
    assert '"user": "ann"' in shown
    assert "hunter2" not in shown
    assert "DE99" not in shown


async def test_a_batch_is_one_span(app: Headway, spans: InMemorySpanExporter) -> None:
    @app.task(name="work")
    async def work() -> None: ...

    async with app:
        jobs = await app.aenqueue_many(work.call() for _ in range(3))
        kept = {str((await job.arecord()).trace_id)[:-2] for job in jobs}
    sent = one(spans, "send work")
    assert (sent.attributes or {})["messaging.batch.message_count"] == 3
    assert kept == {f"00-{trace_id(sent)}-{span_id(sent):016x}-"}


def test_blocking_submits_are_traced_too(app: Headway, spans: InMemorySpanExporter) -> None:
    @app.task(name="work")
    def work() -> None: ...

    with trace.get_tracer("test").start_as_current_span("request"):
        for _ in range(2):
            work.enqueue()
    app.close()
    assert {trace_id(span) for span in named(spans, "send work")} == {trace_id(one(spans, "request"))}


async def test_a_submit_that_failed_says_so(app: Headway, spans: InMemorySpanExporter) -> None:
    @app.task(name="work")
    async def work(number: int) -> None: ...

    async with app:
        await work.using(idempotency_key="k").aenqueue(1)
        with pytest.raises(Exception, match="idempotency key"):
            await work.using(idempotency_key="k").aenqueue(2)
    _, failed = named(spans, "send work")
    assert failed.status.status_code is StatusCode.ERROR


async def test_the_run_of_a_dependant_links_to_the_jobs_whose_results_it_takes(
    app: Headway, spans: InMemorySpanExporter
) -> None:
    @app.task(name="fetch")
    async def fetch(number: int) -> int:
        return number

    @app.task(name="add")
    async def add(a: int, b: list[int]) -> int:
        return a + sum(b)

    async with app:
        first = await fetch.using(trace_id=PARENT).aenqueue(1)
        chosen = await fetch.using(trace_id="order-77").aenqueue(4)
        second = fetch.call(2)
        total = await add.call(second.out, [Reference(first.id), Reference(chosen.id)]).aenqueue()  # type: ignore[list-item]
        async with Worker(app):
            assert await total.aresult(timeout=10) == 7
    links = {link.attributes["messaging.message.id"]: link.context for link in one(spans, "process add").links}  # type: ignore[index]
    sent = next(span for span in named(spans, "send 2 tasks"))
    assert {job_id: f"{context.trace_id:032x}" for job_id, context in links.items()} == {
        second.new.job_id: trace_id(sent),
        first.id: TRACE,
    }
    assert links[first.id].is_remote
    assert [list(span.links) for span in named(spans, "process fetch")] == [[], [], []]
