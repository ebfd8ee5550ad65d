"""Tasks of every kind."""

# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false, reportIndexIssue=false
# (Django brings no types, and what pyright makes of its code is not always so.)

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection

from headway import Limit
from headway.integrations.django import io_cron, io_task
from tests.integrations.django.shop.models import Order


@io_task
def add(left: int, right: int = 0) -> int:
    return left + right


@io_task(max_retries=5, dedupe=True)
def fetch(paper_id: int, options: dict[str, Any] | None = None) -> int:
    return paper_id


@io_task(name="shop.handle")
def handle(order_id: int) -> int:
    order = Order.objects.get(pk=order_id)
    order.handled_by = threading.current_thread().name
    order.save()
    return backend_pid()


@io_task
async def ahandle(order_id: int) -> int:
    order = await Order.objects.aget(pk=order_id)
    order.handled_by = "a coroutine"
    await order.asave()
    return await sync_to_async(backend_pid)()


@io_task(persist=False)
def touch(order_id: int) -> None:
    Order.objects.filter(pk=order_id).update(handled_by="touched")


@io_task(max_retries=1)
def fail(message: str) -> None:
    raise ValueError(message)


@io_task
def submit_from_a_job(left: int) -> str | None:
    return add(left)


@io_task
def submit_itself() -> None:
    submit_itself.enqueue()


@io_task(max_retries=1)
def break_the_database() -> None:
    Order.objects.create(article="undone")
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM nowhere")


@io_task
def hold(folder: str) -> str:
    """Record that the job has begun, and wait until it is released."""
    Path(folder, "begun").touch()
    while not Path(folder, "go").exists():
        time.sleep(0.01)
    return "let go"


@io_task(max_retries=0, timeout=60)
def meet(folder: str, count: int) -> int:
    """Record that the job has begun, and wait until this many have. Return the id of its thread."""
    Path(folder, f"begun-{threading.get_ident()}").touch()
    while len(list(Path(folder).glob("begun-*"))) < count:
        time.sleep(0.01)
    return threading.get_ident()


@io_task(limits=[Limit(concurrency=1)])
def one_at_a_time(folder: str) -> str:
    return hold.run(folder)


@io_task
def unstorable() -> Any:
    return object()


@io_task(max_retries=20)
def die() -> None:
    """Kill the process of the job, as a crash in C code or the out-of-memory killer would."""
    os.kill(os.getpid(), signal.SIGKILL)


@io_task
def note(text: str) -> None:
    Order.objects.create(article=text)


# Crons on one night of the year, so that they do not fire while tests count jobs.
@io_cron("0 3 29 2 *", tz="Europe/Paris", max_retries=1)
def nightly() -> str:
    return "swept"


@io_cron("*/5 4 29 2 *", overlap="allow")
@io_task(priority="low")
def often() -> None: ...


def backend_pid() -> int:
    """Return the server's process id of this connection, or 0 on SQLite."""
    if connection.vendor == "sqlite":
        return 0
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


from tests.integrations.django.shop import django_tasks_here  # noqa: E402, F401
