"""A store that an earlier release wrote, with jobs in flight, is opened by this one, which finishes every job.

If a test here fails after a change of what stores hold, the change needs a migration. As long as a release is not out,
``python -m tests.upgrades.write_fixture`` may write its fixture again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from headway import Headway
from headway.core.errors import JobFailed
from headway.core.job import State
from headway.stores.base import JobQuery
from headway.stores.open import open_store
from headway.version import __version__
from tests.cli.command import Cli
from tests.upgrades.stores import STORES, VERSIONS, jobs_of, load

ROOT = Path(__file__).parents[2]
QUICK = {"HEADWAY_HEARTBEAT": "1", "HEADWAY_DEAD_AFTER": "3", "PYTHONPATH": str(ROOT)}


def test_every_release_has_its_stores() -> None:
    assert "0.1.0" in VERSIONS
    assert __version__ in VERSIONS, "run: python -m tests.upgrades.write_fixture"


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("version", VERSIONS)
def test_every_job_of_an_earlier_release_comes_to_its_end(version: str, store: str, tmp_path: Path) -> None:
    # P14
    url, jobs = load(version, store, tmp_path), jobs_of(version, store)
    cli = Cli(tmp_path)
    cli.run("migrate", "--store", url)
    app = Headway(url)
    try:
        for job_id, result in jobs["completed"].items():
            assert app.job(job_id).result(timeout=0) == result
        for job_id in jobs["dead_letter"]:
            with pytest.raises(JobFailed, match="no stock"):
                app.job(job_id).result(timeout=0)
        assert {app.job(job_id).status() for job_id in jobs["executing"]} == {State.EXECUTING}
        worker = cli.start("worker", "tests.upgrades.shop:app", "--store", url, **QUICK)
        try:
            for job_id, result in jobs["expected"].items():
                assert app.job(job_id).result(timeout=50) == result, job_id
        finally:
            worker.end()
        # The two jobs in flight ran once here. Their first attempt was that of the worker that is gone.
        assert sorted((tmp_path / "packed").read_text().split()) == ["1", "2"]
    finally:
        app.close()


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("version", VERSIONS)
async def test_asking_for_changes_makes_none(version: str, store: str, tmp_path: Path) -> None:
    url, jobs = load(version, store, tmp_path), jobs_of(version, store)
    opened = open_store(url)
    try:
        before, newest = await opened.schema()
        assert opened.abilities.pending_changes is not None
        changes = await opened.abilities.pending_changes()
        assert (before == newest) == (changes == [])
        assert await opened.schema() == (before, newest)
        if opened.abilities.migrate is not None:
            await opened.abilities.migrate()
        await opened.open()
        assert await opened.schema() == (newest, newest)
        assert await opened.abilities.pending_changes() == []
        assert len(await opened.find(JobQuery(limit=100))) == jobs["jobs"]
    finally:
        await opened.close()
