"""Celery's own integration tests for tasks and canvas, run against adopted apps and a Headway worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.servers import Valkey

HERE = Path(__file__).parent / "upstream"
ROOT = Path(__file__).parents[4]
FILES = ("test_tasks.py", "test_canvas.py", "test_group_chains.py")
SECONDS = 200  # A test that takes longer has hung. The longest that pass wait two minutes for what must not happen.
SLOTS = 4

pytestmark = [pytest.mark.proof, pytest.mark.timeout(3_600)]


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


def run(source: Path, file: str, folder: Path, server: Valkey) -> dict[str, str]:
    """Run the tests of a file and return the outcome of each."""
    environment = {
        **os.environ,
        "TEST_BROKER": f"{server.url}/0",
        "TEST_BACKEND": f"{server.url}/1",
        "REDIS_HOST": "127.0.0.1",
        "REDIS_PORT": server.url.rpartition(":")[2],
        "UPSTREAM_STORE": f"sqlite:///{folder}/jobs.db",
        "UPSTREAM_FOLDER": str(folder),
        "UPSTREAM_SECONDS": str(SECONDS),
        "UPSTREAM_SLOTS": str(SLOTS),
        "PYTHONPATH": os.pathsep.join(map(str, (source, HERE, ROOT / "src"))),
        "PYTHONWARNINGS": "ignore",
    }
    words = [
        sys.executable, "-m", "pytest", "-p", "upstream_plugin", "-p", "celery.contrib.pytest", "-p", "no:timeout",
        "-p", "no:cacheprovider", "-q", "-c", os.devnull, "-o", "python_classes=test_*", "--rootdir", str(source),
        f"t/integration/{file}",
    ]  # fmt: skip
    subprocess.run(words, env=environment, cwd=source, check=False, stdout=subprocess.DEVNULL)
    found: dict[str, str] = json.loads((folder / "outcomes.json").read_text())
    return found


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return download(tmp_path_factory.mktemp("celery"))


@pytest.mark.parametrize("file", FILES)
def test_celerys_own_tests_pass_or_are_listed_with_a_reason(file: str, source: Path, tmp_path: Path) -> None:
    server = Valkey(tmp_path / "server", 'save ""')
    server.start()
    try:
        outcomes = run(source, file, tmp_path, server)
    finally:
        server.stop()
    reasons: dict[str, str] = json.loads((HERE / "not_passing.json").read_text())
    failed = {name for name, outcome in outcomes.items() if outcome == "failed"}
    assert sorted(failed - set(reasons)) == []
    assert all(reasons.values())
    assert {name for name in reasons if name.startswith(file)} <= set(outcomes)
    counts = Counter("listed" if name in reasons else outcome for name, outcome in outcomes.items())
    late = [name for name in reasons if outcomes.get(name) == "passed"]  # They pass or fail with the timing.
    print(
        f"\n{file}: {counts['passed']} of {len(outcomes)} tests of Celery {version('celery')} pass, "
        f"{counts['skipped']} are skipped, {counts['listed']} are listed, of which {len(late)} pass this time: {late}"
    )
