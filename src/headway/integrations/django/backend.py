"""A backend for Django Tasks: ``TASKS = {"default": {"BACKEND": "headway.integrations.django.HeadwayBackend"}}``."""

from __future__ import annotations

import builtins
import copy
import inspect
import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from asgiref.sync import sync_to_async
from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured, ObjectDoesNotExist
from django.db import DataError
from django.utils import timezone

from headway.client.context import Context
from headway.client.task import Task
from headway.core import errors
from headway.core.errors import ConfigError, JobFailed
from headway.integrations.django.framework import FRAMEWORK
from headway.integrations.django.loading import module_of_task
from headway.integrations.django.queue import is_of_django_tasks, queue
from headway.integrations.django.registry import TIMEOUT

_base = import_module(f"{FRAMEWORK}.base")
_signals = import_module(f"{FRAMEWORK}.signals")
_handlers: Any = import_module(FRAMEWORK)
_exceptions = import_module(f"{FRAMEWORK}.exceptions")
_backends: Any = import_module(f"{FRAMEWORK}.backends.base")
_normalize_json: Any = import_module(
    "django.utils.json" if FRAMEWORK == "django.tasks" else "django_tasks.utils"
).normalize_json

# The same names for both frameworks, ``django.tasks`` and ``django_tasks``.
framework: Any = SimpleNamespace(
    Task=_base.Task,
    TaskContext=_base.TaskContext,
    TaskError=_base.TaskError,
    TaskResult=_base.TaskResult,
    Status=_base.TaskResultStatus,
    enqueued=_signals.task_enqueued,
    started=_signals.task_started,
    finished=_signals.task_finished,
    ResultDoesNotExist=_exceptions.TaskResultDoesNotExist,
    Invalid=getattr(_exceptions, "InvalidTask", None) or _exceptions.InvalidTaskError,
)

# The lowest priority of each lane.
LANES: Mapping[int, str] = {1: "high", 0: "medium", -100: "low"}
KNOWN_OPTIONS = ("lanes", "max_retries", "queues", "timeout")
DEFAULT_QUEUE = "default"  # Jobs of this queue go to the lane of their priority.


