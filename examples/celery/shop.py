"""A Celery app whose users do not block each other. See README.md beside it."""

from __future__ import annotations

import os
import time

from celery import Celery  # type: ignore[import-untyped]

from headway.integrations.celery import install

app = Celery("shop", broker=os.environ.get("BROKER_URL", "redis://localhost:6379/0"))
app.conf.task_ignore_result = True
install(app, by="user_id")


@app.task  # type: ignore[untyped-decorator,unused-ignore]
def make_image(user_id: str, number: int) -> None:
    """Sleep for half a second."""
    time.sleep(0.5)
    print(f"{user_id} {number}")
