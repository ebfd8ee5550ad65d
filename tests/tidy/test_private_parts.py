"""Tests use public names. The exceptions are listed, and the list may only shrink."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# By file: how often it may use a private name of the source, where the state under test has no public reader.
ALLOWED = {
    "client/test_interactive.py": 1,
    "core/policy/test_estimate.py": 1,
    "deferred.py": 2,
    "estimates/test_accuracy.py": 4,
    "estimates/test_history.py": 1,
    "integrations/django/test_admin.py": 1,
    "integrations/django/test_sqlite.py": 1,
    "server/test_auth.py": 2,
    "server/test_quotas.py": 2,
    "sessions/test_hostile.py": 10,
    "stores/redis/test_deferred_submit.py": 2,
    "stores/redis/test_lost_replies.py": 1,
    "stores/redis/test_sentinel.py": 3,
    "stores/redis/test_trouble.py": 1,
    "stores/split/test_split.py": 3,
    "stores/sqlite/test_groups.py": 1,
    "stores/sqlite/test_notifier.py": 1,
    "stores/test_transport.py": 1,
    "worker/test_claimer.py": 1,
    "worker/test_parent.py": 3,
}


def private_names() -> set[str]:
    """Return the private names that the source gives to functions, classes, attributes and variables."""
    found = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    found.add(name)
                case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                    found.add(name)
    return {name for name in found if name.startswith("_") and not name.startswith("__")} - {"_fields"}


def test_tests_use_public_names() -> None:
    private, used = private_names(), Counter[str]()
    assert len(private) > 1_000
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Attribute(value=ast.Name(id="self" | "cls")):
                    pass
                case ast.Attribute(attr=name) if name in private:
                    used[path.relative_to(ROOT / "tests").as_posix()] += 1
    more = {file: count for file, count in used.items() if count > ALLOWED.get(file, 0)}
    assert not more, "give the source a public name for what these tests read, or test it by behaviour"
