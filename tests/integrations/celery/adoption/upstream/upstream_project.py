"""The app whose tasks a Headway worker runs for Celery's own integration tests."""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import os

from celery import Celery  # type: ignore[import-untyped]

from headway.integrations.celery import adopt

app = Celery("upstream", include=["t.integration.tasks"])
app.conf.update(
    broker_url=os.environ["TEST_BROKER"],
    result_backend=os.environ["TEST_BACKEND"],
    result_extended=True,
    task_create_missing_queues=False,
)
adopt(app, store=os.environ["UPSTREAM_STORE"])


@app.on_after_finalize.connect  # pyright: ignore[reportOptionalMemberAccess]
def _register(sender: Celery, **_: object) -> None:
    from t.integration.tasks import ClassBasedAutoRetryTask  # type: ignore[import-not-found]

    sender.register_task(ClassBasedAutoRetryTask())
