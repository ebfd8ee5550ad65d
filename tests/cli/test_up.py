"""Workers that the command line starts, from start to end."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.cli.command import Cli, RunningCommand, Terminal, until


@pytest.fixture
def up(cli: Cli) -> Generator[RunningCommand]:
    started = cli.start("up", "--namespace", "shop", "--grace", "10", HEADWAY_LOG="json", HEADWAY_LOG_LEVEL="debug")
    try:
        yield started
    finally:
        started.end()


def test_up_processes_jobs_and_drains_when_told_to_stop(cli: Cli, up: RunningCommand) -> None:
    assert up.wait_for("worker.up")["namespace"] == "shop"
    assert cli.run("submit", "demo.echo", "value=1", "--wait", "--namespace", "shop").out.splitlines()[1:] == ["1"]
    job_id = cli.submit("demo.sleep", "seconds=1", "--namespace", "shop")
    until(lambda: any(e["event"] == "job.started" and e["job"] == job_id for e in up.events()))
    assert up.terminate() == 0
    assert cli.run("status", job_id, "--namespace", "shop", "--json").json["status"] == "completed"


def test_log_lines_on_a_terminal_are_coloured_by_their_event(cli: Cli) -> None:
    terminal = Terminal(cli, "worker", "headway.demo:app", "--log-level", "debug")
    try:
        terminal.read_until("worker.up")
        cli.call("submit", "demo.noop", "--wait")
        terminal.read_until("\x1b[32mjob.completed \x1b[0m  demo.noop  job=")
        assert "\x1b[36mjob.started   \x1b[0m  demo.noop  job=" in terminal.seen
        terminal.press("\x03")
        terminal.read_until("worker.gone")
        assert terminal.wait() == 0
        assert "\\x1b" not in terminal.seen
        assert '"event"' not in terminal.seen
    finally:
        terminal.end()


def test_up_on_a_terminal_shows_a_live_view_and_stops_on_ctrl_c(cli: Cli) -> None:
    terminal = Terminal(cli, "up")
    try:
        terminal.read_until("headway submit demo.sleep seconds=2")
        terminal.read_until("/ui/")
        assert "dashboard" in terminal.seen
        cli.call("submit", "demo.noop", "--wait")
        terminal.read_until("completed")
        terminal.press("\x03")
        terminal.read_until("Headway has stopped.")
        assert terminal.wait() == 0
        assert '"event"' not in terminal.seen
    finally:
        terminal.end()


def test_ctrl_c_ends_a_command_quietly(cli: Cli) -> None:
    terminal = Terminal(cli, "submit", "demo.noop", "--wait")
    try:
        terminal.read_until("\n")
        terminal.press("\x03")
        assert terminal.wait() == 130
        assert "Traceback" not in terminal.seen
    finally:
        terminal.end()


def test_a_worker_that_is_drained_leaves(cli: Cli) -> None:
    (cli.folder / "tasks.py").write_text("from headway import Headway\n\napp = Headway()\n")
    started = cli.start("worker", "tasks:app")
    try:
        started.wait_for("worker.up")
        (worker,) = cli.run("workers", "--json").json["items"]
        wrong = cli.run("drain", worker["id"][:-1] + "?", code=1).err
        assert f"did you mean '{worker['id']}'?" in wrong
        assert cli.run("drain", worker["id"]).out == f"{worker['id']}  draining\n"
        assert started.wait() == 0
    finally:
        started.end()


def test_a_broken_app_shows_its_own_error(cli: Cli) -> None:
    (cli.folder / "broken.py").write_text("import nowhere_to_be_found\n")
    ran = cli.run("worker", "broken:app", code=3)
    assert "import nowhere_to_be_found" in ran.err
    assert ran.err.rstrip().endswith("ModuleNotFoundError: No module named 'nowhere_to_be_found' [cannot_start]")
    assert "import nowhere_to_be_found" in cli.run("submit", "any.task", "--app", "broken:app", code=3).err


@pytest.mark.parametrize(
    "words, code, message",
    [
        pytest.param(["worker"], 2, "no app: write `headway worker module:attribute`", id="no app"),
        pytest.param(["worker", "nowhere:app"], 3, "no module 'nowhere'", id="no module"),
        pytest.param(["worker", "a:b", "--slots", "0"], 2, "--slots. Must be >= 1.", id="no slots"),
        pytest.param(["worker", "a:b", "--slotz", "1"], 2, "did you mean '--slots'?", id="unknown option"),
        pytest.param(["up", "--store", "memory://"], 2, "memory:// lives inside one process", id="memory"),
    ],
)
def test_a_worker_that_cannot_start_says_why(cli: Cli, words: list[str], code: int, message: str) -> None:
    assert message in cli.call(*words, code=code).err
    assert not (cli.folder / "headway.db").exists()
