"""Prose names the actor, and docstrings begin with a plain verb."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import prose


def test_prose_names_the_actor() -> None:
    wrong = [
        f"{file.relative_to(prose.ROOT)}:{line}: {form}" for file in prose.files() for line, form in prose.found(file)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "name, text, forms",
    [
        ("a.py", '"""Give the number of jobs."""', [(1, "a docstring begins with Give")]),
        ("a.py", 'def f():\n    """Tells it."""', [(2, "a docstring begins with Tells")]),
        ("a.py", 'def f():\n    """Lay figures out."""', [(2, "a docstring begins with Lay")]),
        ("a.py", '"""Layouts."""', []),
        ("a.py", 'class A:\n    """Return it.\n\n    Whoever or nobody.\n    """', [(4, "Whoever"), (4, "nobody")]),
        ("a.py", "x = 1  # so  many of them", [(1, "so many")]),
        ("a.py", 'x = f"{y} is none"', [(1, "is none")]),
        ("a.py", '"""Return it, for those\nwho wait."""', [(1, "those who")]),
        ("a.py", '"""Return a lease of its."""', [(1, "of its")]),
        ("a.py", '"""Return the end of its lease."""\nx = y is None  # Given, told and heard', []),
        ("a.py", 'nobody = 1\nx = "Give"', []),
        ("a.py", '"""Return it, or None if there is none."""', []),
        ("a.sql", "-- a: read jobs\n-- that hangs on a lock\n", [(2, "hangs on")]),
        ("a.md", "As long as it runs.\nSo it waits so\nlong as it can.\n", [(2, "so long")]),
    ],
)
def test_a_banned_form_is_found(tmp_path: Path, name: str, text: str, forms: list[tuple[int, str]]) -> None:
    (tmp_path / name).write_text(text)
    assert list(prose.found(tmp_path / name)) == forms


def test_the_package_and_the_docs_are_read() -> None:
    assert {file.suffix for file in prose.files()} == {".py", ".sql", ".lua", ".md"}
