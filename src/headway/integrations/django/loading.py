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

from headway.integrations.django.conf import read_options
from headway.integrations.django.framework import FRAMEWORK

if TYPE_CHECKING:
    from headway.integrations.django.backend import HeadwayBackend

log = logging.getLogger("headway.worker")


def task_modules(names: Sequence[str]) -> list[str]:
    """Name the modules that a worker imports when it starts: ``tasks`` of every installed app, and these."""
    found = [f"{config.name}.tasks" for config in apps.get_app_configs() if find_spec(f"{config.name}.tasks")]
    return list(dict.fromkeys([*found, *names]))


def load_task_modules(names: Sequence[str]) -> list[ModuleType]:
    """Import ``tasks`` of every installed app, and the modules that are named.

    Only an app without such a module is passed over. What goes wrong inside one comes through as it is.
    """
    return [importlib.import_module(name) for name in task_modules(names)]


def adopt_django_tasks() -> list[str]:
    """Let a worker know the tasks that Django Tasks declared in any module imported so far. Return their names."""
    found = set()
    for task, backend in declared_django_tasks():
        backend.headway_task(task)
        found.add(task.module_path)
    return sorted(found)


def declared_django_tasks() -> Iterator[tuple[Any, HeadwayBackend]]:
    """Find the tasks that Django Tasks declared in modules imported so far; it keeps no list of them."""
    if f"{FRAMEWORK}.base" not in sys.modules:  # No module has declared any.
        return
    from headway.integrations.django.backend import HeadwayBackend, framework

    for module in list(sys.modules.values()):
        for value in list(getattr(module, "__dict__", {}).values()):
            if not issubclass(type(value), framework.Task):  # Not ``isinstance``: that would wake lazy objects.
                continue
            try:
                backend = value.get_backend()
            except ImproperlyConfigured:  # TASKS has no backend of that name.
                continue
            if isinstance(backend, HeadwayBackend):
                yield value, backend


def module_of_task(name: str) -> str | None:
    """Return the module to import for a task that is named by its path, ``module.function``; None if there is none.

    The name comes out of the database. So the module must be part of an installed app, of the project's own package
    or of ``IOQUEUE_TASK_MODULES``, and its source must declare the function with a decorator. Nothing is imported here.
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
    """Import the module of a task that a job names. Return whether it was imported; the log says why not."""
    module = module_of_task(name)
    if module is None:
        place = name.rpartition(".")[0]
        advice = f'declare it in a tasks.py, or name its module: IOQUEUE_TASK_MODULES = ["{place}"]'
        log.warning("task.not_found", extra={"headway": {"task": name, "advice": advice}})
        return False
    try:
        importlib.import_module(module)
    except Exception:
        log.exception("task.import_failed", extra={"headway": {"task": name, "module": module}})
        return False
    return True


def _roots() -> set[str]:
    """Name the packages and modules whose tasks a worker may import by their names."""
    named = (getattr(settings, "SETTINGS_MODULE", None), getattr(settings, "ROOT_URLCONF", None))
    project = {path.partition(".")[0] for path in named if isinstance(path, str) and "." in path}
    return {config.name for config in apps.get_app_configs()} | project | set(read_options()[0].task_modules)


def _spec(module: str) -> ModuleSpec | None:
    """Find a module without importing the packages that it is in."""
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
    """Return whether a statement may make a task of this name: a decorated function, or an assignment."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return statement.name == function and bool(statement.decorator_list)
    if isinstance(statement, ast.Assign):
        return any(isinstance(target, ast.Name) and target.id == function for target in statement.targets)
    return False
