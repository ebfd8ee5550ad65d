"""Imports the modules that declare a project's tasks."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from types import ModuleType

from django.apps import apps

from headway.integrations.django.framework import FRAMEWORK


def load_task_modules(names: Sequence[str]) -> list[ModuleType]:
    """Import the modules that are named, or ``tasks`` of every installed app.

    Only an app without such a module is passed over. What goes wrong inside one comes through as it is.
    """
    if not names:
        names = [f"{config.name}.tasks" for config in apps.get_app_configs() if find_spec(f"{config.name}.tasks")]
    return [importlib.import_module(name) for name in names]


def adopt_django_tasks() -> list[str]:
    """Let a worker know the tasks that Django Tasks declared in any module imported so far. Gives their names.

    Django keeps no list of them. One that no module of tasks imports stays unknown, and its jobs wait, unroutable.
    """
    if f"{FRAMEWORK}.base" not in sys.modules:  # Nobody has declared any.
        return []
    from headway.integrations.django.backend import HeadwayBackend, framework

    found: set[str] = set()
    for module in list(sys.modules.values()):
        for value in list(getattr(module, "__dict__", {}).values()):
            if not issubclass(type(value), framework.Task):  # Not ``isinstance``: that would wake lazy objects.
                continue
            backend = value.get_backend()
            if isinstance(backend, HeadwayBackend):
                backend.headway_task(value)
                found.add(value.module_path)
    return sorted(found)
