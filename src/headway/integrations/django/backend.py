"""A backend for Django Tasks: ``TASKS = {"default": {"BACKEND": "headway.integrations.django.HeadwayBackend"}}``."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from datetime import datetime
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Error
from django.core.exceptions import ImproperlyConfigured, ObjectDoesNotExist
from django.utils import timezone
from django.utils.module_loading import import_string

from headway.client.context import Context
from headway.client.task import Task
from headway.core.errors import ConfigError
from headway.integrations.django.framework import FRAMEWORK
from headway.integrations.django.queue import is_of_django_tasks, queue
from headway.integrations.django.registry import TIMEOUT

_base = import_module(f"{FRAMEWORK}.base")
_signals = import_module(f"{FRAMEWORK}.signals")
_exceptions = import_module(f"{FRAMEWORK}.exceptions")
_backends: Any = import_module(f"{FRAMEWORK}.backends.base")
_normalize_json: Any = import_module(
    "django.utils.json" if FRAMEWORK == "django.tasks" else "django_tasks.utils"
).normalize_json

# The names of the framework that is there, whichever it is.
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
)

# From which priority on which lane is meant.
LANES: Mapping[int, str] = {1: "high", 0: "medium", -100: "low"}
KNOWN_OPTIONS = ("lanes", "max_retries", "timeout")


class HeadwayBackend(_backends.BaseTaskBackend):
    """Submits to the project's queue, inside the caller's transaction; ``manage.py run_ioqueue`` runs the jobs.

    ``OPTIONS``: ``max_retries`` (0, since Django Tasks knows no retries), ``timeout`` in seconds, and ``lanes``: from
    which priority on which lane is meant.
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
        self._max_retries = self.options.get("max_retries", 0)
        self._timeout = self.options.get("timeout", TIMEOUT)
        self._tasks: dict[str, Task[Any, Any, Any]] = {}

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Submit a job. Raises what Django Tasks raises for a task that is none and values that JSON cannot hold."""
        self.validate_task(task)
        result = self._result(task, "", args=args, kwargs=kwargs, enqueued_at=timezone.now())
        asked = {"queue": task.queue_name, "priority": task.priority, "backend": self.alias}
        run_after = task.run_after
        if run_after is not None:
            run_after = timezone.make_aware(run_after) if timezone.is_naive(run_after) else run_after
            asked["run_after"] = run_after.isoformat()
        chosen = self.headway_task(task).using(priority=self.lane(task.priority), run_after=run_after)
        job_id = queue().submit(chosen.call(args=result.args, kwargs=result.kwargs, asked=asked))
        object.__setattr__(result, "id", job_id)
        framework.enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Read what became of a job. Raises ``TaskResultDoesNotExist``."""
        from headway.integrations.django.models import IOJob

        try:
            job = IOJob.objects.get(pk=result_id)
        except ObjectDoesNotExist:
            raise framework.ResultDoesNotExist(result_id) from None
        task = _task_at(job.task_name) if job.asked else None
        if task is None:
            raise framework.ResultDoesNotExist(result_id)
        run_after = job.asked.get("run_after")
        task = task.using(
            priority=job.asked["priority"],
            queue_name=job.asked["queue"],
            backend=job.asked["backend"],
            run_after=None if run_after is None else datetime.fromisoformat(run_after),
        )
        attempts = list(job.history.order_by("number"))
        result = self._result(
            task,
            job.pk,
            status=_STATUS[job.status],
            args=job.args,
            kwargs=job.kwargs,
            enqueued_at=job.queued_at,
            started_at=attempts[0].picked_at if attempts else job.picked_at,
            last_attempted_at=job.picked_at,
            finished_at=job.finished_at,
            errors=[_error(attempt.error, attempt.traceback) for attempt in attempts if attempt.error],
            worker_ids=[attempt.picked_by for attempt in attempts]
            + ([job.picked_by] if job.status in ("running", "done") else []),
        )
        object.__setattr__(result, "_return_value", job.result)
        return result

    def check(self, **_: Any) -> list[CheckMessage]:
        """Tell if the app that has the worker is not installed."""
        if apps.is_installed("headway.integrations.django"):
            return []
        return [Error("'headway.integrations.django' is missing from INSTALLED_APPS.", id="ioqueue.E006")]

    def lane(self, priority: int) -> str:
        """Give the lane of a priority."""
        return next((lane for least, lane in self._lanes if priority >= least), self._lanes[-1][1])

    def headway_task(self, task: Any) -> Task[Any, Any, Any]:
        """Give the task by which Headway knows a Django task: it has the same name, and runs it."""
        name = task.module_path
        if name not in self._tasks:
            known = queue().tasks.get(name)
            if known is not None and not is_of_django_tasks(known):
                raise ConfigError(f"{name} is a task of Headway already; name one of the two differently")
            run = self._coroutine(task) if _is_async(task) else self._function(task)
            run.of_django_tasks = True
            declare: Any = queue().task(name=name, context=True, max_retries=self._max_retries, timeout=self._timeout)
            self._tasks[name] = declare(run)
        return self._tasks[name]

    # ------------------------------------------------------------------ in the worker

    def _function(self, task: Any) -> Any:
        def run(context: Context, args: list[Any], kwargs: dict[str, Any], asked: dict[str, Any]) -> Any:
            result = self._begun(task, context, args, kwargs, asked)
            before = (framework.TaskContext(task_result=result),) if task.takes_context else ()
            try:
                value = _normalize_json(task.func(*before, *args, **kwargs))
            except BaseException as problem:
                self._failed(result, context, problem)
                raise
            self._succeeded(result, value)
            return value

        return run

    def _coroutine(self, task: Any) -> Any:
        async def run(context: Context, args: list[Any], kwargs: dict[str, Any], asked: dict[str, Any]) -> Any:
            result = self._begun(task, context, args, kwargs, asked)
            before = (framework.TaskContext(task_result=result),) if task.takes_context else ()
            try:
                value = _normalize_json(await task.func(*before, *args, **kwargs))
            except BaseException as problem:
                self._failed(result, context, problem)
                raise
            self._succeeded(result, value)
            return value

        return run

    def _begun(
        self, task: Any, context: Context, args: list[Any], kwargs: dict[str, Any], asked: dict[str, Any]
    ) -> Any:
        now = timezone.now()
        task = task.using(priority=asked["priority"], queue_name=asked["queue"], backend=asked["backend"])
        result = self._result(
            task,
            context.job_id,
            status=framework.Status.RUNNING,
            args=args,
            kwargs=kwargs,
            enqueued_at=now,
            started_at=now,
            last_attempted_at=now,
            worker_ids=[""] * (context.attempt - 1) + [context.log.extra["headway"]["worker"] or ""],  # type: ignore[index]
        )
        framework.started.send(type(self), task_result=result)
        return result

    def _succeeded(self, result: Any, value: Any) -> None:
        _change(result, status=framework.Status.SUCCESSFUL, finished_at=timezone.now(), _return_value=value)
        framework.finished.send(type(self), task_result=result)

    def _failed(self, result: Any, context: Context, problem: BaseException) -> None:
        """Tell of a failure, if it is the last one."""
        if context.attempt <= self._max_retries:
            return
        kind = type(problem)
        result.errors.append(_error(f"{kind.__module__}.{kind.__qualname__}", ""))
        _change(result, status=framework.Status.FAILED, finished_at=timezone.now())
        framework.finished.send(type(self), task_result=result)

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


_STATUS = {
    "pending": framework.Status.READY,
    "running": framework.Status.RUNNING,
    "done": framework.Status.SUCCESSFUL,
    "error": framework.Status.FAILED,
}


def _is_async(task: Any) -> bool:
    return inspect.iscoroutinefunction(task.func)


def _task_at(path: str) -> Any:
    """Find the Django task of a name, or None if there is none by that name any more."""
    try:
        found = import_string(path)
    except ImportError:
        return None
    return found if isinstance(found, framework.Task) else None


def _error(text: str, traceback: str) -> Any:
    kind = text.partition(":")[0]
    return framework.TaskError(exception_class_path=kind if "." in kind else f"builtins.{kind}", traceback=traceback)


def _change(result: Any, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(result, name, value)
