"""A Celery project with adopted tasks. Workers import ``app``, and tests make apps of their own on the same store."""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

from celery import Celery, Task, chord, current_task, group, signals  # type: ignore[import-untyped]
from celery import chain as celery_chain
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded  # type: ignore[import-untyped]
from celery.utils.log import get_task_logger  # type: ignore[import-untyped]

from headway.integrations.celery import adopt

BROKER = "redis://127.0.0.1:1/0"  # Nothing listens there: an adopted task must not need a broker.
log = get_task_logger(__name__)


class Expected(Exception):
    """An exception that a task declares with ``throws``."""


class Hooked(Task):  # type: ignore[misc]
    """A base class that overrides every hook."""

    abstract = True

    def write(self, what: str) -> None:
        with open(os.environ["ADOPTED_TRACE"], "a") as trace:
            trace.write(f"{self.name} {what}\n")

    def apply_async(self, *args: Any, **kwargs: Any) -> Any:
        self.write("apply_async")
        return super().apply_async(*args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.write(f"__call__ {self.request.id is not None}")
        return super().__call__(*args, **kwargs)

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        self.write("before_start")

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        self.write(f"on_success {retval}")

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        self.write(f"on_failure {exc!r}")

    def on_retry(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        self.write(f"on_retry {exc!r}")

    def after_return(self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        self.write(f"after_return {status}")


def make_app(store: str, executor: str, **settings: Any) -> Celery:
    """Return an app with the tasks of the project."""
    app = Celery("adopted", broker=settings.pop("broker", BROKER), set_as_current=False)
    app.conf.update(settings)
    adopt(app, store=store, only=["work.*"], executor=executor)
    _define(app)
    return app


def _define(app: Celery) -> None:
    task = partial(app.task, shared=False)

    @task(name="work.add")
    def add(x: Any, y: Any = 0) -> Any:
        return x + y

    @task(name="work.total")
    def total(values: list[Any]) -> Any:
        return sum(values)

    @task(name="work.fail", throws=(Expected,))
    def fail(*args: Any, expected: bool = False) -> None:
        raise Expected("as declared") if expected else ValueError("bad", 3)

    @task(name="work.gather")
    def gather(*args: Any, **kwargs: Any) -> Any:
        return [list(args), kwargs]

    @task(name="work.mark")
    def mark(path: str, text: str) -> None:
        with open(path, "a") as file:
            file.write(text)

    kept: list[bytearray] = []

    @task(name="work.pid")
    def pid(leaked: int = 0) -> int:
        """Return the id of the process, after keeping some MiB in it."""
        kept.append(bytearray(leaked << 20))
        return os.getpid()

    @task(name="work.request", bind=True)
    def request(self: Any, *args: Any) -> dict[str, Any]:
        found = self.request
        return {
            "id": found.id,
            "retries": found.retries,
            "args": found.args,
            "queue": found.delivery_info["routing_key"],
            "headers": found.headers,
            "called_directly": found.called_directly,
            "is_eager": found.is_eager,
            "hostname": found.hostname,
            "root_id": found.root_id,
            "parent_id": found.parent_id,
            "properties": found.properties,
            "current": current_task.name,
        }

    @task(name="work.flaky", bind=True, max_retries=3)
    def flaky(self: Any, times: int) -> int:
        if self.request.retries < times:
            raise self.retry(exc=ValueError(f"try {self.request.retries}"), countdown=0)
        return int(self.request.retries)

    @task(name="work.later", bind=True, max_retries=3)
    def later(self: Any) -> None:
        raise self.retry(exc=ValueError("not now"), countdown=600)

    @task(name="work.auto", autoretry_for=(KeyError,), default_retry_delay=0, max_retries=2)
    def auto() -> None:
        raise KeyError("missing")

    @task(name="work.new_arguments", bind=True)
    def new_arguments(self: Any, n: int, text: str = "") -> list[Any]:
        if n < 3:
            raise self.retry(args=(n + 1,), kwargs={"text": text * 2}, countdown=0)
        return [n, len(text), self.request.retries]

    @task(name="work.replace", bind=True, max_retries=5)
    def replace(self: Any, *args: str) -> Any:
        add, total = app.tasks["work.add"], app.tasks["work.total"]
        choices = {
            "task": add.s(1, 2),
            "retried": app.tasks["work.flaky"].s(2),
            "itself": self.s("task"),
            "later": add.s(1, 2).set(countdown=0.1),
            "failing": app.tasks["work.fail"].s(),
            "chain": celery_chain(add.s(1, 2), add.s(10)),
            "failing chain": celery_chain(app.tasks["work.fail"].s(), add.s(10)),
            "group": group([add.s(1, 1), add.s(2, 2)], app=app),
            "chord": chord([add.s(1, 1), celery_chain(add.s(2, 2), add.s(1))], total.s()),
            "failing chord": chord([add.s(1, 1), app.tasks["work.fail"].s()], total.s()),
            "chain to group": celery_chain(add.s(1, 2), group([add.s(1), add.s(2)], app=app)),
            "delayed chain": celery_chain(add.s(1, 2), add.s(10).set(countdown=1)),
        }
        return self.replace(choices[args[-1]])

    @task(name="work.state_of")
    def state_of(task_id: str) -> str:
        return str(app.AsyncResult(task_id).state)

    @task(name="work.soft", soft_time_limit=0.2)
    def soft(seconds: float = 60.0) -> str:
        until = time.monotonic() + seconds
        try:
            while time.monotonic() < until:
                time.sleep(0.01)
        except SoftTimeLimitExceeded:
            return "cleaned up"
        return "done"

    @task(name="work.soft_uncaught", soft_time_limit=0.2)
    def soft_uncaught() -> None:
        while True:
            time.sleep(0.01)

    @task(name="work.hard", time_limit=0.5)
    def hard() -> None:
        time.sleep(60)

    @task(name="work.progress", bind=True)
    def progress(self: Any, gate: str) -> str:
        self.update_state(state="PROGRESS", meta={"current": 1, "total": 4})
        while not Path(gate).exists():
            time.sleep(0.01)
        return "done"

    def gate(path: str) -> str:
        while not Path(path).exists():
            time.sleep(0.01)
        return "done"

    task(name="work.gate")(gate)
    task(name="work.tracked_gate", track_started=True)(gate)

    @task(name="work.crash_once")
    def crash_once(crashed: str, path: str) -> str:
        """Kill the process of the first attempt. Later attempts wait for a file."""
        if not Path(crashed).exists():
            Path(crashed).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return gate(path)

    @task(name="work.ignore", bind=True)
    def ignore(self: Any) -> None:
        self.update_state(state="FAILURE", meta={"exc_type": "Custom", "exc_message": ["own"], "exc_module": "x"})
        raise Ignore

    @task(name="work.reject", bind=True)
    def reject(self: Any, path: str, requeue: bool) -> str:
        seen = Path(path)
        if seen.exists():
            return "again"
        seen.touch()
        raise Reject("not me", requeue=requeue)

    @task(name="work.unstorable")
    def unstorable() -> object:
        return object()

    @task(name="work.quiet", ignore_result=True)
    def quiet() -> str:
        return "kept"

    @task(name="work.large", ignore_result=True)
    def large(size: int) -> str:
        return "x" * size

    @task(name="work.hooked", base=Hooked, bind=True, max_retries=1, default_retry_delay=0)
    def hooked(self: Any, how: str) -> str:
        if how == "retry" and not self.request.retries:
            raise self.retry(exc=ValueError("once"))
        if how == "fail":
            raise ValueError("hooked")
        return how

    @task(name="work.sends", bind=True)
    def sends(self: Any, n: int) -> str:
        return str(app.signature("work.add").apply_async((n, n)).id)

    @task(name="work.waits")
    def waits() -> Any:
        return app.signature("work.add").apply_async((1, 1)).get(timeout=5)

    @task(name="celery_side")
    def celery_side(*args: Any) -> Any:
        return list(args)


def _traced(name: str) -> Any:
    def receive(sender: Any = None, **_: Any) -> None:
        shown = sender if isinstance(sender, str) else getattr(sender, "name", "")
        with open(os.environ["ADOPTED_TRACE"], "a") as trace:
            trace.write(f"{shown} {name}\n")

    return receive


def trace_signals() -> None:
    """Write the signals that this process sends to the trace."""
    for name in (
        "before_task_publish", "after_task_publish", "task_prerun", "task_postrun", "task_success", "task_failure",
        "task_retry", "task_received", "worker_init", "worker_ready", "worker_process_init", "worker_shutdown",
        "celeryd_init", "worker_shutting_down", "after_setup_logger", "after_setup_task_logger",
    ):  # fmt: skip
        getattr(signals, name).connect(_traced(name), weak=False)
    signals.task_received.connect(_trace_request, weak=False)


def _trace_request(request: Any, **_: Any) -> None:
    with open(os.environ["ADOPTED_TRACE"], "a") as trace:
        trace.write(f"request {request.name} {request.task_name} {request.task_id}\n")


def _celery() -> dict[str, Any]:
    server = os.environ.get("ADOPTED_SERVER")
    return {} if server is None else {"broker": f"{server}/5", "result_backend": f"{server}/6"}


def _schedule() -> dict[str, Any]:
    if "ADOPTED_TICK" not in os.environ:
        return {}
    return {"each second": {"task": "work.mark", "schedule": 1.0, "args": (os.environ["ADOPTED_TICK"], ".")}}


if "ADOPTED_STORE" in os.environ:
    trace_signals()
    app = make_app(os.environ["ADOPTED_STORE"], os.environ["ADOPTED_EXECUTOR"], beat_schedule=_schedule(), **_celery())
