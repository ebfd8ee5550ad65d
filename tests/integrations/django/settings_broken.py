"""The same project, with a module of tasks that cannot be imported."""

from __future__ import annotations

from tests.integrations.django.settings import *  # noqa: F403

IOQUEUE_TASK_MODULES = ["tests.integrations.django.broken_tasks"]