class HeadwayBackend(_backends.BaseTaskBackend):
    """Submits to the project's queue, inside the caller's transaction. ``manage.py run_ioqueue`` runs the jobs.

    ``OPTIONS`` may have ``max_retries`` (default 0, because Django Tasks has no retries), ``timeout`` in seconds,
    ``lanes`` with the lowest priority of each lane, and ``queues`` with the lane of each queue. By default a queue's
    lane has the name of the queue.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        unknown = sorted(self.options.keys() - set(KNOWN_OPTIONS))
        if unknown:
            raise ImproperlyConfigured(f"OPTIONS has no {unknown[0]!r}; known are {', '.join(KNOWN_OPTIONS)}")
        self._lanes = sorted((self.options.get("lanes") or LANES).items(), reverse=True)
        self._queues: Mapping[str, str] = self.options.get("queues") or {}
        self._max_retries = self.options.get("max_retries", 0)
        self._timeout = self.options.get("timeout", TIMEOUT)

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Submit a job. Raises the errors of Django Tasks for an invalid task and for values that JSON cannot hold."""
        self.validate_task(task)
        result = self._result(task, "", args=args, kwargs=kwargs, enqueued_at=None)
        asked = {"queue": task.queue_name, "priority": task.priority, "backend": self.alias}
        run_after = task.run_after
        if run_after is not None:
            asked["run_after"] = run_after.isoformat()
            run_after = timezone.make_aware(run_after) if timezone.is_naive(run_after) else run_after
        lane = self.lane_of(task)
        try:
            chosen = self.headway_task(task).using(priority=lane, run_after=run_after)
            arguments = {"args": _plain(result.args), "kwargs": _plain(result.kwargs)}
            job_id = queue().submit(chosen.call(**arguments, asked=asked))
        except ConfigError as problem:
            if lane in queue().policy.lanes:
                raise
            raise framework.Invalid(_no_lane(task.queue_name, lane)) from problem
        _change(result, id=job_id, enqueued_at=_queued_at(job_id))
        framework.enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Read the result of a job. Raises ``TaskResultDoesNotExist``."""
        from headway.integrations.django.models import IOJob

        try:
            job = IOJob.objects.get(pk=result_id)
        except (ObjectDoesNotExist, DataError, ValueError):  # The latter two: no job has such an id.
            raise framework.ResultDoesNotExist(result_id) from None
        task = _task_at(job.task_name) if job.asked else None
        if task is None:
            raise framework.ResultDoesNotExist(result_id)
        alias = job.asked["backend"] if job.asked["backend"] in _aliases() else self.alias
        attempts = list(job.history.order_by("number"))
        failed = job.status == "error" or bool(job.result_error)
        result = self._result(
            _as_asked(task, job.asked, alias),
            job.pk,
            status=framework.Status.FAILED if failed else _STATUS[job.status],
            args=job.args,
            kwargs=job.kwargs,
            enqueued_at=job.queued_at,
            started_at=attempts[0].picked_at if attempts else job.picked_at,
            last_attempted_at=job.picked_at,
            finished_at=job.finished_at,
            errors=[_error(attempt.error, attempt.traceback) for attempt in attempts if attempt.error],
            worker_ids=[attempt.picked_by for attempt in attempts]
            + ([job.picked_by] if job.status in ("running", "done") else []),
            backend=alias,
        )
        if job.result_error:
            result.errors.append(_error("PayloadError", f"the result could not be stored: {job.result_error}"))
        elif job.state == "cancelled":
            result.errors.append(_error("JobCancelled", f"the job was cancelled: {job.reason or 'no reason given'}"))
        elif failed and not result.errors:
            result.errors.append(_error(job.last_error or "JobFailed", job.last_traceback or job.reason or ""))
        _change(result, _return_value=job.result)
        return result

    def check(self, **_: Any) -> list[CheckMessage]:
        """Check that Headway's app is installed, and that the policy has a lane for every queue."""
        if not apps.is_installed("headway.integrations.django"):
            return [Error("'headway.integrations.django' is missing from INSTALLED_APPS.", id="ioqueue.E006")]
        lanes = {name: self._queues.get(name, name) for name in sorted(self.queues - {DEFAULT_QUEUE})}
        return [
            Warning(
                f"TASKS[{self.alias!r}]: {_no_lane(name, lane)}",
                hint="Unless the policy in the database has the lane, jobs of this queue are refused.",
                id="ioqueue.W007",
            )
            for name, lane in lanes.items()
            if lane not in queue().policy.lanes
        ]

    def lane_of(self, task: Any) -> str:
        """Return the lane for a task's jobs: that of its queue, or that of its priority."""
        name = task.queue_name
        if name == DEFAULT_QUEUE and name not in self._queues:
            return self.lane(task.priority)
        return self._queues.get(name, name)

    def lane(self, priority: int) -> str:
        return next((lane for least, lane in self._lanes if priority >= least), self._lanes[-1][1])

    def headway_task(self, task: Any) -> Task[Any, Any, Any]:
        """Return the Headway task with the name of a Django task, which runs that task. Declare it if needed."""
        name, terms = task.module_path, (self.alias, self._max_retries, self._timeout)
        known = queue().tasks.get(name)
        if known is not None and not is_of_django_tasks(known):
            raise ConfigError(f"{name} is a task of Headway already; name one of the two differently")
        if known is None or getattr(known.fn, "of_django_tasks", None) != terms:
            run = self._coroutine(task) if inspect.iscoroutinefunction(task.func) else self._function(task)
            run.of_django_tasks = terms
            declare: Any = queue().task(name=name, context=True, max_retries=self._max_retries, timeout=self._timeout)
            known = declare(run)
        return known

    # ------------------------------------------------------------------ in the worker

    def _function(self, task: Any) -> Any:
        def run(context: Context, args: list[Any], kwargs: dict[str, Any], asked: dict[str, Any]) -> Any:
            result = self._begun(task, context, args, kwargs, asked)
            framework.started.send(type(self), task_result=result)
            before = (framework.TaskContext(task_result=result),) if task.takes_context else ()
            return _plain(task.func(*before, *args, **kwargs))

        return run

    def _coroutine(self, task: Any) -> Any:
        async def run(context: Context, args: list[Any], kwargs: dict[str, Any], asked: dict[str, Any]) -> Any:
            result = await sync_to_async(self._begun)(task, context, args, kwargs, asked)
            await sync_to_async(framework.started.send)(type(self), task_result=result)
            before = (framework.TaskContext(task_result=result),) if task.takes_context else ()
            return _plain(await task.func(*before, *args, **kwargs))

        return run

    def _begun(
        self, task: Any, context: Context, args: list[Any], kwargs: dict[str, Any], asked: dict[str, Any]
    ) -> Any:
        """Return the result of a running job. After the first attempt, read the earlier ones from the database."""
        lease = context._lease
        if lease.epoch > 1:
            return self.get_result(lease.job_id)
        started_at = _moment(lease.started_at)
        return self._result(
            _as_asked(task, asked, self.alias),
            lease.job_id,
            status=framework.Status.RUNNING,
            args=args,
            kwargs=kwargs,
            enqueued_at=_moment(lease.submitted_at),
            started_at=started_at,
            last_attempted_at=started_at,
            worker_ids=[lease.worker_id],
        )

    def _result(self, task: Any, job_id: str, **known: Any) -> Any:
        nothing: dict[str, Any] = {
            "status": framework.Status.READY,
            "started_at": None,
            "finished_at": None,
            "last_attempted_at": None,
            "errors": [],
            "worker_ids": [],
            "backend": self.alias,
        }
        return framework.TaskResult(**nothing | {"task": task, "id": job_id} | known)


