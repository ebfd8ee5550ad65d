"""Adopted tasks work on the oldest release of Celery that the extra allows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = Path(__file__).parents[4]
FILES = ("test_adopting.py", "test_canvas.py", "test_schedule.py", "test_tasks.py")
REPLACE = "test_canvas.py::test_a_task_can_replace_itself_and_keeps_its_id"
# The beginnings of tests, and what Celery itself did differently then.
SKIPPED = {
    "test_adopting.py::test_receivers_of_worker_signals_can_use_django": "Celery's Django fixup had other methods",
    "test_canvas.py::test_a_chord_can_follow_a_chord_with_a_group_as_body": "the app had to be the current one",
    f"{REPLACE}[sqlite-process-chain to group": "self.replace with a chain that ends with a group never ended",
    f"{REPLACE}[redis-thread-chain to group": "the same",
}

pytestmark = [pytest.mark.proof, pytest.mark.timeout(1_200)]


def oldest() -> str:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    found = re.match(r"celery\[redis\]>=([\d.]+)$", extras["celery"][0])
    assert found is not None
    return found[1]


def test_the_tests_of_adoption_pass_on_the_oldest_celery(tmp_path: Path) -> None:
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(tmp_path)]
    subprocess.run([*install, f"celery=={oldest()}.*"], check=True)
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", *(str(HERE / file) for file in FILES)]
    words += [f"--deselect={HERE.relative_to(ROOT)}/{name}" for name in SKIPPED]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    version = subprocess.run(
        [sys.executable, "-c", "import celery; print(celery.__version__)"],
        env=environment, cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert version.stdout.startswith(oldest())
    answer = subprocess.run(
        [sys.executable, *words], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stdout
    assert "passed" in answer.stdout
