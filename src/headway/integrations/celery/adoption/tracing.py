"""Runs an adopted task through Celery's own tracer, so that hooks, signals and callbacks are Celery's own code."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from celery import states  # type: ignore[import-untyped]
from celery.app import trace  # type: ignore[import-untyped]
from celery.exceptions import (  # type: ignore[import-untyped]
    ChordError,
    Ignore,
    Reject,
    SoftTimeLimitExceeded,
    TaskRevokedError,
)

from headway.client.context import Context
from headway.core.errors import ConfigError, RetryAfter, Snooze, StepError, UnknownTask
from headway.core.job import JobRecord, State
from headway.integrations.celery.adoption import lifecycle
from headway.integrations.celery.adoption.attempt import RunningAttempt, kept_message, running
from headway.integrations.celery.adoption.backend import CHILDREN
from headway.integrations.celery.adoption.join import SAFETY_SECONDS, must_wait
from headway.integrations.celery.adoption.message import CHORD_HEADER, HEADER_RESULTS, TaskMessage, read_message
from headway.integrations.celery.adoption.meta import STATE, job_meta
from headway.integrations.celery.adoption.soft_limit import SoftLimit

if TYPE_CHECKING:
    from headway.integrations.celery.adoption.adoption import Adoption

CHORD_ERROR = f"{ChordError.__module__}.{ChordError.__qualname__}"
_building = threading.Lock()


def make_function(adoption: Adoption, name: str, registered: Any) -> Callable[..., Any]:
    """Return the function that a worker runs for the jobs of a task."""

    def run(context: Context, message: TaskMessage) -> Any:
        return run_attempt(adoption, name, context, message)

    run.__name__ = run.__qualname__ = name
    run.__doc__ = getattr(registered, "__doc__", None)
    return run


def run_attempt(adoption: Adoption, name: str, context: Context, message: TaskMessage) -> Any:
    """Run one attempt of a job and return its plain result. Raises what decides how the attempt ends."""
    lifecycle.begin_process(adoption)
    kept = kept_message(adoption, context.job_id) if context.epoch > 1 else None
    if kept is not None:
        name, message = kept.task, kept.message
        if kept.waker is not None and must_wait(adoption, kept.waker):
            raise Snooze(SAFETY_SECONDS, "the tasks before the one that replaces it have not ended")
    task = adoption.app.tasks.get(name)
    if task is None:
        raise UnknownTask(f"no task {name!r} is registered in the Celery app {adoption.app.main!r}")
    attempt = RunningAttempt(context, name, message, kept=kept)
    token = running.set(attempt)
    try:
        attempt.message = _with_results(adoption, task, attempt)
        result, info = _trace(adoption, task, attempt)
        _keep_children(attempt)
        if attempt.next is not None:
            attempt.next.keep(adoption, context)
        return _end(attempt, task, result, info)
    finally:
        running.reset(token)


def _trace(adoption: Adoption, task: Any, attempt: RunningAttempt) -> tuple[Any, Any]:
    """Run the task. Return its result, and the tracer's information about an attempt that did not succeed."""
    message = attempt.message
    request = make_request(attempt)
    lifecycle.send_received(adoption, task, request)
    seconds = soft_seconds(adoption, task, message)
    traced: Any = None
    try:
        with SoftLimit(seconds) if seconds else nullcontext():
            traced = _tracer(adoption, task)(attempt.job_id, message.args, message.kwargs, request)
    except SoftTimeLimitExceeded as late:
        if traced is None:  # It was raised between the task and its end. Else the task has ended already.
            return None, trace.TraceInfo(states.FAILURE, late)
    result, info, *_ = traced
    return result, info


def soft_seconds(adoption: Adoption, task: Any, message: TaskMessage) -> float | None:
    """Return the soft time limit of a call: its own, that of its task, or that of the settings."""
    called: float | None = (message.headers.get("timelimit") or (None, None))[1]
    return called or task.soft_time_limit or adoption.app.conf.task_soft_time_limit


