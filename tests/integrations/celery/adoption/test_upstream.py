"""Celery's own integration tests for tasks, run against adopted apps and a Headway worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.servers import Valkey

HERE = Path(__file__).parent / "upstream"
ROOT = Path(__file__).parents[4]
FILES = ("t/integration/test_tasks.py",)

pytestmark = [pytest.mark.proof, pytest.mark.timeout(1_200)]


def download(folder: Path) -> Path:
    """Download Celery's source distribution and return the folder that has its tests."""
    name = f"celery=={version('celery')}"
    words = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--no-binary",
        ":all:",
        "-q",
        "-d",
        str(folder),
        name,
    ]
    subprocess.run(words, check=True)
    (archive,) = folder.glob("celery-*.tar.gz")
    with tarfile.open(archive) as source:
        members = [member for member in source.getmembers() if "/t/" in member.name]
        source.extractall(folder, members, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


def run(source: Path, folder: Path, server: Valkey) -> dict[str, str]:
    """Run the tests and return the outcome of each."""
    environment = {
        **os.environ,
        "TEST_BROKER": f"{server.url}/0",
        "TEST_BACKEND": f"{server.url}/1",
        "REDIS_HOST": "127.0.0.1",
        "REDIS_PORT": server.url.rpartition(":")[2],
        "UPSTREAM_STORE": f"sqlite:///{folder}/jobs.db",
        "UPSTREAM_FOLDER": str(folder),
        "PYTHONPATH": os.pathsep.join(map(str, (source, HERE, ROOT / "src"))),
        "PYTHONWARNINGS": "ignore",
    }
    words = [
        sys.executable, "-m", "pytest", "-p", "upstream_plugin", "-p", "celery.contrib.pytest", "-p", "no:timeout",
        "-p", "no:cacheprovider", "-q", "-c", os.devnull, "-o", "python_classes=test_*", "--rootdir", str(source),
        *FILES,
    ]  # fmt: skip
    subprocess.run(words, env=environment, cwd=source, check=False, stdout=subprocess.DEVNULL)
    found: dict[str, str] = json.loads((folder / "outcomes.json").read_text())
    return found


def test_celerys_own_tests_pass_or_are_listed_with_a_reason(tmp_path: Path) -> None:
    server = Valkey(tmp_path / "server", 'save ""')
    server.start()
    try:
        outcomes = run(download(tmp_path), tmp_path, server)
    finally:
        server.stop()
    reasons: dict[str, str] = json.loads((HERE / "not_passing.json").read_text())
    failed = {name for name, outcome in outcomes.items() if outcome == "failed"}
    assert sorted(failed - set(reasons)) == []
    assert all(reasons.values())
    passed = sum(outcome == "passed" for outcome in outcomes.values())
    assert passed >= len(outcomes) - len(reasons) - sum(outcome == "skipped" for outcome in outcomes.values())
    print(f"\n{passed} of {len(outcomes)} tests of Celery {version('celery')} pass")