def send_finished(job_id: str) -> None:
    """Send ``task_finished`` for a recorded job, if it is one of Django Tasks."""
    from headway.integrations.django.models import IOJob

    asked = IOJob.objects.filter(pk=job_id).values_list("asked", flat=True).first()
    if not asked or asked["backend"] not in _aliases():
        return
    backend = _handlers.task_backends[asked["backend"]]
    if not isinstance(backend, HeadwayBackend):
        return
    try:
        result = backend.get_result(job_id)
    except framework.ResultDoesNotExist:
        return
    if result.status != framework.Status.FAILED:
        framework.finished.send(type(backend), task_result=result)
        return
    try:  # Receivers read the exception that is being handled; Django's own receiver logs it.
        raise JobFailed(f"{result.errors[-1].exception_class_path}\n{result.errors[-1].traceback}".rstrip())
    except JobFailed:
        framework.finished.send(type(backend), task_result=result)


_STATUS = {
    "pending": framework.Status.READY,
    "running": framework.Status.RUNNING,
    "done": framework.Status.SUCCESSFUL,
    "error": framework.Status.FAILED,
}


def _task_at(path: str) -> Any:
    """Return the Django task at a path, or None if it no longer exists."""
    module, _, name = path.rpartition(".")
    if module not in sys.modules and module_of_task(path) is None:
        return None
    try:
        found = getattr(import_module(module), name, None)
    except ImportError:
        return None
    return found if isinstance(found, framework.Task) else None


def _as_asked(task: Any, asked: Mapping[str, Any], alias: str) -> Any:
    """Return a task with the options of one job, unchecked because the settings may have changed since."""
    run_after = asked.get("run_after")
    chosen = copy.copy(task)
    _change(
        chosen,
        priority=asked["priority"],
        queue_name=asked["queue"],
        backend=alias,
        run_after=None if run_after is None else datetime.fromisoformat(run_after),
    )
    return chosen


def _error(text: str, traceback: str) -> Any:
    """Return an error with an importable class path. Add the module if the name has none."""
    kind = text.partition(":")[0]
    if "." not in kind and hasattr(builtins, kind):
        kind = f"builtins.{kind}"
    elif "." not in kind:
        kind = f"{errors.__name__}.{kind if isinstance(getattr(errors, kind, None), type) else JobFailed.__name__}"
    return framework.TaskError(exception_class_path=kind, traceback=traceback or text)


def _aliases() -> Mapping[str, Any]:
    return getattr(settings, "TASKS", {})


def _plain(value: Any) -> Any:
    """Return a value as plain JSON, such as the text of a ``TextChoices`` member. Raises as Django Tasks does."""
    return json.loads(json.dumps(_normalize_json(value)))


def _no_lane(queue_name: str, lane: str) -> str:
    named = "" if lane == queue_name else f" (lane {lane!r})"
    return (
        f"the queue {queue_name!r}{named} is no lane of the policy. Define the lane in the policy, or map the queue to "
        f'one: "OPTIONS": {{"queues": {{"{queue_name}": "low"}}}}'
    )


def _queued_at(job_id: str | None) -> datetime:
    """Read the submission time of a job from the database, in the caller's transaction."""
    from headway.integrations.django.models import IOJob

    found: datetime = IOJob.objects.values_list("queued_at", flat=True).get(pk=job_id)
    return found


def _moment(ms: int) -> datetime:
    """Return a store's milliseconds as a datetime, naive if ``USE_TZ`` is off."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    return moment if settings.USE_TZ else timezone.make_naive(moment)


def _change(result: Any, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(result, name, value)
