"""``headway init`` writes a project that works as it is, and overwrites nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from headway.cli.init import PROJECT
from headway.cli.main import build
from headway.client.settings import load_settings
from tests.cli.command import Cli

NEXT = re.compile(r"^  headway (.*?)  +#", re.MULTILINE)


def test_the_project_runs_a_job_and_its_tests_pass(cli: Cli) -> None:
    out = cli.run("init", "shop").out
    project = Cli(cli.folder / "shop")
    assert {file.name for file in project.folder.iterdir()} == PROJECT.keys()
    assert all(f"  {name} " in out for name in PROJECT)
    up, submit = [line.split() for line in NEXT.findall(out)]
    assert (up[0], submit[0], "  cd shop\n" in out) == ("up", "submit", True)
    worker = project.start(*up)
    try:
        worker.wait_for("worker.up")
        assert project.run(*submit).out.splitlines()[-1] == '"Hello, Ada!"'
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        tests = subprocess.run(command, cwd=project.folder, capture_output=True, text=True, timeout=50)
        assert (tests.returncode, "2 passed" in tests.stdout) == (0, True), tests.stdout
        assert worker.terminate() == 0
    finally:
        worker.end()


def test_its_settings_are_known_and_its_services_have_no_default_password(cli: Cli) -> None:
    cli.call("init")
    assert load_settings(folder=cli.folder, environment={}).store == "sqlite:///headway.db"
    text = (cli.folder / "compose.yaml").read_text()
    assert set(re.findall(r"\$\{([^}]*)\}", text)) == {"POSTGRES_PASSWORD:?see the top of compose.yaml"}
    services = yaml.safe_load(text)["services"]
    for name in ("api", "worker"):
        _, bound, _ = build().parse_args(services[name]["command"])
        assert bound.args == ("tasks:app",)
        assert int(services[name]["stop_grace_period"].removesuffix("s")) == load_settings(folder=cli.folder).grace + 15
    assert services["api"]["ports"] == ["127.0.0.1:8000:8000"]
    copied = re.findall(r"^COPY (.*) \./$", (cli.folder / "Dockerfile").read_text(), re.MULTILINE)
    assert all((cli.folder / name).is_file() for name in copied[0].split())


@pytest.mark.parametrize("name", PROJECT)
def test_a_file_that_is_there_stops_it_before_it_writes(cli: Cli, name: str) -> None:
    (cli.folder / name).write_text("mine")
    problem = cli.call("init", code=2).err
    assert f"already contains {name}, and nothing was written; name another folder: headway init DIR" in problem
    assert [(file.name, file.read_text()) for file in cli.folder.iterdir()] == [(name, "mine")]


def test_a_dangling_link_is_not_written_through(cli: Cli, tmp_path: Path) -> None:
    (cli.folder / "tasks.py").symlink_to(tmp_path / "elsewhere.py")
    assert "already contains tasks.py" in cli.call("init", code=2).err
    assert not (tmp_path / "elsewhere.py").exists()


def test_a_file_in_place_of_the_folder_is_named(cli: Cli) -> None:
    (cli.folder / "shop").write_text("")
    assert "shop is a file; name a folder: headway init DIR" in cli.call("init", "shop", code=2).err
