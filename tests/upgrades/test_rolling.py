"""Workers of this release and of the next one share a store with jobs in flight: forward, side by side, and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headway import Headway, Job
from headway.version import __version__
from tests.cli.command import Cli, RunningCommand, until
from tests.upgrades.next_release import VERSION, build
from tests.upgrades.stores import STORES, empty

ROOT = Path(__file__).parents[2]
TASKS = """
from pathlib import Path
import time
from headway import Context, Headway
from headway.version import __version__

app = Headway()

@app.task(name="roll.now", context=True)
def now(ctx: Context) -> list[str]:
    return [__version__, f"attempt {ctx.attempt}"]

@app.task(name="roll.wait", context=True)
def wait(ctx: Context, go: str) -> list[str]:
    Path(f"{go}.started").touch()
    while not Path(go).exists():
        time.sleep(0.02)
    return [__version__, f"attempt {ctx.attempt}"]
"""
QUICK = {"HEADWAY_HEARTBEAT": "1", "HEADWAY_DEAD_AFTER": "30"}


class Releases:
    """This release and the next one, on one store."""

    def __init__(self, folder: Path, url: str, later: Path) -> None:
        (folder / "rolling.py").write_text(TASKS)
        self.folder, self.url = folder, url
        self.app = Headway(url)
        self.now = self.app.task(name="roll.now")(_now)
        self.wait = self.app.task(name="roll.wait")(_wait)
        self._paths = {"this": ROOT / "src", "next": later}

    def run(self, release: str, *words: str, code: int = 0) -> str:
        """Run a command of a release. Return its output."""
        ran = Cli(self.folder).run(*words, "--store", self.url, code=code, PYTHONPATH=str(self._paths[release]))
        return ran.out + ran.err

    @contextmanager
    def worker(self, release: str, name: str) -> Iterator[RunningCommand]:
        """Run a worker of a release, and stop it at the end."""
        folder = self.folder / name
        folder.mkdir()
        paths = f"{self._paths[release]}:{self.folder}"
        words = ("worker", "rolling:app", "--store", self.url)
        started = Cli(folder).start(*words, **QUICK, PYTHONPATH=paths)
        try:
            started.wait_for("worker.up")
            yield started
            assert started.terminate() == 0
        finally:
            started.end()

    def submit_started(self, go: Path) -> Job[list[str]]:
        """Submit a job that runs until a file exists, and wait until it runs."""
        job = self.wait.enqueue(str(go))
        until(lambda: go.with_name(f"{go.name}.started").exists() or None)
        return job


def _now() -> list[str]:
    raise NotImplementedError  # Only workers run it.


def _wait(go: str) -> list[str]:
    raise NotImplementedError


@pytest.fixture(scope="module")
def admits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a next release whose stores this release may still write."""
    return build(tmp_path_factory.mktemp("admits"), oldest_writer=1)


@pytest.fixture(scope="module")
def excludes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a next release whose stores this release may not write."""
    return build(tmp_path_factory.mktemp("excludes"), oldest_writer=2)


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES)
def test_a_rolling_upgrade_and_back_loses_and_repeats_no_job(store: str, tmp_path: Path, admits: Path) -> None:
    # P14
    both = Releases(tmp_path, empty(store, tmp_path), admits)
    try:
        both.run("this", "migrate")
        first, second = tmp_path / "go-1", tmp_path / "go-2"
        with both.worker("this", "old"):
            kept = both.submit_started(first)
            # Forward: the store changes while the older worker runs a job.
            assert "would become schema" in both.run("next", "migrate", "--dry-run")
            both.run("next", "migrate")
            with both.worker("next", "new"):
                side_by_side = [both.now.enqueue() for _ in range(10)]
                assert {job.result(timeout=50)[1] for job in side_by_side} == {"attempt 1"}
                first.touch()
                assert kept.result(timeout=50) == [__version__, "attempt 1"]
        with both.worker("next", "newer"):
            assert both.now.enqueue().result(timeout=50) == [VERSION, "attempt 1"]
            kept = both.submit_started(second)
            # Back: a worker of this release joins a store that the next one has changed.
            assert "newer than" in both.run("this", "migrate")
            with both.worker("this", "back"):
                second.touch()
                assert kept.result(timeout=50) == [VERSION, "attempt 1"]
        with both.worker("this", "last"):
            assert both.now.enqueue().result(timeout=50) == [__version__, "attempt 1"]
    finally:
        both.app.close()


@pytest.mark.slow
def test_this_release_works_in_a_schema_that_the_next_one_made(tmp_path: Path, admits: Path) -> None:
    # P14
    both = Releases(tmp_path, empty("postgres", tmp_path), admits)
    try:
        both.run("next", "migrate")
        assert "has no functions of version" in both.run("this", "stats", code=1)
        assert "functions: add version" in both.run("this", "migrate", "--dry-run")
        both.run("this", "migrate")
        assert both.run("next", "migrate", "--dry-run") == both.run("next", "migrate")  # Its numbers have stayed.
        with both.worker("next", "new"):
            assert both.now.enqueue().result(timeout=50) == [VERSION, "attempt 1"]
        with both.worker("this", "old"):
            assert both.now.enqueue().result(timeout=50) == [__version__, "attempt 1"]
    finally:
        both.app.close()


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES)
def test_a_store_that_excludes_this_release_is_refused_and_left_alone(
    store: str, tmp_path: Path, excludes: Path
) -> None:
    # P14
    both = Releases(tmp_path, empty(store, tmp_path), excludes)
    try:
        both.run("next", "migrate")
        for words in (("migrate",), ("stats",), ("worker", "rolling:app")):
            refused = both.run("this", *words, code=3 if words[0] == "worker" else 1)
            assert "written by a newer Headway (format 2" in refused
            assert "upgrade Headway here" in refused
        assert "nothing to do" in both.run("next", "migrate")
    finally:
        both.app.close()
