"""A Celery project for tests. The environment names its broker and the options of its installation."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from celery import Celery, Task  # type: ignore[import-untyped]
from celery.exceptions import Ignore, Reject  # type: ignore[import-untyped]

from headway.integrations.celery import install

BROKER = os.environ.get("PROJECT_BROKER", "redis://")
OPTIONS: dict[str, Any] | None = json.loads(os.environ.get("PROJECT_OPTIONS", "{}"))
CONF: dict[str, Any] = json.loads(os.environ.get("PROJECT_CONF", "{}"))


def make_app(broker: str, options: dict[str, Any] | None, conf: dict[str, Any] | None = None) -> Celery:
    """Return an app with the tasks below. Without options, the integration is not installed."""
    app = Celery("project", broker=broker, backend=broker, set_as_current=False)
    app.conf.update(broker_connection_retry_on_startup=True, worker_hijack_root_logger=False, **(conf or {}))
    if options is not None:
        install(app, **options)
    for function, more in TASKS:
        app.task(name=f"project.{function.__name__}", **more)(function)
    return app


def add(a: int, b: int) -> int:
    return a + b


def note(path: str, text: str, user_id: str | None = None) -> None:
    """Write a line with the time and a text to a file."""
    with Path(path).open("a") as file:
        file.write(f"{time.time():.4f} {text}\n")


def nap(path: str, text: str, seconds: float, user_id: str | None = None) -> None:
    note(path, text)
    time.sleep(seconds)


def hold(path: str) -> None:
    """Run until a file exists."""
    note(f"{path}.began", str(os.getpid()))
    until = time.monotonic() + 60
    while not Path(path).exists() and time.monotonic() < until:
        time.sleep(0.01)


def fail() -> None:
    raise ValueError("as it should")


def again(self: Task, path: str, times: int, countdown: float = 0) -> str:
    """Retry this many times, then succeed."""
    note(path, f"attempt {self.request.retries}")
    if self.request.retries < times:
        raise self.retry(countdown=countdown, max_retries=times)
    return "done"


def reject(self: Task, path: str, requeue: bool) -> None:
    """Reject the message once, and succeed when it returns."""
    note(path, "rejected" if not Path(path).exists() else "back")
    if Path(path).read_text().count("\n") == 1:
        raise Reject("not now", requeue=requeue)


def ignore() -> None:
    raise Ignore


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fan_out(self: Task, path: str, count: int) -> None:
    """Send tasks from inside a task."""
    for number in range(count):
        self.app.tasks["project.note"].delay(path, f"child {number}")


TASKS: list[tuple[Any, dict[str, Any]]] = [
    (add, {}),
    (note, {"ignore_result": True}),
    (nap, {"ignore_result": True}),
    (hold, {"ignore_result": True}),
    (fail, {"ignore_result": True}),
    (again, {"bind": True}),
    (reject, {"bind": True, "acks_late": True, "ignore_result": True}),
    (ignore, {"ignore_result": True}),
    (die, {"ignore_result": True}),
    (fan_out, {"bind": True, "ignore_result": True}),
]

app = make_app(BROKER, OPTIONS, CONF)
