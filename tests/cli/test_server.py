"""Commands with ``--server``: the same answers as from the store, over HTTP and with a token."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from headway.cli.remote import HttpOperator
from headway.core.errors import ConfigError
from headway.policy_store.catalogue import TaskEntry, publish_tasks
from headway.security.audit import read_audit
from headway.server.uvicorn_server import bind
from headway.stores.base import Store
from headway.stores.open import open_store
from tests.cli.command import Cli
from tests.cli.served import ServedCli


def test_what_is_looked_at_is_the_same_from_the_server(served: ServedCli) -> None:
    cli = served.cli
    ids = [served.submit("demo.sleep", f"seconds={number}", "--tenant", "acme") for number in range(3)]
    cli.call("cancel", ids[0])
    for words in (
        ("jobs",),
        ("jobs", "--json"),
        ("jobs", "--status", "cancelled", "--json"),
        ("jobs", "--limit", "1", "--json"),
        ("why", ids[1], "--json"),
        ("dlq", "list", "--json"),
        ("workers",),
        ("policy", "show"),
        ("policy", "show", "--history", "--json"),
    ):
        assert steady(served.call(*words).out) == steady(cli.call(*words).out), words
    assert served.call("status", ids[2], "--json").json["arguments"] == {"seconds": 2}
    assert served.call("stats", "--json").json["lanes"]["medium"]["waiting"] == 2
    assert "medium" in served.call("top", "--once").out
    page = served.call("jobs", "--limit", "2", "--json").json
    rest = served.call("jobs", "--before", page["next_cursor"], "--json").json
    assert [job["id"] for job in page["items"] + rest["items"]] == ids[::-1]
    assert "no job nope" in served.call("status", "nope", code=1).err


def steady(text: str) -> list[str]:
    """Return a reply without the values that change from one read to the next."""
    return [line for line in text.splitlines() if " ms" not in line and " s" not in line and "waited" not in line]


def test_what_is_changed_over_the_server_is_changed_in_the_store(served: ServedCli) -> None:
    cli = served.cli
    one, two = (served.submit("demo.noop") for _ in range(2))
    assert (
        served.call("cancel", one, "nope", code=1).out
        == f"{one}  cancelled\nnope  not found; it may have been pruned\n"
    )
    assert served.call("retry", one).out == f"{one}  queued again\n"
    assert served.call("pause", "--lane", "low").out == "paused: lane low\n"
    assert cli.call("stats", "--json").json["paused"] == ["lane low"]
    assert served.call("resume").out == "nothing is paused\n"
    (cli.folder / "policy.toml").write_text("crash_limit = 7\n")
    served.call("policy", "apply", "policy.toml", "--note", "seven")
    assert "crash_limit = 7" in cli.call("policy", "show").out
    served.call("policy", "apply", "policy.toml")
    (cli.folder / "policy.toml").write_text("crash_limit = 8\n")
    served.call("policy", "apply", "policy.toml")
    served.call("policy", "rollback")
    assert "crash_limit = 7" in served.call("policy", "show").out
    assert "no live worker 'nobody'" in served.call("drain", "nobody", code=1).err
    assert served.call("dlq", "purge", "--all", "--yes").out == "0 dead letters removed\n"
    assert two in cli.call("jobs", "--status", "queued").out


def test_jobs_are_submitted_through_the_server(served: ServedCli) -> None:
    cli = served.cli
    job_id = served.call("submit", "demo.sleep", "seconds=2", "--priority", "high", "--tenant", "acme").out.strip()
    job = cli.call("status", job_id, "--json").json
    assert (job["task"], job["arguments"], job["priority"], job["tenant"]) == (
        "demo.sleep",
        {"seconds": 2},
        "high",
        "acme",
    )
    later = served.call("submit", "demo.noop", "--delay", "3600", "--max-retries", "1", "--json").json["id"]
    job = cli.call("status", later, "--json").json
    assert (job["max_retries"], job["eligible_at"]) == (1, None)
    assert "did you mean 'high'?" in served.call("submit", "demo.noop", "--priority", "hihg", code=2).err


def test_a_text_parameter_takes_what_is_written_through_the_server_too(served: ServedCli) -> None:
    async def publish() -> None:
        store = open_store(f"sqlite:///{served.cli.folder}/headway.db")
        await store.open()
        properties = {"month": {"type": "string"}, "year": {"type": "string"}, "count": {"type": "integer"}}
        parameters = {"properties": properties, "required": ["month"]}
        await publish_tasks(store, [TaskEntry(name="report", lane="medium", executor="thread", parameters=parameters)])
        await store.close()

    asyncio.run(publish())
    job_id = served.call("submit", "report", "month=7", "count=3", "year=2026").out.strip()
    assert served.cli.call("status", job_id, "--json").json["arguments"] == {"month": "7", "count": 3, "year": "2026"}
    assert "[bad_arguments]" in served.call("submit", "report", "month=7", "count=many", code=2).err


def test_estimates_crons_and_short_ids_work_through_the_server(served: ServedCli) -> None:
    job_id = served.submit("demo.noop")
    assert served.call("estimate", job_id[-8:], "--json", code=1).json["estimate"]["position"] == 0
    assert served.call("status", job_id[-8:], "--json").json["estimate"]["basis"] == "unknown"
    assert served.call("crons", "list", "--json").json["items"] == []


@pytest.mark.slow
def test_the_end_of_a_job_is_waited_for_over_the_server(served: ServedCli) -> None:
    worker = served.cli.start("worker", "headway.demo:app", "--slots", "2")
    try:
        worker.wait_for("worker.up")
        ran = served.call("submit", "demo.echo", "value=[1, 2]", "--wait", "--timeout-wait", "30")
        assert ran.out.splitlines()[1] == "[1, 2]"
        failed = served.call("submit", "demo.fail", "message=no", "--max-retries", "0", "--wait", code=1)
        assert "RuntimeError: no" in failed.err
        job_id = ran.out.splitlines()[0]
        assert "finished" in served.call("status", job_id, "--follow").out
        assert served.call("dlq", "list", "--json").json["items"][0]["task"] == "demo.fail"
        assert served.call("dlq", "replay", "--all").out == "1 job queued again\n"
        (found,) = served.call("workers", "--json").json["items"]
        assert served.call("drain", found["id"]).out == f"{found['id']}  draining\n"
        assert worker.wait() == 0
    finally:
        worker.end()


@pytest.mark.parametrize(
    "scopes, words, allowed",
    [
        (["read"], ["jobs"], True),
        (["read"], ["stats"], True),
        (["read"], ["cancel", "x"], False),
        (["read"], ["pause"], False),
        (["submit"], ["submit", "demo.noop"], True),
        (["submit"], ["jobs"], False),
        (["submit", "read"], ["cancel", "x"], True),
        (["submit", "read"], ["dlq", "purge", "x", "--yes"], False),
        (["submit", "read"], ["policy", "rollback"], None),
        (["admin"], ["pause"], True),
        (["worker"], ["workers"], False),
    ],
)
def test_a_command_needs_the_scope_of_what_it_does(
    served: ServedCli, scopes: list[str], words: list[str], allowed: bool | None
) -> None:
    # S-3
    token = served.token(*scopes)
    code = 0 if allowed and words[0] != "cancel" else 2 if allowed is None else 1
    ran = served.call(*words, token=token, code=code)
    assert ("[forbidden]" in ran.err) == (allowed is False)
    assert token not in ran.out + ran.err


def test_without_a_good_token_nothing_is_told(served: ServedCli) -> None:
    served.token("admin")
    wrong = served.call("jobs", token=f"hw_0123456789_{'x' * 43}", code=1)
    assert "[unauthenticated]" in wrong.err
    assert "xxx" not in wrong.err
    assert "set HEADWAY_TOKEN" in wrong.err
    assert "[unauthenticated]" in served.call("jobs", code=1).err


def test_a_worker_whose_token_is_refused_says_so_in_one_line(served: ServedCli) -> None:
    wrong, narrow = f"hw_0123456789_{'x' * 43}", served.token("read")
    for token, reason in ((wrong, "set HEADWAY_TOKEN"), (narrow, "a token with the scope worker")):
        ran = served.cli.run("worker", "headway.demo:app", "--server", served.url, code=3, HEADWAY_TOKEN=token)
        assert reason in ran.err
        assert ran.err.startswith(f"error: {served.url}: ")
        assert ran.err.count("\n") == 1


def test_a_token_of_one_tenant_may_submit_but_not_operate(served: ServedCli) -> None:
    # S-31
    text = served.cli.call("token", "create", "--scope", "admin", "--tenant", "acme").out.strip()
    job_id = served.call("submit", "demo.noop", token=text).out.strip()
    assert served.cli.call("status", job_id, "--json").json["tenant"] == "acme"
    assert "for one tenant" in served.call("jobs", token=text, code=1).err


def test_who_changed_what_is_noted(served: ServedCli) -> None:
    # S-35
    job_id = served.submit("demo.noop")
    token = served.token("admin")
    served.call("cancel", job_id, token=token)
    served.call("pause", "--lane", "low", token=token)

    async def read() -> list[tuple[str, str, str]]:
        store: Store = open_store(f"sqlite:///{served.cli.folder}/headway.db")
        await store.open()
        try:
            return [(entry.who, entry.what, entry.target) for entry in await read_audit(store)]
        finally:
            await store.close()

    who = token.split("_")[1]
    assert asyncio.run(read())[:2] == [(who, "pause", "lane low"), (who, "task.cancel", job_id)]


def test_a_server_that_is_not_there_is_named(cli: Cli) -> None:
    listener = bind("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.close()
    ran = cli.call("jobs", "--server", url, code=1)
    assert f"{url} cannot be reached" in ran.err
    assert ran.err.count("\n") == 1


def test_flags_and_settings_choose_between_store_and_server(served: ServedCli) -> None:
    cli = served.cli
    job_id = served.submit("demo.noop")
    (cli.folder / "headway.toml").write_text(f'store = "sqlite:///other.db"\nserver = "{served.url}"\n')
    assert job_id in cli.call("jobs").out  # The server's store.
    assert "there is no store" in cli.call("jobs", "--store", "sqlite:///third.db", code=1).err
    assert "not both" in cli.call("jobs", "--store", "sqlite:///x.db", "--server", served.url, code=2).err
    assert "is not the address of a server" in cli.call("jobs", "--server", "ftp://x", code=2).err


def test_a_token_that_others_could_read_on_the_way_is_warned_of() -> None:
    # S-28
    with pytest.warns(UserWarning, match="in plain text"):
        HttpOperator("http://queue.invalid:1", "hw_0123456789_x")
    HttpOperator("https://queue.invalid:1", "hw_0123456789_x")
    HttpOperator("http://localhost:1", "hw_0123456789_x")
    HttpOperator("http://queue.invalid:1", None)


def test_what_workers_could_not_read_is_not_written(served: ServedCli) -> None:
    policies: list[object] = [{"lanes": 5}, {"crash_limit": "x"}, [1], None]
    pauses: list[object] = [{"lane": 1}, {"everything": True}, [1], None]
    for method, path, bodies in (("PUT", "policy", policies), ("POST", "pause", pauses)):
        for body in bodies:
            answer = httpx.request(method, f"{served.url}/api/v1/{path}", json=body)
            assert answer.status_code == 422, (path, body, answer.text)
    assert served.call("stats", "--json").json["paused"] == []
    assert served.call("policy", "show", "--history").out.startswith("No policy was applied")


def test_only_the_output_of_jobs_is_read_as_a_document(served: ServedCli) -> None:
    async def read(kind: str, name: str) -> None:
        operator = HttpOperator(served.url, None)
        try:
            await operator.read(kind, name)
        finally:
            await operator.close()

    for kind in ("token", "rules", "policy", "audit"):
        with pytest.raises(ConfigError, match="cannot be read through a server"):
            asyncio.run(read(kind, "current"))
