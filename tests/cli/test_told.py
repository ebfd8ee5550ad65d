"""Reports of doctor, stats and up on the present state."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from headway.cli import render, tables
from headway.cli.live import command_here
from headway.stores.base import Stats
from tests.cli.command import Cli
from tests.servers import free_port


@pytest.mark.parametrize("address", ["redis://127.0.0.1:hunter2", "postgresql://me@db:hunter2/app"])
def test_no_command_shows_a_password_that_stands_in_place_of_a_port(cli: Cli, address: str) -> None:
    for words, code in ((["doctor"], 1), (["doctor", "--json"], 1), (["stats"], 2), (["migrate"], 2)):
        ran = cli.call(*words, "--store", address, code=code)
        assert "hunter2" not in ran.out + ran.err


def test_doctor_advises_to_start_a_server_that_is_down(cli: Cli) -> None:
    checks = cli.call("doctor", "--json", "--store", f"redis://127.0.0.1:{free_port()}", code=1).json["checks"]
    assert [check["status"] for check in checks] == ["fail"]
    assert checks[0]["advice"].startswith("start the server, or let this machine reach it")
    checks = cli.call("doctor", "--json", code=1).json["checks"]
    assert "start a worker: it makes the file" in checks[0]["advice"]


def test_doctor_fits_a_page_where_it_is_piped(cli: Cli) -> None:
    cli.call("submit", "demo.noop")
    out = cli.call("doctor", code=1).out
    settings = out[: out.index("Checks")]
    assert max(map(len, settings.splitlines())) <= 100
    assert all(word in settings for word in ("api_key", "private_key", "passphrase"))  # Folded, not cut.


@pytest.mark.parametrize("words", [["worker", "headway.demo:app"], ["up"], ["serve"], ["stats"]])
def test_a_wrong_setting_is_a_wrong_call_whatever_the_command(cli: Cli, words: list[str]) -> None:
    assert "[config]" in cli.run(*words, code=2, HEADWAY_SLOTS="0").err  # Only a worker's own process reads it whole.
    assert "[config]" in cli.call(*words, code=2, HEADWAY_SLOTS="abc").err


def test_an_app_that_is_missing_could_not_be_loaded(cli: Cli) -> None:
    assert "[cannot_start]" in cli.run("worker", "nowhere:app", code=3).err


def test_the_latest_counts_are_counts_and_say_of_how_long(cli: Cli) -> None:
    stats = Stats(90_000, {}, (), {"submitted": 4}, {"submitted": 4}, {})
    assert render.lately(stats) == "last 90 s"
    assert render.stats_values(stats)["last"] == {"seconds": 90.0, "submitted": 4}
    assert tables.counts_line(stats.last_minute).plain == "4 submitted"
    for _ in range(4):
        cli.call("submit", "demo.noop")
    told = cli.call("stats").out
    assert "4 submitted" in told
    assert "kept for      completed jobs 1 d, failed 7 d, dead letters 30 d" in told
    assert "kept         nothing" not in told
    assert "unsuccessful  no jobs" in told


def test_a_job_that_may_be_retried_any_number_of_times_shows_no_number(cli: Cli) -> None:
    # The tasks of a Celery project have this number: Celery decides about their retries.
    job_id = cli.submit("demo.noop", "--max-retries", "1000000")
    assert "0 of any number" in cli.call("status", job_id).out
    assert "1000001" not in cli.call("jobs").out


def test_the_hint_of_up_names_a_command_that_works_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / ".venv" / "bin" / "headway"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [".venv/bin/headway", "up"])
    monkeypatch.setenv("PATH", "/nowhere")
    assert command_here() == os.path.join(".venv", "bin", "headway")
    monkeypatch.setenv("PATH", str(program.parent))
    assert command_here() == "headway"
    monkeypatch.setattr(sys, "argv", [str(program), "up"])
    monkeypatch.setenv("PATH", "/nowhere")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert command_here() == str(program)
    monkeypatch.setattr(sys, "argv", ["/x/headway/__main__.py", "up"])
    assert command_here() == f"{sys.executable} -m headway"
