"""Imports the modules that declare a project's tasks."""

from __future__ import annotations

import ast
import importlib
import logging
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from headway.core.log_event import LogEvent
from headway.integrations.django.conf import read_options
from headway.integrations.django.framework import FRAMEWORK

if TYPE_CHECKING:
    from headway.integrations.django.backend import HeadwayBackend

log = logging.getLogger("headway.worker")


def task_modules(names: Sequence[str]) -> list[str]:
    """Return the modules that a worker imports at its start: ``tasks`` of every installed app, and ``names``."""
    found = [f"{config.name}.tasks" for config in apps.get_app_configs() if find_spec(f"{config.name}.tasks")]
    return list(dict.fromkeys([*found, *names]))


def load_task_modules(names: Sequence[str]) -> list[ModuleType]:
    """Import ``tasks`` of every installed app that has this module, and the modules in ``names``.

    An error inside a module is raised unchanged.
    """
    return [importlib.import_module(name) for name in task_modules(names)]


def adopt_django_tasks() -> list[str]:
    """Declare a Headway task for each Django task in the modules imported so far. Return their names."""
    found = set()
    for task, backend in declared_django_tasks():
        backend.headway_task(task)
        found.add(task.module_path)
    return sorted(found)


def declared_django_tasks() -> Iterator[tuple[Any, HeadwayBackend]]:
    """Yield the Django tasks of all modules imported so far, because Django Tasks keeps no list of them."""
    if f"{FRAMEWORK}.base" not in sys.modules:  # No module has declared any.
        return
    from headway.integrations.django.backend import HeadwayBackend, framework

    for module in list(sys.modules.values()):
        for value in list(getattr(module, "__dict__", {}).values()):
            if not issubclass(type(value), framework.Task):  # ``isinstance`` would evaluate lazy objects.
                continue
            try:
                backend = value.get_backend()
            except ImproperlyConfigured:  # TASKS has no backend of that name.
                continue
            if isinstance(backend, HeadwayBackend):
                yield value, backend


def module_of_task(name: str) -> str | None:
    """Return the module of a task with the name ``module.function``, or None. Imports nothing.

    The name comes from the database. So the module must be part of an installed app, of the project's own package or
    of ``IOQUEUE_TASK_MODULES``, and its source must declare the function with a decorator or assign it.
    """
    module, _, function = name.rpartition(".")
    if not module or not all(part.isidentifier() for part in name.split(".")):
        return None
    if not any(module == root or module.startswith(f"{root}.") for root in _roots()):
        return None
    spec = _spec(module)
    if spec is None or not isinstance(spec.loader, InspectLoader):
        return None
    try:
        body = ast.parse(spec.loader.get_source(module) or "").body
    except (ImportError, OSError, SyntaxError, ValueError):
        return None
    return module if any(_declares(statement, function) for statement in body) else None


def import_task_module(name: str) -> bool:
    """Import the module of a task that a job names. Return whether that succeeded, and log why not."""
    module = module_of_task(name)
    if module is None:
        place = name.rpartition(".")[0]
        advice = f'declare it in a tasks.py, or name its module: IOQUEUE_TASK_MODULES = ["{place}"]'
        log.warning(LogEvent("task.not_found", task=name, advice=advice))
        return False
    try:
        importlib.import_module(module)
    except Exception:
        log.exception(LogEvent("task.import_failed", task=name, module=module))
        return False
    return True


def _roots() -> set[str]:
    """Return the packages and modules whose tasks a worker may import by name."""
    named = (getattr(settings, "SETTINGS_MODULE", None), getattr(settings, "ROOT_URLCONF", None))
    project = {path.partition(".")[0] for path in named if isinstance(path, str) and "." in path}
    return {config.name for config in apps.get_app_configs()} | project | set(read_options()[0].task_modules)


def _spec(module: str) -> ModuleSpec | None:
    """Return the spec of a module without importing its parent packages, or None."""
    path: Sequence[str] | None = None
    name, spec = "", None
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        spec = PathFinder.find_spec(name, path)
        if spec is None:
            return None
        path = spec.submodule_search_locations or ()
    return spec


def _declares(statement: ast.stmt, function: str) -> bool:
    """Return whether a statement may declare a task of this name: a decorated function, or an assignment."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return statement.name == function and bool(statement.decorator_list)
    if isinstance(statement, ast.Assign):
        return any(isinstance(target, ast.Name) and target.id == function for target in statement.targets)
    return False
