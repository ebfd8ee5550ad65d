"""The names of Django Tasks: part of Django since 6.0, and before that in a package of their own."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from headway.integrations.django.framework import FRAMEWORK

framework: Any = import_module(FRAMEWORK)
exceptions: Any = import_module(f"{FRAMEWORK}.exceptions")
signals: Any = import_module(f"{FRAMEWORK}.signals")
task_enqueued: Any = signals.task_enqueued
task_finished: Any = signals.task_finished

task: Any = framework.task
task_backends: Any = framework.task_backends
default_task_backend: Any = framework.default_task_backend
InvalidTask: Any = getattr(exceptions, "InvalidTask", None) or exceptions.InvalidTaskError
Status: Any = framework.TaskResultStatus
