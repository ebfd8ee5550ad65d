"""The types of the public interface: code that type checkers must accept, and code that they must refuse."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MARK = "# wrong"

Check = Callable[[Path], dict[int, list[str]]]  # What a checker says of a file, by line.


def run_mypy(file: Path, cache: Path) -> dict[int, list[str]]:
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={cache}", "--no-color-output"]
    done = subprocess.run([*command, str(file)], cwd=file.parent, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[int, list[str]] = {}
    for line in done.stdout.splitlines():
        if match := re.match(rf"{re.escape(file.name)}:(\d+): error: (.*)", line):
            found.setdefault(int(match[1]), []).append(match[2])
    assert bool(found) == bool(done.returncode), done.stdout
    return found


def run_pyright(file: Path, cache: Path) -> dict[int, list[str]]:
    (file.parent / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, str(file)]
    environment = os.environ | {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    done = subprocess.run(
        command, cwd=file.parent, env=environment, capture_output=True, text=True, check=False, timeout=55
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[int, list[str]] = {}
    for problem in json.loads(done.stdout)["generalDiagnostics"]:
        if problem["severity"] == "error":
            found.setdefault(problem["range"]["start"]["line"] + 1, []).append(problem["message"])
    return found


@pytest.fixture(
    params=[
        pytest.param(run_mypy, id="mypy", marks=pytest.mark.xdist_group("mypy")),  # Its runs share a cache.
        pytest.param(run_pyright, id="pyright"),
    ]
)
def check(request: pytest.FixtureRequest) -> Check:
    cache = request.config.cache
    assert cache is not None
    folder = cache.mkdir("typing")
    return lambda file: request.param(file, folder)


def copied(name: str, folder: Path) -> Path:
    """Copy a file to where a checker reads it. The checks of this repository ignore its stored name."""
    file = folder / name
    file.write_text((HERE / f"{name}.txt").read_text(encoding="utf-8"), encoding="utf-8")
    return file


@pytest.mark.slow
def test_right_calls_have_no_error(check: Check, tmp_path: Path) -> None:
    assert check(copied("right.py", tmp_path)) == {}


@pytest.mark.slow
def test_wrong_calls_have_an_error_each_and_nothing_else_has(check: Check, tmp_path: Path) -> None:
    file = copied("wrong.py", tmp_path)
    lines = file.read_text(encoding="utf-8").splitlines()
    marked = {number for number, line in enumerate(lines, start=1) if line.endswith(MARK)}
    found = check(file)
    missed = [f"{number}: {lines[number - 1].strip()}" for number in sorted(marked - found.keys())]
    extra = [f"{number}: {lines[number - 1].strip()}: {found[number]}" for number in sorted(found.keys() - marked)]
    assert (missed, extra) == ([], [])
