"""IOQueue for Django, on Headway: tasks, their jobs as a model, the admin, a worker, and a backend for Django Tasks.

Add ``"headway.integrations.django"`` to ``INSTALLED_APPS``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headway.integrations.django.queue import Queue, queue
from headway.integrations.django.registry import IoTask, io_cron, io_task

if TYPE_CHECKING:
    from headway.integrations.django.backend import HeadwayBackend

__all__ = ["HeadwayBackend", "IoTask", "Queue", "io_cron", "io_task", "queue"]


def __getattr__(name: str) -> Any:
    # Only a project that uses the backend needs Django Tasks.
    if name == "HeadwayBackend":
        from headway.integrations.django.backend import HeadwayBackend

        return HeadwayBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
