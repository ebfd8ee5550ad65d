"""Commands on a store with a running worker."""

from __future__ import annotations

import pytest

from tests.cli.command import Cli, RunningCommand, until

pytestmark = [pytest.mark.xdist_group("cli-live"), pytest.mark.usefixtures("live_up")]


def test_submit_prints_the_id_and_with_wait_the_result(live: Cli) -> None:
    out = live.run("submit", "demo.echo", 'value={"a": [1, "ä"]}', "--wait").out.splitlines()
    assert len(out[0]) == 36
    assert out[1:] == ['{"a": [1, "ä"]}']


def test_submit_as_json_gives_the_whole_ending(live: Cli) -> None:
    document = live.run("submit", "demo.echo", "--json-args", '{"value": 5}', "--wait", "--json").json
    assert (document["status"], document["result"], document["arguments"]) == ("completed", 5, {"value": 5})
    assert document["deduplicated"] is False
    assert document["finished_at"].endswith("Z")


def test_a_job_that_fails_can_be_listed_replayed_and_purged(live: Cli) -> None:
    failed = live.run("submit", "demo.fail", "message=[bold]no", "--max-retries", "0", "--wait", code=1)
    job_id = failed.out.strip()
    assert "error: job dead_letter after 1 attempt: RuntimeError: [bold]no" in failed.err

    assert "RuntimeError: [bold]no" in live.call("dlq", "list").out
    told = live.run("status", job_id).out
    assert "dead_letter" in told
    assert "raise RuntimeError(message)" in told
    assert "Arguments" not in told

    assert "queued again" in live.run("dlq", "replay", job_id).out
    assert "finished  dead_letter (RuntimeError: [bold]no)" in live.run("status", job_id, "--follow").out

    refused = live.call("dlq", "purge", job_id, code=2)
    assert "--yes" in refused.err
    assert live.run("dlq", "purge", job_id, "--yes").out == "1 dead letter removed\n"
    assert live.call("dlq", "list", "--json").json == {"items": [], "next_cursor": None}


def test_follow_tells_what_happens_until_the_end(live: Cli) -> None:
    job_id = live.submit("demo.progress", "steps=2", "seconds=0.4")
    told = live.run("status", job_id, "--follow").out
    assert "queued    demo.progress in lane medium" in told
    assert "started   attempt 1 on " in told
    assert told.rstrip().endswith("finished  completed")


def test_an_executing_job_is_asked_to_stop(live: Cli, live_up: RunningCommand) -> None:
    job_id = live.submit("demo.sleep", "seconds=60", "--priority", "high")
    until(lambda: any(line["event"] == "job.started" and line["job"] == job_id for line in live_up.events()))
    assert "asked to stop" in live.run("cancel", job_id).out
    assert "finished  cancelled" in live.run("status", job_id, "--follow").out


def test_submit_knows_tasks_by_the_catalogue(live: Cli) -> None:
    assert "did you mean 'demo.sleep'?" in live.call("submit", "dmo.sleep", code=1).err
    wrong = live.call("submit", "demo.sleep", "secnds=1", code=2).err
    assert "has no parameter 'secnds'; did you mean 'seconds'?" in wrong
    assert "missing a required" in live.call("submit", "demo.echo", code=2).err
    assert "argument 'seconds': expected" in live.call("submit", "demo.sleep", "seconds=soon", code=2).err


def test_workers_stats_and_top_show_the_worker(live: Cli) -> None:
    (worker,) = live.run("workers", "--json").json["items"]
    assert worker["slots"] == 8
    assert "demo.cpu" in worker["tasks"]
    stats = live.run("stats", "--json").json
    assert list(stats["lanes"]) == ["high", "medium", "low"]
    assert [found["id"] for found in stats["workers"]] == [worker["id"]]
    picture = live.run("top", "--once").out
    assert "1 worker" in picture
    assert worker["id"] in picture
    assert live.call("doctor", "--json").json["ok"] is True
