"""The image: built from the Dockerfile, started, and used for a job."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "build_image.py"
MISSING = [name for name in ("buildah", "debootstrap") if shutil.which(name) is None]


@pytest.mark.proof
@pytest.mark.skipif(bool(MISSING) or os.geteuid() != 0, reason="needs root, buildah and debootstrap (Debian)")
def test_the_image_is_built_and_runs_a_job() -> None:
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2_000:]
    for line in (
        "the user is 'headway'",
        "whether the server shows the dashboard is True",
        "the result of a job is '\"from the image\"'",
        "the worker stopped after SIGTERM",
        "the server stopped after SIGTERM",
    ):
        assert f"ok: {line}" in done.stdout
    if shutil.which("podman") is not None:
        assert "ok: the result of a job in Podman is '\"from Podman\"'" in done.stdout
        assert "ok: the end of headway-worker in Podman is '0'" in done.stdout
