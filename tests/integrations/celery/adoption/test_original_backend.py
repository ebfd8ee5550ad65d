"""The original result backend of an app: adopted tasks do not use it, others do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from celery import Celery  # type: ignore[import-untyped]
from celery.exceptions import TaskRevokedError  # type: ignore[import-untyped]

from headway.integrations.celery import adopt, adoption_of

NOWHERE = "redis://127.0.0.1:1/0"  # Nothing listens there.


def add(a: int, b: int) -> int:
    return a + b


def test_an_adopted_task_is_sent_while_the_former_backend_is_away(tmp_path: Path) -> None:
    app = Celery("shop", broker="memory://", backend=NOWHERE, set_as_current=False)
    app.task(name="shop.add")(add)
    adopt(app, store=f"sqlite:///{tmp_path}/jobs.db", only=["shop.*"])
    try:
        result = app.tasks["shop.add"].delay(1, 2)
        assert result.state == "PENDING"
        assert adoption_of(app).headway.job(result.id).status() == "queued"
    finally:
        adoption_of(app).headway.close()


def test_the_result_of_an_adopted_task_is_read_while_the_former_backend_is_away(tmp_path: Path) -> None:
    app = Celery("shop", broker="memory://", backend=NOWHERE, set_as_current=False)
    app.task(name="shop.add")(add)
    adopt(app, store=f"sqlite:///{tmp_path}/jobs.db", only=["shop.*"])
    try:
        result = app.tasks["shop.add"].delay(1, 2)
        adoption_of(app).headway.job(result.id).cancel()
        with pytest.raises(TaskRevokedError):
            result.get(timeout=10)
    finally:
        adoption_of(app).headway.close()


def test_a_task_that_stays_prepares_the_former_backend_for_its_result(tmp_path: Path) -> None:
    app = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.task(name="mail.send")(add)
    app.task(name="shop.add")(add)
    adopt(app, store=f"sqlite:///{tmp_path}/jobs.db", only=["shop.*"])
    prepared: list[str] = []
    original: Any = app.backend.original
    original.on_task_call = lambda producer, task_id: prepared.append(task_id)
    try:
        app.tasks["shop.add"].delay(1, 2)
        kept = app.tasks["mail.send"].delay(1, 2)
        app.tasks["mail.send"].apply_async((1, 2), ignore_result=True)
        assert prepared == [kept.id]
    finally:
        adoption_of(app).headway.close()
