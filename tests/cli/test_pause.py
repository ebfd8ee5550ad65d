"""``headway pause`` and ``headway resume``."""

from __future__ import annotations

import pytest

from tests.cli.command import Cli, RunningCommand, until

NOOP = "demo.noop"


def submit(cli: Cli, *options: str) -> str:
    return cli.call("submit", NOOP, *options).out.strip()


def codes(cli: Cli, job_id: str) -> list[str]:
    return [reason["code"] for reason in cli.call("why", job_id, "--json").json["reasons"]]


def test_what_is_paused_adds_up_and_is_told(cli: Cli) -> None:
    submit(cli)
    assert cli.run("pause", "--lane", "low").out == "paused: lane low\n"
    assert cli.call("pause", "--task", NOOP).out == "paused: lane low, task demo.noop\n"
    assert cli.call("pause", "--tenant", "acme").out == "paused: lane low, task demo.noop, tenant acme\n"
    assert cli.call("pause").out == "paused: everything, lane low, task demo.noop, tenant acme\n"
    assert cli.call("resume", "--lane", "low", "--task", NOOP).out == "paused: everything, tenant acme\n"
    assert cli.call("stats", "--json").json["paused"] == ["everything", "tenant acme"]
    assert "everything, tenant acme" in cli.call("stats").out
    assert cli.run("resume").out == "nothing is paused\n"


def test_to_resume_what_is_not_paused_changes_nothing(cli: Cli) -> None:
    submit(cli)
    cli.call("pause", "--lane", "low")
    assert cli.call("resume", "--lane", "high").out == "paused: lane low\n"
    assert cli.call("resume", "--task", "other").out == "paused: lane low\n"


@pytest.mark.parametrize(
    "words, options",
    [
        pytest.param([], [], id="everything"),
        pytest.param(["--lane", "low"], ["--priority", "low"], id="a lane"),
        pytest.param(["--task", NOOP], [], id="a task"),
        pytest.param(["--tenant", "acme"], ["--tenant", "acme"], id="a tenant"),
    ],
)
def test_a_job_says_that_it_is_paused_until_it_is_resumed(cli: Cli, words: list[str], options: list[str]) -> None:
    job_id = submit(cli, *options)
    cli.call("pause", *words)
    assert codes(cli, job_id) == ["paused", "no_worker"]
    assert "waits because" in cli.call("status", job_id).out
    assert " paused: " in cli.call("status", job_id).out
    cli.call("resume", *words)
    assert codes(cli, job_id) == ["no_worker"]


def test_a_lane_that_is_none_is_not_paused(cli: Cli) -> None:
    submit(cli)
    ran = cli.call("pause", "--lane", "lwo", code=2)
    assert "no lane 'lwo'; did you mean 'low'?" in ran.err
    assert cli.call("resume").out == "nothing is paused\n"


def test_a_lane_that_only_jobs_know_may_be_paused(cli: Cli) -> None:
    (cli.folder / "with.toml").write_text("[lanes.urgent]\nlevel = 0\n")
    (cli.folder / "without.toml").write_text("crash_limit = 4\n")
    submit(cli)
    cli.call("policy", "apply", "with.toml")
    submit(cli, "--priority", "urgent")
    cli.call("policy", "apply", "without.toml")
    assert cli.call("pause", "--lane", "urgent").out == "paused: lane urgent\n"


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_a_store_that_is_not_there_is_not_made(cli: Cli, command: str) -> None:
    assert "there is no store at" in cli.call(command, code=1).err
    assert list(cli.folder.iterdir()) == []


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_help_tells_what_each_flag_is_for(cli: Cli, command: str) -> None:
    told = cli.call(command, "--help").out
    for flag in ("--lane", "--task", "--tenant"):
        assert flag in told


@pytest.mark.slow
def test_a_worker_stops_starting_and_goes_on_at_once(cli: Cli) -> None:
    started: RunningCommand = cli.start("up", "--slots", "2")
    try:
        started.wait_for("worker.up")
        assert cli.run("submit", NOOP, "--wait").code == 0
        cli.run("pause", "--task", NOOP)
        job_id = submit(cli)
        other = cli.run("submit", "demo.echo", "value=1", "--wait")
        assert other.out.splitlines()[-1] == "1"  # It went past the one that is paused.
        assert cli.call("status", job_id, "--json").json["status"] == "queued"
        assert codes(cli, job_id)[0] == "paused"
        cli.run("resume")
        until(lambda: cli.call("status", job_id, "--json").json["status"] == "completed")
        waited = cli.call("why", job_id, "--json").json["waited_s"]
        assert waited["paused"] > 0
    finally:
        started.end()
