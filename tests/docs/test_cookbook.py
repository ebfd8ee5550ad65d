"""The recipes of the cookbook print what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "cookbook.md").read_text()
RECIPES = re.findall(r"^## (.*?)\n.*?```python\n(.*?)```\n\n```\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)


def test_the_page_has_ten_recipes_and_each_has_a_program() -> None:
    assert len(RECIPES) == len(re.findall(r"^## ", PAGE, re.MULTILINE)) >= 10


@pytest.mark.parametrize("title, program, printed", RECIPES, ids=[title for title, _, _ in RECIPES])
def test_a_recipe_prints_what_the_page_shows(title: str, program: str, printed: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.py").write_text(program)
    done = subprocess.run([sys.executable, "recipe.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == (printed, 0), done.stderr
