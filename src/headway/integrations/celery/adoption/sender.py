"""Sends the messages of adopted tasks to Headway, in the one function through which Celery sends every message."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from celery import signals  # type: ignore[import-untyped]
from celery.utils.time import maybe_iso8601, maybe_make_aware  # type: ignore[import-untyped]

from headway.client.context import current
from headway.client.links import Link
from headway.client.task import Call, Task
from headway.core.errors import ConfigError, IdempotencyConflict
from headway.core.job import JobId
from headway.core.policy.document import Policy
from headway.core.workflow import EdgeRule
from headway.integrations.celery.adoption.attempt import NextMessage, RunningAttempt, running
from headway.integrations.celery.adoption.join import SAFETY_SECONDS, bounded, make_join
from headway.integrations.celery.adoption.message import (
    CALL,
    CHORD_HEADER,
    HEADER_RESULTS,
    MessageSignature,
    TaskMessage,
    make_message,
    read_message,
    second_protocol,
    with_references,
)
from headway.integrations.celery.adoption.queues import queue_name, transport_of

if TYPE_CHECKING:
    from headway.integrations.celery.adoption.adoption import Adoption

ID_MAX = 255  # Characters of a task id.
VARIANTS_MAX = 1_000  # Combinations of task, queue, priority and time limit that are kept.
SOONEST = 0.001  # Seconds. What has expired already is stored and expires at once, as a Celery worker would see it.

_PUBLISHING = frozenset({  # What tells kombu how to publish. Other options are properties of the message.
    "declare", "retry", "serializer", "compression", "delivery_mode", "event_dispatcher", "exchange", "exchange_type",
    "timeout", "confirm_timeout", "expiration", "mandatory", "immediate",
})  # fmt: skip

Send = Callable[..., Any]


class PreviousResult:
    """Stands for the result of the step before, as an argument of a step that has not run yet."""

    def __repr__(self) -> str:
        return "<result of the task before>"


class HeaderResults:
    """Stands for the results of a chord's header. ``ids``: the ids of its jobs, nested as the results will be."""

    def __init__(self, ids: list[Any]) -> None:
        self.ids = ids

    def __repr__(self) -> str:
        return f"<results of {len(self.ids)} tasks>"


class ChainRest(NamedTuple):
    """The steps of a chain after the one that was sent, last one first."""

    steps: list[Any]
    parent_id: str
    root_id: str
    link: Link


@dataclass(slots=True)
class OpenSend:
    """The calls of a chain, group or chord that are sent together, and what the next ones wait for."""

    calls: list[Call[Any]] = field(default_factory=list)
    links: tuple[Link, ...] = ()
    header: list[Any] | None = None  # The ids of a chord's header, if these are the links.
    chords: list[tuple[Any, list[Any]]] = field(default_factory=list)  # The body and the header's ids of each chord.
    members: dict[str, list[Call[Any]]] = field(default_factory=dict)  # The header of each chord, by its body's id.
    steps: deque[ChainRest] = field(default_factory=deque)  # What is left of chains whose first task was sent.
    held: list[Any] | None = None  # The steps that follow the one that is being sent, if they are known to be held.
    published: list[Callable[[], object]] = field(default_factory=list)  # Signals for after the submit.


