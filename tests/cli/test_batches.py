"""``headway batches``, ``headway batch`` and jobs that wait for jobs: on the store and through a server."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headway import Headway
from headway.worker.embedded import Worker
from tests.cli.command import Cli, CommandResult
from tests.cli.served import ServedCli

Run = Callable[..., CommandResult]


@pytest.fixture(params=["store", "server"])
def command(request: pytest.FixtureRequest, served: ServedCli) -> Run:
    """Return the command line, on the store itself or through its server."""
    return served.cli.call if request.param == "store" else served.call


def make_app(cli: Cli) -> Headway:
    app = Headway(f"sqlite:///{cli.folder}/headway.db")

    @app.task(name="add")
    async def add(a: int = 1) -> int:
        return a + 1

    @app.task(name="fail", max_retries=0)
    async def fail() -> None:
        raise RuntimeError("broken")

    return app


def failed_batch(cli: Cli) -> tuple[str, list[str]]:
    """Run a batch of a failing job, a dependant of it and a job that completes. Return its id and those of its jobs."""
    app = make_app(cli)
    with app:
        fail, add = app.tasks["fail"].call(), app.tasks["add"].call()
        with app.batch("import-7", tenant="acme", key="k7") as batch:
            batch.add([fail, app.tasks["add"].call().after(fail), add])
        with Worker(app):
            batch.join(20)
        jobs = app.jobs(tenant="acme")
        return batch.id, [job.id for job in reversed(jobs)]


def open_batch(cli: Cli, name: str = "open") -> str:
    with make_app(cli) as app:
        batch = app.batch(name)
        return batch.__enter__().id


def test_batches_are_listed_and_shown(served: ServedCli, command: Run) -> None:
    assert command("batches").out == "No batches.\n"
    assert command("batches", "--json").json == {"items": [], "next_cursor": None}
    batch_id, _ = failed_batch(served.cli)
    other = open_batch(served.cli)
    page = command("batches", "--json", "--limit", "1").json
    assert [one["batch_id"] for one in page["items"]] == [other]
    rest = command("batches", "--json", "--before", page["next_cursor"]).json
    assert ([one["batch_id"] for one in rest["items"]], rest["next_cursor"]) == ([batch_id], None)
    found = command("batches", "--status", "failed", "--tenant", "acme", "--json").json["items"][0]
    assert found["counts"] == {
        "total": 3, "held": 0, "waiting": 0, "running": 0, "completed": 1, "failed": 1, "cancelled": 1
    }  # fmt: skip
    assert command("batch", "show", batch_id, "--json").json == found
    listed = command("batches").out
    assert "import-7" in listed
    assert "More with" not in listed
    told = command("batch", "show", batch_id[-8:]).out
    for text in (batch_id, "import-7", "k7", "acme", "failed", "3 total, 1 completed, 1 failed, 1 cancelled"):
        assert text in told


def test_a_batch_that_does_not_exist_is_named(served: ServedCli, command: Run) -> None:
    assert "no batch 0123abcd" in command("batch", "show", "0123abcd", code=1).err
    assert "[batch_not_found]" in command("batch", "cancel", "no/batch", code=1).err
    assert "no batch nowhere" in command("batch", "retry", "nowhere", code=1).err
    assert "did you mean 'failed'" in command("batches", "--status", "faild", code=2).err


def test_a_part_of_an_id_that_fits_two_batches_is_refused(served: ServedCli, command: Run) -> None:
    first, second = open_batch(served.cli), open_batch(served.cli)
    same = next(first[6 : 6 + size] for size in range(36, 3, -1) if first[6 : 6 + size] == second[6 : 6 + size])
    assert "is the beginning or end of 2 ids" in command("batch", "show", same, code=2).err


def test_a_batch_is_cancelled_once(served: ServedCli, command: Run) -> None:
    batch_id = open_batch(served.cli)
    served.cli.call("submit", "demo.sleep", "seconds=1", "--batch", batch_id)
    assert command("batch", "cancel", batch_id).out == f"{batch_id}  cancelled\n"
    assert command("batch", "show", batch_id, "--json").json["status"] == "cancelled"
    ended, _ = failed_batch(served.cli)
    assert command("batch", "cancel", ended, code=1).out == f"{ended}  failed already; it cannot be cancelled\n"
    refused = command("submit", "demo.sleep", "seconds=1", "--batch", batch_id, code=1)
    assert "[batch_closed]" in refused.err


@pytest.mark.parametrize("mode, states", [("failed", ["queued", "cancelled"]), (None, ["queued", "queued"])])
def test_a_batch_is_retried_by_mode(served: ServedCli, command: Run, mode: str | None, states: list[str]) -> None:
    batch_id, jobs = failed_batch(served.cli)
    words = [] if mode is None else ["--mode", mode]
    assert command("batch", "retry", batch_id, *words).out == f"{batch_id}  1 job queued again\n"
    found = {job["id"]: job["status"] for job in command("jobs", "--json").json["items"]}
    assert [found[job_id] for job_id in jobs[:2]] == states
    assert command("batch", "show", batch_id, "--json").json["round"] == 2
    assert command("batch", "retry", batch_id, *words, code=1).out == f"{batch_id}  no job to retry\n"
    assert "round" in command("batch", "show", batch_id).out


def test_changes_of_batches_are_audited(served: ServedCli) -> None:
    batch_id = open_batch(served.cli)
    served.cli.call("batch", "cancel", batch_id)
    entry = served.cli.call("token", "audit", "--json").json["items"][0]
    assert (entry["what"], entry["target"], entry["who"].startswith("cli:")) == ("batch.cancel", batch_id, True)


def test_a_job_is_submitted_after_others_and_shows_what_it_waits_for(served: ServedCli, command: Run) -> None:
    first = command("submit", "demo.sleep", "seconds=1").out.strip()
    batch_id = open_batch(served.cli, "rows")
    words = ("--after", f"{first},{batch_id}", "--on-failure", "run", "--batch", open_batch(served.cli, "mine"))
    job_id = command("submit", "demo.sleep", "seconds=1", *words).out.strip()
    found = command("status", job_id, "--json").json
    assert (found["status"], found["held"], found["after"]) == ("queued", True, [first, batch_id])
    assert found["batch_id"] == words[-1]
    told = command("status", job_id).out
    assert f"{first}, {batch_id}" in told
    assert "depends: waits for 2 of 2 sources" in told
    reason = command("why", job_id, "--json").json["reasons"][0]
    assert (reason["code"], reason["sources"]) == ("depends", [first, batch_id])
    assert "depends" in command("why", job_id).out
    assert "queued (held)" in command("jobs").out
    assert command("stats", "--json").json["lanes"]["medium"]["held"] == 1
    assert "held" in command("stats").out
    command("cancel", first)
    left = command("why", job_id, "--json").json["reasons"][0]
    assert (left["sources"], left["left"]) == ([batch_id], 1)


def test_what_a_job_cannot_wait_for_is_refused(served: ServedCli, command: Run) -> None:
    absent = "0198c1f2-7a3b-7c4d-8e5f-001122334455"
    assert "[bad_edge]" in command("submit", "demo.sleep", "seconds=1", "--after", absent, code=1).err
    assert "[batch_not_found]" in command("submit", "demo.sleep", "seconds=1", "--batch", absent, code=1).err
    alone = command("submit", "demo.sleep", "seconds=1", "--on-failure", "run", code=2).err
    assert "add --after" in alone
    assert command("jobs", "--json").json["items"] == []


def test_jobs_are_listed_by_why_they_wait(served: ServedCli, command: Run) -> None:
    with make_app(served.cli) as app:
        add, fail = app.tasks["add"], app.tasks["fail"]
        source = add.enqueue()
        held = [add.using(after=[source]).enqueue().id for _ in range(3)]
        other = fail.using(after=[source]).enqueue().id
        later = add.using(delay=3_600).enqueue().id

    def listed(*words: str) -> list[str]:
        return [job["id"] for job in command("jobs", *words, "--json").json["items"]]

    assert listed("--why", "depends") == [other, *reversed(held)]
    assert listed("--why", "depends", "--task", "add") == held[::-1]
    assert listed("--why", "scheduled") == [later]
    assert listed("--why", "depends,scheduled") == [later, other, *reversed(held)]
    assert listed("--why", "depends", "--status", "completed") == []
    assert listed("--why", "no_worker") == [source.id]
    page = command("jobs", "--why", "depends", "--limit", "3", "--json").json
    rest = command("jobs", "--why", "depends", "--before", page["next_cursor"], "--json").json
    assert [len(page["items"]), [job["id"] for job in rest["items"]], rest["next_cursor"]] == [3, held[:1], None]
    assert "queued (held)" in command("jobs", "--why", "depends").out
    refused = command("jobs", "--why", "depend", code=2)
    assert "no reason 'depend'; did you mean 'depends'?" in refused.err
