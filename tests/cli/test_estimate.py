"""Commands that show when jobs run, estimates and crons, and completion in a shell."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from headway import Headway, Worker
from headway.cli.estimate import start_text
from headway.core.distributions import bucket
from headway.core.policy.estimate import Estimate
from headway.core.worker import WorkerInfo as WorkerRecord
from headway.estimates.history import LEARNED, LaneHistory, TaskHistory
from headway.stores.base import Heartbeat
from headway.stores.open import open_store
from tests.cli.command import Cli, until
from tests.cli.served import ServedCli


def learned(folder: Path) -> None:
    """Write a busy worker with one slot and the history of a hundred runs of ten seconds into the store."""

    async def write() -> None:
        store = open_store(f"sqlite:///{folder}/headway.db")
        await store.open()
        worker = WorkerRecord(worker_id="w", host="h", pid=1, slots=1, reserved=0, offers=("task:*",), version="1")
        await store.renew(Heartbeat(worker, 3_600_000, 10_000, register=True))
        notes = LaneHistory(since_at=0, tasks={"demo.sleep": TaskHistory(lengths={bucket(10.0): 100.0}, share=100.0)})
        await store.write(LEARNED, "medium", msgspec.json.encode(notes))
        await store.close()

    asyncio.run(write())


def test_a_job_of_which_too_little_is_known_has_no_seconds(cli: Cli) -> None:
    ids = [cli.call("submit", "demo.noop").out.strip() for _ in range(2)]
    found = cli.call("estimate", ids[1], "--json", code=1).json
    assert found == {
        "id": ids[1],
        "status": "queued",
        "estimate": {"p50": None, "p90": None, "position": 1, "basis": "unknown"},
    }
    assert "demo.noop: unknown, 1 job ahead" in cli.call("estimate", ids[1], code=1).out
    assert cli.call("status", ids[1], "--json").json["estimate"] == found["estimate"]
    assert "starts" in cli.call("status", ids[1]).out
    cli.call("cancel", ids[0])
    assert cli.call("estimate", ids[0], code=1).out == "demo.noop is cancelled; only a queued job has an estimate.\n"
    assert cli.call("status", ids[0], "--json").json["estimate"] is None
    assert "[job_not_found]" in cli.call("estimate", "nonsense", code=1).err


def test_a_job_that_would_start_now_starts_at_once() -> None:
    assert start_text(Estimate(p50=0.0, p90=0.0, position=0, basis="learned")) == "at once, next in line, learned"
    assert start_text(Estimate(p50=0.0, p90=0.5, position=0, basis="learned")).startswith("in 0 ms (p50) to 500 ms")


def test_what_was_learned_becomes_seconds(cli: Cli) -> None:
    ids = [cli.call("submit", "demo.sleep", "seconds=10").out.strip() for _ in range(5)]
    learned(cli.folder)
    found = cli.call("estimate", ids[-1], "--json").json["estimate"]
    assert (found["position"], found["basis"]) == (4, "learned")
    assert 20 < found["p50"] <= found["p90"] < 100  # Four jobs of some ten seconds in one slot.
    told = cli.call("estimate", ids[-1]).out
    assert "(p50)" in told
    assert "4 jobs ahead" in told
    assert "4 jobs ahead, learned" in cli.call("status", ids[-1]).out


def test_a_dry_run_submits_nothing(served: ServedCli) -> None:
    cli = served.cli
    ids = [served.submit("demo.sleep", "seconds=10") for _ in range(5)]
    learned(cli.folder)
    words = ("submit", "demo.sleep", "seconds=10", "--dry-run")
    said = [call(*words, "--json").json for call in (cli.call, served.call)]
    for values in said:
        assert (values["valid"], values["queue_position"], values["task_id"]) == (True, 5, None)
        assert [reason["code"] for reason in values["reasons"]] == []  # The next claim of the free slot starts jobs.
        assert 20 < values["estimate"]["p50"] <= values["estimate"]["p90"]
    shown = cli.call(*words).out
    assert shown.startswith("The job of demo.sleep is valid. Nothing was submitted.\n")
    assert "5 jobs ahead, learned" in shown
    for call in (cli.call, served.call):
        assert [job["id"] for job in cli.call("jobs", "--json").json["items"]] == ids[::-1]
        wrong = ("submit", "demo.sleep", "--priority", "hihg")
        assert call(*wrong, "--dry-run", code=2).err == call(*wrong, code=2).err
        assert "--dry-run submits nothing" in call(*words, "--wait", code=2).err
    key = ("--idempotency-key", "once")
    made = served.submit("demo.sleep", "seconds=1", *key)
    for call in (cli.call, served.call):
        again = ("submit", "demo.sleep", "seconds=1", "--dry-run", *key)
        assert call(*again, "--json").json["task_id"] == made
        assert f"existing job {made}, which is queued." in call(*again).out


def test_a_dry_run_does_not_make_a_store(cli: Cli) -> None:
    assert "no worker is running" in cli.call("submit", "demo.noop", "--dry-run").out
    assert list(cli.folder.iterdir()) == []


def test_a_lane_says_how_many_slots_it_wants(served: ServedCli) -> None:
    cli = served.cli
    assert cli.call("scale", "--lane", "medium", "--within", "30").out.startswith("No slot is wanted: no job of medium")
    for _ in range(9):
        served.submit("demo.sleep", "seconds=10")
    assert cli.call("scale", "--lane", "medium", "--within", "30").out.startswith("Keep 1 slot: too little is known")
    learned(cli.folder)
    found = cli.call("scale", "--lane", "medium", "--within", "30", "--json").json
    assert found | {"slots_wanted": 0, "wait_p90": 0} == {
        "slots_wanted": 0, "slots": 1, "busy": 0, "waiting": 9, "wait_p90": 0, "basis": "learned",
    }  # fmt: skip
    assert 3 <= found["slots_wanted"] <= 5
    assert served.call("scale", "--lane", "medium", "--within", "30s", "--json").json == found
    shown = cli.call("scale", "--lane", "medium", "--within", "30").out
    assert shown.startswith(f"{found['slots_wanted']} slots would let medium start its jobs within 30s.")
    assert "1 of live workers, 0 busy" in shown
    for call in (cli.call, served.call):
        assert "no lane 'hihg'; did you mean 'high'?" in call("scale", "--lane", "hihg", "--within", "30", code=2).err
    assert "within: expected seconds" in cli.call("scale", "--lane", "high", "--within", "soon", code=2).err


def test_crons_are_listed_with_their_last_and_next_run(cli: Cli) -> None:
    app = Headway(f"sqlite:///{cli.folder}/headway.db")

    @app.cron("* * * * * *", name="each.second")
    def each() -> None: ...

    @app.cron("0 3 1 1 *", tz="Europe/Paris", name="each.year")
    def yearly() -> None: ...

    assert cli.call("migrate").code == 0
    assert cli.call("crons", "list").out.startswith("No crons.")
    with app, Worker(app):
        until(lambda: app.jobs(task="each.second", status="completed"))
    second, year = cli.call("crons", "list", "--json").json["items"]
    assert (second["task"], second["paused"]) == ("each.second", False)
    (newest,) = cli.call("jobs", "--json", "--limit", "1").json["items"]
    assert second["last"]["id"] == newest["id"]
    assert (year["task"], year["tz"], year["last"]) == ("each.year", "Europe/Paris", None)
    assert year["next_at"].endswith("-01-01T02:00:00.000Z")
    cli.call("pause", "--task", "each.year")
    told = cli.call("crons", "list").out
    assert "paused" in told
    assert second["last"]["id"][-8:] in told


def test_completion_knows_the_commands(cli: Cli) -> None:
    script = cli.call("completion", SHELL="/usr/bin/fish").out
    assert all(word in script for word in ("complete -c headway", "estimate", "status", "replay"))
    assert "name the shell: bash, zsh or fish" in cli.call("completion", code=2, SHELL="/bin/csh").err


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_a_command(cli: Cli) -> None:
    (cli.folder / "headway.bash").write_text(cli.call("completion", "bash").out)
    lines = "source ./headway.bash; COMP_WORDS=(headway est); COMP_CWORD=1; complete -p headway"
    done = subprocess.run(["bash", "-c", lines], cwd=cli.folder, env=dict(os.environ), capture_output=True, text=True)
    function = done.stdout.split("-F ")[1].split()[0]
    lines = f"source ./headway.bash; COMP_WORDS=(headway est); COMP_CWORD=1; {function}; echo ${{COMPREPLY[@]}}"
    done = subprocess.run(["bash", "-c", lines], cwd=cli.folder, env=dict(os.environ), capture_output=True, text=True)
    assert done.stdout.split() == ["estimate"], done