def _tracer(adoption: Adoption, task: Any) -> Any:
    """Return Celery's tracer of a task. It is looked up by name, because Sentry and others replace it."""
    if task.__trace__ is None:
        with _building:
            if task.__trace__ is None:
                task.__trace__ = trace.build_tracer(
                    task.name, task, adoption.app.loader, lifecycle.hostname(), app=adoption.app
                )
    return task.__trace__


def make_request(attempt: RunningAttempt) -> dict[str, Any]:
    """Return the request of a task as a Celery worker makes it."""
    context, message = attempt.context, attempt.message
    headers = message.headers
    epoch, attempts = (0, 0) if attempt.kept is None else (attempt.kept.epoch, attempt.kept.attempts)
    attempts = context.attempt - context.crashes - attempts
    retries = int(headers.get("retries") or 0) + max(0, attempts - 1)
    properties = {"correlation_id": context.job_id, "reply_to": "", **message.properties}
    delivery = {
        "exchange": "",
        "routing_key": message.queue,
        "priority": message.priority,
        # Each claim raises the epoch. Those that no retry explains delivered the same message again.
        "redelivered": context.epoch - epoch > attempts,
    }
    return {
        "argsrepr": repr(message.args)[:1_024],
        "kwargsrepr": repr(message.kwargs)[:1_024],
        **headers,
        **message.embed,
        "lang": "py",
        "id": context.job_id,
        "task": attempt.task,
        "root_id": headers.get("root_id") or context.job_id,
        "retries": retries,
        "hostname": lifecycle.hostname(),
        "delivery_info": delivery,
        "properties": properties,
        "reply_to": properties["reply_to"],
        "correlation_id": context.job_id,
        "args": message.args,
        "kwargs": message.kwargs,
        "is_eager": False,
    }


def _end(attempt: RunningAttempt, task: Any, result: Any, info: Any) -> Any:
    """Return the result of an attempt, or raise what ends it otherwise."""
    if info is None or info.state == states.SUCCESS:
        if attempt.retry_after is not None:  # self.retry(throw=False)
            raise RetryAfter(attempt.retry_after, "celery.exceptions.Retry: the task asked to run again")
        return attempt.result
    error = info.retval
    match info.state:
        case states.RETRY:
            reason = error.exc if getattr(error, "exc", None) is not None else error
            after = attempt.retry_after if attempt.retry_after is not None else 0.0
            raise RetryAfter(after, _described(reason)) from None
        case states.IGNORED if attempt.replaced_after is not None and attempt.next is not None:
            raise Snooze(attempt.replaced_after, f"replaced by {attempt.next.task}")
        case states.IGNORED:
            state, meta = attempt.state or (states.IGNORED, None)
            return {STATE: state, "meta": meta}
        case states.REJECTED:
            if isinstance(error.reason, ConfigError):
                raise error.reason
            if error.requeue:
                raise Snooze(0, "rejected")
    attempt.context.partial(_exception_meta(task, error))
    raise error


def _described(error: Any) -> str:
    """Return an exception as text from which ``meta`` can name its class."""
    kind = type(error)
    return f"{kind.__module__}.{kind.__qualname__}: {error}"


def _exception_meta(task: Any, error: BaseException) -> dict[str, Any]:
    kept = task.app.backend.prepare_exception(error, "json")
    try:
        json.dumps(kept["exc_message"], allow_nan=False)
    except (TypeError, ValueError):
        kept["exc_message"] = [str(error)]
    return dict(kept)


# ---------------------------------------------------------------------- results as arguments


