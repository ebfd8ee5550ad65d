"""Headway never executes data as code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "headway"
FORBIDDEN_MODULES = {
    "pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle",
    "multiprocessing", "code", "codeop", "xmlrpc", "yaml", "ruamel",
}  # fmt: skip
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
# These import a module by a name: the operator's (the app, Django's settings), a framework's, or an optional package's.
MAY_IMPORT = {
    "client/loading.py", "worker/session_transport.py", "integrations/django/backend.py",
    "integrations/django/loading.py",
}  # fmt: skip


def files() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield str(path.relative_to(SOURCE)), ast.parse(path.read_text())


def imported(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [name.name.partition(".")[0] for name in names]
        case ast.ImportFrom(module=str(module), level=0):
            return [module.partition(".")[0]]
    return []


def test_no_module_is_imported_that_makes_objects_or_code_of_data() -> None:  # S-24
    wrong = [
        f"{name}:{getattr(node, 'lineno', 0)} imports {module}"
        for name, tree in files()
        for node in ast.walk(tree)
        for module in imported(node)
        if module in FORBIDDEN_MODULES
    ]
    assert wrong == []


def test_nothing_is_evaluated_or_compiled() -> None:  # S-24
    wrong = [
        f"{name}:{node.lineno} calls {node.func.id}"
        for name, tree in files()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS
    ]
    assert wrong == []


def test_modules_are_imported_by_a_name_in_few_places() -> None:  # S-24
    importing = {
        name
        for name, tree in files()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and not (node.args and isinstance(node.args[0], ast.Constant))
        and "import_module" in (getattr(node.func, "id", ""), getattr(node.func, "attr", ""))
    }
    assert importing <= MAY_IMPORT


@pytest.mark.parametrize("source", ["import pickle", "from multiprocessing import Queue", "import yaml.loader"])
def test_the_test_sees_what_it_looks_for(source: str) -> None:
    [node] = ast.parse(source).body
    assert set(imported(node)) & FORBIDDEN_MODULES
