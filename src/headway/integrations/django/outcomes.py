"""Sends Django's ``task_finished`` once the store has recorded how a job of Django Tasks ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

from django.db import close_old_connections

from headway.client.app import Lifespan
from headway.core.lease import Lease, Report
from headway.core.log_event import LogEvent
from headway.integrations.django.framework import FRAMEWORK

log = logging.getLogger("headway.worker")


class Outcomes:
    """Receives every outcome that this process has recorded. A thread reads the results and calls the receivers.

    ``concerns`` returns whether a task name belongs to Django Tasks, if the caller knows that.
    """

    def __init__(self, concerns: Callable[[str], bool] = lambda _: True) -> None:
        self._concerns = concerns
        self._thread = ThreadPoolExecutor(1, "headway-signals")

    def __call__(self, lease: Lease, report: Report) -> None:
        if report.state.ended and lease.persist and self._concerns(lease.task):
            self._thread.submit(_send, lease.job_id)

    def close(self) -> None:
        """Wait until the receivers have processed every outcome."""
        self._thread.shutdown()

    def around(self, lifespan: Lifespan | None) -> Lifespan:
        """Return a lifespan that ends when the receivers have processed every outcome."""

        @contextlib.asynccontextmanager
        async def lifespan_with_outcomes(app: Any) -> AsyncIterator[Mapping[str, Any] | None]:
            try:
                if lifespan is None:
                    yield None
                else:
                    async with lifespan(app) as state:
                        yield state
            finally:
                await asyncio.get_running_loop().run_in_executor(None, self.close)

        return lifespan_with_outcomes


def has_django_tasks() -> bool:
    try:
        return find_spec(FRAMEWORK) is not None
    except ModuleNotFoundError:
        return False


def _send(job_id: str) -> None:
    from headway.integrations.django.backend import send_finished

    close_old_connections()
    try:
        send_finished(job_id)
    except Exception:
        log.exception(LogEvent("task_finished.failed", job=job_id))
    finally:
        close_old_connections()