def _with_results(adoption: Adoption, task: Any, attempt: RunningAttempt) -> TaskMessage:
    """Return the message with the results that its arguments name: of a chord's header, or of the task before.

    Raises ``ChordError`` if a task of the header failed, or the exception of the task before.
    """
    message = attempt.message
    if CHORD_HEADER in message.embed:
        _read_results(adoption, task, attempt, message.embed[CHORD_HEADER])
        return message._replace(embed={key: value for key, value in message.embed.items() if key != CHORD_HEADER})
    if not any(isinstance(value, dict) and HEADER_RESULTS in value for value in message.args):
        return message
    args = [
        _read_results(adoption, task, attempt, value[HEADER_RESULTS])
        if isinstance(value, dict) and HEADER_RESULTS in value
        else value
        for value in message.args
    ]
    return message._replace(args=args)


def _read_results(adoption: Adoption, task: Any, attempt: RunningAttempt, named: Any) -> Any:
    """Return the results of the jobs with these ids, nested as the ids are."""
    ids = list(_flat(named))
    jobs = dict(zip(ids, adoption.app.backend.find_jobs(ids), strict=True))
    if isinstance(named, str):
        _check_previous(task, attempt, named, jobs[named])
    else:
        _check_header(task, attempt, jobs)
    return _nested(named, partial(_result, jobs))


def _flat(ids: Any) -> Any:
    if isinstance(ids, list):
        for one in ids:
            yield from _flat(one)
    else:
        yield ids


def _nested(ids: Any, read: Callable[[str], Any]) -> Any:
    return [_nested(one, read) for one in ids] if isinstance(ids, list) else read(ids)


def _result(jobs: dict[str, JobRecord | None], job_id: str) -> Any:
    job = jobs[job_id]
    return None if job is None else job_meta(job)["result"]


def _check_header(task: Any, attempt: RunningAttempt, jobs: dict[str, JobRecord | None]) -> None:
    """Raise ``ChordError`` for a job of the header that did not complete, and send the body's error callbacks."""
    for job_id, job in jobs.items():
        if job is not None and job.state is State.COMPLETED:
            continue
        backend = task.app.backend
        cause = _cause(task, job_id, job)
        error = ChordError(f"Dependency {job_id} raised {cause!r}")
        if isinstance(cause, BaseException):
            error.__cause__ = cause
        request: Any = trace.Context(make_request(attempt))
        called = _called_errbacks(backend, job)
        request.errbacks = [errback for errback in request.errbacks or () if errback not in called]
        if request.errbacks:
            with suppress(Ignore, Reject):
                backend._call_task_errbacks(request, error, None)
        attempt.context.partial(_exception_meta(task, error))
        raise error


def _called_errbacks(backend: Any, job: JobRecord | None) -> list[Any]:
    """Return the error callbacks that a failure before a chord's header has called.

    Celery links one callback to all tasks of a chain and to nested chords, and calls it once.
    """
    source: JobRecord | None = None if job is None else backend.failed_source(job)
    if source is None or (source is job and (source.error is None or source.error.type != CHORD_ERROR)):
        return []
    called: list[Any] = read_message(source.payload).embed.get("errbacks", [])
    return called


def _check_previous(task: Any, attempt: RunningAttempt, job_id: str, job: JobRecord | None) -> None:
    """Raise the exception of the task before this one, if that has not completed."""
    if job is not None and job.state is State.COMPLETED:
        return
    cause = _cause(task, job_id, job)
    error = cause if isinstance(cause, Exception) else TaskRevokedError(f"task {job_id}, the one before, is gone")
    attempt.context.partial(_exception_meta(task, error))
    raise error


def _cause(task: Any, job_id: str, job: JobRecord | None) -> Any:
    """Return the exception of a job that did not complete."""
    backend = task.app.backend
    return None if job is None else backend.meta_from_decoded(backend._get_task_meta_for(job_id))["result"]


def _keep_children(attempt: RunningAttempt) -> None:
    """Keep the results of the tasks that an attempt sent, for ``AsyncResult.children``."""
    children = attempt.children
    if children:
        with suppress(StepError):  # Thousands of children are too many to keep. They run all the same.
            attempt.context.step(f"{CHILDREN}{attempt.context.attempt}", lambda: json.loads(json.dumps(children)))
