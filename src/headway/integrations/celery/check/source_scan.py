"""Finds the options, calls, signals and results of Celery in the sources of a project, without running them."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from headway.integrations.celery.adoption.features import FeatureKind, find_feature

FILES_MAX = 20_000  # Files of a project. A folder with more is probably not one.
SKIPPED = frozenset(
    {
        "__pycache__",
        "build",
        "dist",
        "docs",
        "env",
        "migrations",
        "node_modules",
        "site-packages",
        "tests",
        "test",
        "venv",
    }
)
_SENDING = ("apply_async", "send_task", "delay", "apply_async_on_commit", "delay_on_commit")
_ON_TASKS = ("apply", "s", "si", "signature", "subtask", "chunks", "map", "starmap", "AsyncResult")
_DECORATORS = ("task", "shared_task", "periodic_task")
_CANVAS = ("chain", "group", "chord", "chunks", "xmap", "xstarmap", "signature", "maybe_signature")
_SCHEDULES = ("crontab", "schedule", "solar")
_MODELS = ("PeriodicTask", "django_celery_beat")


class Use(NamedTuple):
    """One place of the sources that names something of Celery."""

    kind: FeatureKind
    name: str
    path: str  # Relative to the folder of the project.
    line: int
    value: str = ""  # The text of a literal value, such as ``pickle``.


class ScanResult(NamedTuple):
    """The uses of Celery in the sources, and the files that could not be read."""

    files: int
    uses: list[Use]
    unreadable: list[str]


def scan_sources(folder: Path, task_functions: Iterable[str] = ()) -> ScanResult:
    """Scan every Python file below a folder, except tests, migrations and virtual environments.

    ``task_functions`` are the names of the functions that are tasks. Methods with common names, such as ``s`` and
    ``map``, count only on these.
    """
    known, uses, unreadable, files = frozenset(task_functions), [], [], 0
    for path in _files(folder):
        shown = path.relative_to(folder).as_posix()
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            unreadable.append(shown)
            continue
        files += 1
        visitor = _SourceVisitor(shown, known)
        visitor.visit(tree)
        uses += visitor.uses
    return ScanResult(files, sorted(set(uses), key=lambda use: (use.path, use.line, use.kind, use.name)), unreadable)


def _files(folder: Path) -> Iterator[Path]:
    count = 0
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if name not in SKIPPED and not name.startswith(".") and not (Path(place) / name / "pyvenv.cfg").exists()
        )
        for name in sorted(names):
            if name.endswith(".py") and not name.startswith("test_") and name != "conftest.py":
                count += 1
                if count > FILES_MAX:
                    return
                yield Path(place) / name


class _SourceVisitor(ast.NodeVisitor):
    """Collects the uses in one file. Names count only if the file imports them from Celery."""

    def __init__(self, path: str, tasks: frozenset[str]) -> None:
        self._path = path
        self._tasks = tasks
        self._imported: dict[str, tuple[str, str]] = {}  # Local name: the module and the name there.
        self.uses: list[Use] = []

    def _add(self, kind: FeatureKind, name: str, node: ast.AST, value: str = "") -> None:
        self.uses.append(Use(kind, name, self._path, getattr(node, "lineno", 0), value))

    # ------------------------------------------------------------------ imports

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name.partition(".")[0] in ("celery", "django_celery_beat"):
                self._imported[alias.asname or alias.name.partition(".")[0]] = (alias.name, "")

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if module.partition(".")[0] not in ("celery", "django_celery_beat"):
            return
        for alias in node.names:
            self._imported[alias.asname or alias.name] = (module, alias.name)
            if module == "celery.exceptions":
                self._add(FeatureKind.EXCEPTION, alias.name, node)
            elif module == "celery.signals":
                self._add(FeatureKind.SIGNAL, alias.name, node)
            elif alias.name in (_SCHEDULES if module == "celery.schedules" else _MODELS):
                self._add(FeatureKind.SCHEDULE, alias.name, node)
            elif alias.name in _CANVAS and module in ("celery", "celery.canvas"):
                self._add(FeatureKind.CANVAS, alias.name, node)

    # ------------------------------------------------------------------ calls and attributes

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        if isinstance(function, ast.Name):
            self._visit_name_call(node, function.id)
        elif isinstance(function, ast.Attribute):
            self._visit_method_call(node, function)
        self.generic_visit(node)

    def _visit_name_call(self, node: ast.Call, name: str) -> None:
        module, original = self._imported.get(name, ("", ""))
        if original in _DECORATORS:
            self._options(node, FeatureKind.TASK_OPTION)
        elif original == "Celery":
            self._options(node, FeatureKind.SETTING, only_known=True)
        elif original in ("AsyncResult", "GroupResult"):
            self._add(FeatureKind.APP, original, node)
        elif original in _CANVAS and module.startswith("celery"):
            self._add(FeatureKind.CANVAS, original, node)

    def _visit_method_call(self, node: ast.Call, function: ast.Attribute) -> None:
        name, owner = function.attr, function.value
        if name in _SENDING:
            self._add(FeatureKind.APP if name == "send_task" else FeatureKind.TASK_METHOD, name, node)
            if not name.startswith("delay"):
                self._options(node, FeatureKind.CALL_OPTION)
        elif name == "retry" and _is_self(owner):
            self._add(FeatureKind.TASK_METHOD, name, node)
            self._options(node, FeatureKind.RETRY_OPTION)
        elif name in ("replace", "add_to_chord", "update_state") and _is_self(owner):
            if name != "replace" or not node.keywords:  # dataclasses and datetimes have a replace with keywords.
                self._add(FeatureKind.TASK_METHOD, name, node)
        elif name in _ON_TASKS and _last(owner) in self._tasks:
            self._add(FeatureKind.TASK_METHOD, name, node)
        elif name in _DECORATORS and _last(owner) in ("app", "celery", "celery_app"):
            self._options(node, FeatureKind.TASK_OPTION)
        elif self._is_result(owner) and find_feature(FeatureKind.RESULT, name):
            self._add(FeatureKind.RESULT, name, node)
        elif name in ("AsyncResult", "GroupResult") and _last(owner) in ("app", "celery", "celery_app"):
            self._add(FeatureKind.APP, name, node)
        elif _is_control(owner) and find_feature(FeatureKind.CONTROL, name):
            self._add(FeatureKind.CONTROL, name, node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        owner = node.value
        if isinstance(owner, ast.Attribute) and owner.attr == "request" and _is_self(owner.value):
            self._add(FeatureKind.REQUEST, node.attr, node)
        elif self._imported.get(_last(owner), ("", ""))[1] == "signals" and find_feature(FeatureKind.SIGNAL, node.attr):
            self._add(FeatureKind.SIGNAL, node.attr, node)
        elif self._is_result(owner) and find_feature(FeatureKind.RESULT, node.attr):
            self._add(FeatureKind.RESULT, node.attr, node)
        self.generic_visit(node)

    def _is_result(self, node: ast.AST) -> bool:
        """Return whether a node is a call of ``AsyncResult`` or ``GroupResult``."""
        if not isinstance(node, ast.Call):
            return False
        return _last(node.func) in ("AsyncResult", "GroupResult")

    def _options(self, node: ast.Call, kind: FeatureKind, *, only_known: bool = False) -> None:
        for keyword in node.keywords:
            if keyword.arg is not None and (not only_known or find_feature(kind, keyword.arg)):
                value = keyword.value.value if isinstance(keyword.value, ast.Constant) else ""
                self._add(kind, keyword.arg, keyword.value, value if isinstance(value, str) else "")


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "task", "current_task")


def _last(node: ast.AST) -> str:
    """Return the last name of a dotted name, or an empty text."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def _is_control(node: ast.AST) -> bool:
    """Return whether a node is ``app.control``, or a call of its ``inspect``."""
    if isinstance(node, ast.Call):
        return _last(node.func) in ("inspect", "Inspect")
    return isinstance(node, ast.Attribute) and node.attr == "control"
