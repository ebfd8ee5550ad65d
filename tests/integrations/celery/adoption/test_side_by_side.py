"""Adopted tasks and tasks that stay on Celery work side by side, each with its own workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import celery  # type: ignore[import-untyped]
import pytest

from headway.integrations.celery import adoption_of
from tests.conftest import valkey
from tests.integrations.celery.adoption.conftest import PROJECT, start_worker
from tests.integrations.celery.adoption.project import make_app
from tests.integrations.celery.workers import ROOT

# pyright reads Celery's source and takes the result of a chain for None.
chain: Any = celery.chain
group: Any = celery.group


def test_a_chain_can_lead_from_headway_to_celery_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, store = valkey().url, f"sqlite:///{tmp_path}/jobs.db"
    monkeypatch.setenv("ADOPTED_SERVER", server)
    monkeypatch.setenv("ADOPTED_TRACE", str(tmp_path / "trace"))
    environment = {**os.environ, "ADOPTED_STORE": store, "ADOPTED_EXECUTOR": "thread", "C_FORCE_ROOT": "1"}
    celery = [sys.executable, "-W", "ignore", "-m", "celery", "-A", PROJECT, "worker", "-P", "solo", "-l", "ERROR"]
    workers = [
        start_worker(tmp_path, store, "thread"),
        subprocess.Popen(celery, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL),
    ]
    app = make_app(store, "thread", broker=f"{server}/5", result_backend=f"{server}/6")
    add, theirs = app.tasks["work.add"], app.tasks["celery_side"]
    try:
        assert theirs.delay(1, 2).get(timeout=60) == [1, 2]
        assert add.delay(1, 2).get(timeout=60) == 3
        assert group(add.s(1, 1), theirs.s(3))().get(timeout=60) == [2, [3]]
        assert chain(add.s(1, 2), theirs.s("x"), add.s(["y"]))().get(timeout=60) == [3, "x", "y"]
        jobs = adoption_of(app).headway.jobs(limit=100)
        assert {job.record().task for job in jobs} == {"work.add"}
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait(30)
        adoption_of(app).headway.close()