class JobSender:
    """Turns messages into jobs. Messages of other tasks go to the broker."""

    def __init__(self, adoption: Adoption) -> None:
        self._adoption = adoption
        self._local = threading.local()
        self._variants: dict[tuple[Any, ...], Task[Any, Any, Any]] = {}
        self._policy: Policy | None = None  # The policy for which the variants were made.

    def before(self, send: Send) -> Send:
        """Return the function that Celery calls in place of ``send``."""

        def send_task_message(producer: Any, name: str, message: Any, **options: Any) -> Any:
            first_protocol = isinstance(message.body, Mapping)
            adopted = self._adoption.adopts_call(name, message.body["kwargs"] if first_protocol else message.body[1])
            self._adoption.app.backend.call_sent(adopted=adopted)
            if adopted:
                return self.send(name, second_protocol(message) if first_protocol else message, **options)
            return send(producer, name, message, **options)

        return send_task_message

    # ------------------------------------------------------------------ one message

    def send(
        self,
        name: str,
        message: Any,
        *,
        queue: Any = None,
        routing_key: str | None = None,
        headers: dict[str, Any] | None = None,
        retry_policy: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Submit the job of a message, or note it if it belongs to an open chain, group or chord."""
        about, properties, body, _ = message
        about.update(headers or {})
        shown = queue_name(self._adoption.app, queue, routing_key)
        properties.update((name, value) for name, value in options.items() if name not in _PUBLISHING)
        attempt = running.get()
        if attempt is not None and about["id"] == attempt.job_id:
            self._run_next(attempt, name, make_message(body, about, shown, properties), about)
            return
        place = {"sender": name, "body": body, "headers": about, "exchange": "", "routing_key": shown}
        signals.before_task_publish.send(
            **place, declare=[], properties=properties, retry_policy=dict(retry_policy or {})
        )
        with self.collecting() as opened:
            self._add(opened, name, make_message(body, about, shown, properties), about)
            opened.published.append(lambda: signals.after_task_publish.send(**place))

    def _run_next(self, attempt: RunningAttempt, name: str, message: TaskMessage, about: dict[str, Any]) -> None:
        """Note the message of the running job itself: ``self.retry`` or ``self.replace``."""
        due = _moment(self._adoption.app, about.get("eta"))
        after = 0.0 if due is None else max(0.0, (due - datetime.now(UTC)).total_seconds())
        now, context = attempt.message, attempt.context
        if name == attempt.task and not _is_replacement(attempt, message.headers):
            attempt.retry_after = after
            if message.args != list(now.args) or message.kwargs != now.kwargs:
                kept = attempt.kept or NextMessage(name, now)
                attempt.next = kept._replace(message=now._replace(args=message.args, kwargs=message.kwargs), waker=None)
            return
        with self.collecting() as opened:
            links, waker = opened.links, None
            if links:
                join = make_join(self._adoption, links, attempt.job_id)
                opened.calls.append(join)
                waker, after = str(join.new.job_id), SAFETY_SECONDS
            message, steps = self._split(opened, message, attempt)
            message = _after_header(message, opened.header)
            message = _placed(message, {HEADER_RESULTS: links[0].source_id} if links else None)[0]
            attempts = context.attempt - context.crashes - 1  # This attempt is not counted.
            attempt.next = NextMessage(name, message, waker, context.epoch, attempts)
            attempt.replaced_after = after
            if steps:
                opened.steps.append(_chain_rest(steps, attempt.job_id, about, Link(attempt.job_id)))

    def _add(self, opened: OpenSend, name: str, message: TaskMessage, about: dict[str, Any]) -> None:
        """Add the call of a message, and note the steps of its chain."""
        attempt = running.get()
        message, steps = self._split(opened, message, attempt)
        call = self._call(name, _after_header(message, opened.header), about, opened.links)
        if attempt is not None and any(link.source == attempt.job_id for link in opened.links):
            call = call.inherit(attempt.context.lane, attempt.context.tenant)
            if call.new.tenant != attempt.context.tenant and opened.links[0].rule is EdgeRule.RUN:
                call = call._replace(links=())  # An errback of another tenant cannot wait for this job.
        opened.calls.append(call)
        chord = message.embed.get("chord")
        if chord is not None and (body_id := chord["options"].get("task_id")) in opened.members:
            opened.members[body_id].append(call)
        if steps:
            opened.steps.append(_chain_rest(steps, call.new.job_id, about, Link(call)))

    def _split(
        self, opened: OpenSend, message: TaskMessage, attempt: RunningAttempt | None
    ) -> tuple[TaskMessage, list[Any] | None]:
        """Return a message without the steps of its chain that are sent with it, and these steps."""
        chain = message.embed.get("chain")
        steps = chain if chain is opened.held else canvas_steps(self._adoption, chain) if chain else None
        if steps:
            return message._replace(embed={k: v for k, v in message.embed.items() if k != "chain"}), steps
        if chain and attempt is not None and any(_id_of(step) == attempt.job_id for step in chain):
            raise ConfigError(
                f"task {attempt.task}: self.replace is refused: all tasks of a chain that replaces a task must be "
                "adopted, without a countdown and without an apply_async of their own"
            )
        return message, None

    def add_steps(self, opened: OpenSend) -> None:
        """Add the steps of all chains that were noted. One step is sent after the other, so chains may be long."""
        before, header, opened.header = opened.links, opened.header, None
        try:
            while opened.steps:
                steps, parent_id, root_id, link = opened.steps.popleft()
                opened.links, opened.held = (link,), steps[:-1]
                steps[-1].apply_async((PreviousResult(),), chain=opened.held, parent_id=parent_id, root_id=root_id)
        finally:
            opened.links, opened.header, opened.held = before, header, None

    def _call(self, name: str, message: TaskMessage, about: dict[str, Any], links: tuple[Link, ...]) -> Call[Any]:
        task = self._using(name, message, about)
        signature = task.signature
        assert isinstance(signature, MessageSignature)  # noqa: S101 - the adoption declares no other
        message, refers = _placed(message, {"$out": 0})
        values = signature.bind_loosely(message.args, message.kwargs)
        values[CALL] = message
        terms = task.terms
        payload = signature.encode(values, largest=terms.largest)
        new = terms.new_job(values, with_references(payload) if refers else payload)
        return Call(task, new._replace(job_id=_job_id(name, about["id"])), values, terms, links)

    def _using(self, name: str, message: TaskMessage, about: dict[str, Any]) -> Task[Any, Any, Any]:
        """Return the task with the options of a call. Calls without moments of their own share it."""
        adoption = self._adoption
        task = adoption.task(name)
        hard = (about.get("timelimit") or (None, None))[0]
        policy, key = adoption.headway.policy, (task, message.queue, message.priority, hard)
        if policy is not self._policy or len(self._variants) > VARIANTS_MAX:
            self._variants, self._policy = {}, policy
        known = self._variants.get(key)
        if known is None:
            lane = adoption.queue_map.lane(message.queue, message.priority, policy, transport_of(adoption.app))
            known = task.using(priority=lane, needs=adoption.queue_map.needs(message.queue), timeout=hard)
            self._variants[key] = known
        due, expires = _moment(adoption.app, about.get("eta")), _moment(adoption.app, about.get("expires"))
        if due is None and expires is None:
            return known
        left = None if expires is None else max(SOONEST, (expires - datetime.now(UTC)).total_seconds())
        return known.using(run_after=due, expires=left)

    # ------------------------------------------------------------------ several messages together

    @property
    def opened(self) -> OpenSend | None:
        """The chain, group or chord that this thread is sending."""
        found: OpenSend | None = getattr(self._local, "opened", None)
        return found

    @contextmanager
    def collecting(self) -> Iterator[OpenSend]:
        """Collect calls and submit them together at the end of the outermost block, all or none."""
        if self.opened is not None:
            yield self.opened
            return
        opened = self._local.opened = OpenSend()
        try:
            yield opened
            self.add_steps(opened)
        finally:
            self._local.opened = None
        self._submit(opened)
        for publish in opened.published:
            publish()

    @contextmanager
    def after_header(self, calls: Sequence[Call[Any]], ids: list[Any]) -> Iterator[None]:
        """Make the calls of this block wait for the header of a chord. ``ids``: those of the header's results."""
        opened = self.opened
        if opened is None:
            raise RuntimeError("calls can wait only inside collecting()")
        before = opened.links, opened.header
        opened.links = bounded(self._adoption, [Link(call, EdgeRule.RUN) for call in calls])
        opened.header = ids
        try:
            yield
        finally:
            opened.links, opened.header = before

    @contextmanager
    def after_job(self, job_id: str) -> Iterator[None]:
        """Make the calls of this block wait until a running job has ended, in any state."""
        with self.collecting() as opened:
            before = opened.links, opened.header
            opened.links, opened.header = (Link(job_id, EdgeRule.RUN),), None
            try:
                yield
            finally:
                opened.links, opened.header = before

    def _submit(self, opened: OpenSend) -> None:
        """Submit calls together. An id may be used again once its first job has ended, as on Celery."""
        calls = opened.calls
        try:
            self._submit_calls(calls)
        except IdempotencyConflict:
            # A job that runs again after a crash sends the same tasks again. The store has them from the first time.
            context = current.get()
            if context is not None and context.crashes:
                return
            if self._adoption.app.backend.remove_all([call.new.job_id for call in calls]):
                self._submit_calls(calls)
            elif not self._are_repeats(calls):
                raise

    def _submit_calls(self, calls: list[Call[Any]]) -> None:
        submitter = self._adoption.headway.submitter
        if any(call.links for call in calls):
            submitter.submit_graph_blocking(calls)
        elif len(calls) == 1:
            submitter.submit_blocking(calls)
        elif calls:
            submitter.submit_many_blocking(calls)

    def _are_repeats(self, calls: list[Call[Any]]) -> bool:
        """Return whether the store has all calls already, with the same arguments."""
        jobs = self._adoption.app.backend.find_jobs([call.new.job_id for call in calls])
        return all(
            job is not None and job.task == call.task.name and _same_arguments(job.payload, call.new.payload)
            for call, job in zip(calls, jobs, strict=True)
        )


def _same_arguments(first: bytes, second: bytes) -> bool:
    one, other = read_message(first), read_message(second)
    return one.args == other.args and one.kwargs == other.kwargs


def canvas_steps(adoption: Adoption, chain: Sequence[Any]) -> list[Any] | None:
    """Return the steps of a chain as signatures if Headway can hold them until they are due, or None.

    Steps that wait for a moment, that are not adopted, or whose class changes ``apply_async`` are sent by the worker
    when the step before has completed, as Celery does.
    """
    from headway.integrations.celery.adoption.canvas import can_hold, signatures

    steps = signatures(adoption.app, chain)
    return steps if all(can_hold(adoption, step) for step in steps) else None


def _after_header(message: TaskMessage, header: list[Any] | None) -> TaskMessage:
    """Return a message that names the header of its chord, even if it takes no result of it."""
    if header is None or any(isinstance(value, HeaderResults) for value in message.args):
        return message
    return message._replace(embed={**message.embed, CHORD_HEADER: header})


def _placed(message: TaskMessage, previous: Any) -> tuple[TaskMessage, bool]:
    """Return a message with JSON in the place of results that do not exist yet, and whether it has the one before."""
    refers = any(isinstance(value, PreviousResult) for value in message.args)
    if not refers and not any(isinstance(value, HeaderResults) for value in message.args):
        return message, False

    def placed(value: Any) -> Any:
        if isinstance(value, PreviousResult):
            return previous
        return {HEADER_RESULTS: value.ids} if isinstance(value, HeaderResults) else value

    headers = {name: value for name, value in message.headers.items() if name != "argsrepr"}
    return message._replace(args=[placed(value) for value in message.args], headers=headers), refers


def _chain_rest(steps: list[Any], parent_id: str, about: Mapping[str, Any], link: Link) -> ChainRest:
    return ChainRest(steps, parent_id, about.get("root_id") or parent_id, link)


def _is_replacement(attempt: RunningAttempt, headers: Mapping[str, Any]) -> bool:
    """Return whether a message of the running job is one of ``self.replace``, which counts how often it happened."""
    name = "replaced_task_nesting"
    return int(headers.get(name) or 0) > int(attempt.message.headers.get(name) or 0)


def _id_of(step: Any) -> Any:
    """Return the id of a task in a chain, or of a chord's body."""
    options: Mapping[str, Any] = step.get("options") or {}
    body = (step.get("kwargs") or {}).get("body") if step.get("subtask_type") == "chord" else None
    return options.get("task_id") if body is None else _id_of(body)


def _job_id(name: str, task_id: Any) -> JobId:
    if not isinstance(task_id, str) or not 0 < len(task_id) <= ID_MAX or "\0" in task_id:
        raise ConfigError(f"task {name}: task_id must be text of 1 to {ID_MAX} characters, got {task_id!r}")
    if task_id.startswith("batch-"):
        raise ConfigError(f"task {name}: task_id must not begin with 'batch-', which marks batches, got {task_id!r}")
    return JobId(task_id)


def _moment(app: Any, text: str | None) -> datetime | None:
    """Return the moment that a header has, with its time zone."""
    if not text:
        return None
    read: Any = maybe_iso8601(text)
    moment: datetime = maybe_make_aware(read, app.timezone)
    return moment.astimezone(UTC)
