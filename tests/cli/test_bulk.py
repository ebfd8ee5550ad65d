"""Commands that change all jobs that match a search, and commands on crons: on a store and through a server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from headway import Headway, Worker
from headway.security.audit import read_audit
from headway.stores.open import open_store
from tests.cli.command import Cli, CommandResult, until
from tests.cli.served import ServedCli, ServerThread

Call = Callable[..., CommandResult]


@pytest.fixture(params=["store", "server"])
def call(cli: Cli, request: pytest.FixtureRequest) -> Iterator[Call]:
    """Return a function that runs a command on the store, or through a server."""
    cli.call("migrate")
    if request.param == "store":
        yield cli.call
        return
    server = ServerThread(cli.folder)
    server.start()
    try:
        yield ServedCli(cli, server.url).call
    finally:
        server.stop()


def submit(cli: Cli, count: int, *words: str) -> list[str]:
    return [cli.call("submit", "demo.sleep", f"seconds={number}", *words).out.strip() for number in range(count)]


def states(cli: Cli, ids: list[str]) -> list[str]:
    return [cli.call("status", job_id, "--json").json["status"] for job_id in ids]


def test_all_jobs_that_fit_are_cancelled_and_retried(cli: Cli, call: Call) -> None:
    ids, others = submit(cli, 3, "--priority", "low"), submit(cli, 1)
    counted = call("bulk", "cancel", "--where", "lane:low", "--dry-run", "--json").json
    assert (counted["count"], counted["examples"]) == (3, ids[::-1])
    assert states(cli, ids) == ["queued"] * 3
    assert "3 jobs changed of 3" in call("bulk", "cancel", "--where", "lane:low").out
    assert states(cli, [*ids, *others]) == ["cancelled"] * 3 + ["queued"]
    assert "1 job changed of 1" in call("bulk", "retry", "--where", f"id:{ids[0]}").out
    assert states(cli, ids) == ["queued", "cancelled", "cancelled"]


def test_jobs_run_now_and_change_lanes(cli: Cli, call: Call) -> None:
    (late,) = submit(cli, 1, "--delay", "3600")
    assert "1 job changed" in call("bulk", "run-now", "--where", "why:scheduled").out
    assert cli.call("status", late, "--json").json["due_at"] is None
    assert "1 job changed" in call("bulk", "change-lane", "high", "--where", "lane:medium").out
    assert cli.call("status", late, "--json").json["priority"] == "high"
    assert "no lane 'hihg'" in call("bulk", "change-lane", "hihg", "--where", "lane:high", code=2).err


def test_a_wrong_search_and_a_number_that_grew_are_refused(cli: Cli, call: Call) -> None:
    submit(cli, 3)
    assert "did you mean 'state'?" in call("bulk", "cancel", "--where", "stat:queued", code=2).err
    assert "[count_grew]" in call("bulk", "cancel", "--where", "state:queued", "--expect", "2", code=1).err
    assert "the filter asks for other states" in call("bulk", "retry", "--where", "state:queued", code=2).err


def test_many_jobs_need_their_number(cli: Cli) -> None:
    cli.call("migrate")
    app = Headway(f"sqlite:///{cli.folder}/headway.db")

    @app.task(name="noop")
    def noop(number: int) -> None: ...

    with app:
        app.enqueue_many([noop.call(number) for number in range(120)])
    refused = cli.call("bulk", "cancel", "--where", "task:noop", code=2)
    assert "120 jobs would change; add --expect 120 to do it" in refused.err
    assert "120 jobs changed of 120" in cli.call("bulk", "cancel", "--where", "task:noop", "--expect", "120").out


def test_a_cron_is_run_paused_and_resumed(cli: Cli, call: Call) -> None:
    app = Headway(f"sqlite:///{cli.folder}/headway.db")

    @app.cron("0 3 1 1 *", name="each.year")
    def yearly() -> None: ...

    with app, Worker(app):
        until(lambda: call("crons", "list", "--json").json["items"])
    job_id = call("crons", "run", "each.year").out.split()[0]
    assert cli.call("status", job_id, "--json").json["task"] == "each.year"
    assert call("crons", "list", "--json").json["items"][0]["last"]["id"] == job_id
    assert "each.year is paused" in call("crons", "pause", "each.year").out
    (row,) = call("crons", "list", "--json").json["items"]
    assert (row["paused"], row["held"]) == (True, True)
    call("crons", "resume", "each.year")
    (row,) = call("crons", "list", "--json").json["items"]
    assert (row["paused"], row["held"]) == (False, False)
    for verb in ("run", "pause", "resume"):
        assert "no cron 'each.day'" in call("crons", verb, "each.day", code=2).err

    async def audited() -> list[str]:
        store = open_store(f"sqlite:///{cli.folder}/headway.db", "default")
        await store.open()
        try:
            return [entry.what for entry in await read_audit(store)]
        finally:
            await store.close()

    assert asyncio.run(audited())[:3] == ["cron.resume", "cron.pause", "cron.run"]
