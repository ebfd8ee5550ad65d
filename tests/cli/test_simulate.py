"""``headway simulate`` and ``headway trace``."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.cli.command import Cli, until
from tests.cli.served import ServedCli

POLICY = """
[lanes.high]
level = 0
[lanes.low]
level = 1
weight = 3
promote_after = [30]
[reserve]
slots = 0
"""
OLD = POLICY.replace("promote_after = [30]", "")


@pytest.fixture
def traced(cli: Cli) -> Cli:
    """Return the command line with a trace of an hour: two lanes that need a little more than one slot."""
    chance = random.Random(3)
    rows = sorted((chance.uniform(0, 3_600), chance.choice(["high", "high", "low"])) for _ in range(1_200))
    lines = [f"{arrives:.3f},{chance.expovariate(0.3):.3f},{lane},{lane}-work" for arrives, lane in rows]
    (cli.folder / "jobs.csv").write_text("\n".join(["arrives,seconds,lane,task", *lines]))
    (cli.folder / "new.toml").write_text(POLICY)
    (cli.folder / "old.toml").write_text(OLD)
    return cli


def lines(text: str) -> list[str]:
    """Return the lines of a table, however wide its columns are."""
    return [" ".join(line.split()) for line in text.splitlines()]


def test_two_policies_are_compared_lane_by_lane(traced: Cli) -> None:
    ran = traced.call("simulate", "--trace", "jobs.csv", "--slots", "1", "--policy", "old.toml", "--policy", "new.toml")
    shown = lines(ran.out)
    assert shown[0].startswith("Replayed 1,200 jobs of 60 min on 1 worker of 1 slot, twice, in ")
    assert shown[0].endswith(" s. old.toml against new.toml.")
    assert shown[1] == "Calibration: none, because it has no recorded waits (none left out)."
    assert shown[3] == "lane jobs wait p50 p90 p99 longest busy"
    high, low = shown[4].split(), shown[5].split()
    assert (high[0], low[0], low[4][0]) == ("high", "low", "−")
    assert int(high[1]) + int(low[1]) == 1_200
    assert "Who gains: low-work −" in ran.out
    assert "Who loses: high-work " in ran.out
    assert "Promises of new.toml that did not hold: none." in ran.out
    assert shown[-1].startswith("Durations are replayed")


def test_equal_policies_change_nothing(traced: Cli) -> None:
    ran = traced.call(
        "simulate", "--trace", "jobs.csv", "--slots", "2", "--policy", "new.toml", "--against", "new.toml"
    )
    for row in lines(ran.out)[4:6]:
        assert row.count("=") == 4
    assert "Who gains: none beyond the noise. Who loses: none beyond the noise." in " ".join(ran.out.split())


def test_a_condition_fails_the_command_with_4(traced: Cli) -> None:
    words = ["simulate", "--trace", "jobs.csv", "--slots", "1", "--policy", "new.toml", "--against", "old.toml"]
    ran = traced.call(*words, "--fail-if", "low.p99 > 10", code=4)
    assert ran.err.startswith("failed: new.toml: low.p99 > 10, found ")
    traced.call(*words, "--fail-if", "low.p99 > 2h", "--fail-if", "task:high-work.p50 < 0")
    assert "no figure 'p98'" in traced.call(*words, "--fail-if", "low.p98 > 10", code=2).err
    assert "no lane 'lwo'; did you mean 'low'" in traced.call(*words, "--fail-if", "lwo.p99 > 10", code=2).err
    assert "--fail-if takes GROUP.METRIC > NUMBER" in traced.call(*words, "--fail-if", "p99", code=2).err


def test_a_table_by_task_and_more_slots(traced: Cli) -> None:
    ran = traced.call("simulate", "--trace", "jobs.csv", "--capacity", "0:1,30m:4", "--policy", "new.toml",
                      "--against", "new.toml", "--by", "task")  # fmt: skip
    assert "task jobs" in " ".join(ran.out.split())
    assert "on 1 worker with up to 4 slots" in ran.out


@pytest.mark.parametrize(
    "words, expected",
    [
        (["--trace", "jobs.csv"], "jobs.csv does not say which workers there were; give --slots, or --capacity"),
        (["--trace", "none.csv"], "the trace none.csv cannot be read: No such file"),
        (["--trace", "jobs.csv", "--slots", "1"], "column lane: the built-in policy has no lane"),
        (
            ["--trace", "jobs.csv", "--recorded", "1h"],
            "give one of --recorded, --trace, --model, --now, got --recorded and --trace",
        ),
        (["--trace", "jobs.csv", "--capacity", "1h:5"], "--capacity needs steps in order, the first one at 0"),
        (["--trace", "jobs.csv", "--capacity", "0h:x"], "--capacity takes a file or steps such as 0h:8,2h:16"),
        (["--trace", "jobs.csv", "--capacity", "8"], "got '8': expected TIME:SLOTS"),
        (["--trace", "jobs.csv", "--workers", "2"], "--workers needs --slots"),
        (
            ["--trace", "jobs.csv", "--slots", "1", "--policy", "bad.toml"],
            "bad.toml line 2, column 1: lanes.x.level: expected",
        ),
        (["--recorded", "soon"], "--recorded 'soon': expected seconds, or a length such as"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(traced: Cli, words: list[str], expected: str) -> None:
    (traced.folder / "bad.toml").write_text("[lanes.x]\nlevel = -1\n")
    text = Path(traced.folder / "jobs.csv").read_text().replace("low", "slow", 1)
    (traced.folder / "jobs.csv").write_text(text)
    ran = traced.call("simulate", *words, code=2)
    assert expected in ran.err
    assert ran.err.count("\n") == 1


def test_a_pause_of_an_unknown_lane_is_refused(traced: Cli) -> None:
    (traced.folder / "lwo.toml").write_text("[[workers]]\nslots = 1\n[[pauses]]\nlane = 'lwo'\n")
    words = ("simulate", "--trace", "jobs.csv", "--capacity", "lwo.toml", "--policy", "new.toml")
    expected = (
        "the capacity lwo.toml line 4, column 1, key pauses[0].lane: new.toml has no lane 'lwo'; did you mean 'low'?"
    )
    assert expected in traced.call(*words, "--against", "new.toml", code=2).err


def test_the_report_is_json_and_a_page_too(traced: Cli) -> None:
    words = ["simulate", "--trace", "jobs.csv", "--slots", "1", "--policy", "new.toml", "--against", "old.toml"]
    report = traced.call(*words, "--json", "--html", "report.html").json
    assert [one["name"] for one in report["policies"]] == ["old.toml", "new.toml"]
    assert (traced.folder / "report.html").read_text().startswith("<!doctype html>")
    assert "cannot be written" in traced.call(*words, "--html", "none/report.html", code=2).err


# ---------------------------------------------------------------------- recorded jobs


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """Return the command line with a store in which a real worker has run jobs."""
    cli = Cli(tmp_path_factory.mktemp("ran"))
    cli.call("migrate")
    for number in range(12):
        lane, tenant = ("high", "medium")[number % 2], f"t{number % 3}"
        cli.call("submit", "demo.echo", f"value={number}", "--priority", lane, "--tenant", tenant)
    cli.call("submit", "demo.fail", "--max-retries", "0")
    worker = cli.start("worker", "headway.demo:app", "--slots", "2", "--log-level", "debug")
    try:
        until(lambda: cli.call("stats", "--json").json["totals"].get("completed") == 12 or None)
        until(lambda: sum(cli.call("stats", "--json").json["kept"].values()) == 1 or None)
    finally:
        worker.end()
    return cli


def test_recorded_jobs_are_replayed_and_held_against_what_happened(ran: Cli) -> None:
    text = ran.call("simulate", "--recorded", "1h").out
    assert text.startswith("Replayed 13 jobs of ")
    assert " on 1 worker of 2 slots, once, in " in text
    more = ran.call("simulate", "--recorded", "1h", "--slots", "8").out
    assert "The built-in policy (in force) against the same on 1 worker of 8 slots." in more
    report = ran.call("simulate", "--recorded", "1h", "--json").json
    (only,) = report["policies"]
    assert {group["key"]: group["jobs"] for group in only["groups"] if group["by"] == "lane"} == {
        "high": 6,
        "medium": 7,
    }
    assert only["totals"]["completed"] == 12


def test_a_recorded_trace_replays_as_the_store_does(ran: Cli) -> None:
    assert ran.call("trace", "record", "jobs.csv").out.startswith("13 jobs of ")
    assert "exists; give another name" in ran.call("trace", "record", "jobs.csv", code=2).err
    direct = ran.call("simulate", "--recorded", "1h", "--json").json
    stored = ran.call("simulate", "--trace", "jobs.csv", "--json").json
    assert stored["policies"][0]["groups"] == direct["policies"][0]["groups"]
    shown = ran.call("trace", "show", "jobs.csv", "--json").json
    assert (shown["jobs"], shown["slots"], shown["tasks"]["demo.echo"]["jobs"]) == (13, 2, 12)
    assert "demo.echo" in ran.call("trace", "show", "jobs.csv").out


def test_an_anonymous_trace_replays_the_same(ran: Cli) -> None:
    ran.call("trace", "record", "again.jsonl", "--force")
    ran.call("trace", "anonymise", "again.jsonl", "shared.jsonl", "--tasks")
    text = (ran.folder / "shared.jsonl").read_text()
    assert "demo.echo" not in text
    assert '"t1"' not in text
    one, other = (
        [
            group
            for group in ran.call("simulate", "--trace", file, "--json").json["policies"][0]["groups"]
            if group["by"] == "lane"
        ]
        for file in ("again.jsonl", "shared.jsonl")
    )
    assert one == other


def test_an_empty_store_has_nothing_to_replay(cli: Cli) -> None:
    cli.call("migrate")
    ran = cli.call("simulate", "--recorded", "1h", code=2)
    assert "no job that was submitted in the last 3,600 s has ended" in ran.err


def test_a_model_is_replayed_with_five_seeds(cli: Cli) -> None:
    (cli.folder / "model.toml").write_text(
        'length = "20m"\n[[streams]]\nrate = 1\nlane = "low"\nseconds = {mean = 3}\n'
    )
    (cli.folder / "capacity.toml").write_text("[[workers]]\nslots = 2\ncount = 2\n")
    ran = cli.call("simulate", "--model", "model.toml", "--capacity", "capacity.toml", "--scale", "0.5")
    assert " at 0.5 times the arrivals on 2 workers of 2 slots, 5 times, in " in ran.out
    assert "Calibration: none, because a model never happened (none left out)." in ran.out
    assert "give one of" in cli.call("simulate", "--model", "model.toml", "--now", "5m", code=2).err
    assert (
        "the capacity none.toml cannot be read"
        in cli.call("simulate", "--model", "model.toml", "--capacity", "none.toml", code=2).err
    )


def test_now_goes_on_with_what_waits(cli: Cli) -> None:
    cli.call("cancel", cli.submit("demo.echo", "value=1"))  # Makes the store. No worker runs, so nothing is learned.
    now = ("simulate", "--now", "1m", "--slots", "1")
    assert "no job waits, and nothing was learned" in cli.call(*now, code=2).err
    for _ in range(3):
        cli.submit("demo.echo", "value=1", "--delay", "5")
    found = cli.call(*now, "--json").json
    assert (found["input"]["kind"], found["input"]["jobs"], found["input"]["seeds"]) == ("now", 3, 5)


def test_a_server_hands_out_what_is_needed_or_says_what_is_missing(served: ServedCli) -> None:
    through = served.url
    ran = served.cli.call("simulate", "--recorded", "1h", "--server", through, code=2)
    assert "no job that was submitted in the last 3,600 s has ended" in ran.err
    assert "--now needs the store itself" in served.cli.call("simulate", "--now", "1h", "--server", through, code=2).err
