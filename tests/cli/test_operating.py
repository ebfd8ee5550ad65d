"""Commands on a store without a worker."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from headway.stores.sqlite.statements import MIGRATIONS
from headway.version import __version__
from tests.cli.command import Cli
from tests.conftest import valkey
from tests.servers import free_port

TASKS = """
from headway import Headway

app = Headway()


@app.task(name="reports.export", priority="low", max_retries=7, fair_by="account")
def export(account: int, note: str = "") -> None: ...


@app.task(name="ping", persist=False)
def ping() -> None: ...
"""


def jobs(cli: Cli, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cli.call("jobs", "--json", *words).json["items"]
    return found


def test_the_options_of_a_call_reach_the_job(cli: Cli) -> None:
    options = ["--priority", "high", "--delay", "60", "--expires", "600", "--tenant", "acme", "--max-retries", "1"]
    more = ["--timeout", "9", "--needs", "gpu, big", "--idempotency-key", "k-1"]
    first = cli.submit("demo.sleep", "seconds=2", *options, *more)
    again = cli.run("submit", "demo.sleep", "seconds=2", *options, *more)
    assert (again.out.strip(), again.err) == (first, "an earlier submit made this job already\n")
    assert "[idempotency_conflict]" in cli.call("submit", "demo.sleep", "seconds=3", *options, *more, code=1).err
    (job,) = jobs(cli)
    assert job["arguments"] == {"seconds": 2}
    assert (job["priority"], job["tenant"], job["max_retries"]) == ("high", "acme", 1)
    assert (job["timeout_seconds"], job["needs"]) == (9.0, ["big", "gpu"])
    assert job["due_at"] > job["submitted_at"]


def test_a_task_of_an_app_keeps_its_own_options(cli: Cli) -> None:
    (cli.folder / "tasks.py").write_text(TASKS)
    cli.run("submit", "reports.export", "account=7", "note=x=1", HEADWAY_APP="tasks.py:app")
    (job,) = jobs(cli)
    assert (job["task"], job["priority"], job["max_retries"], job["tenant"]) == ("reports.export", "low", 7, "7")
    assert job["arguments"] == {"account": 7, "note": "x=1"}
    assert "did you mean 'reports.export'?" in cli.call("submit", "report.export", "--app", "tasks:app", code=1).err
    assert "[not_stored]" in cli.call("submit", "ping", "--app", "tasks:app", "--wait", code=1).err


def test_jobs_come_newest_first_in_pages(cli: Cli) -> None:
    ids = [cli.call("submit", "demo.noop").out.strip() for _ in range(3)]
    page = cli.run("jobs", "--limit", "2", "--json").json
    assert [job["id"] for job in page["items"]] == [ids[2], ids[1]]
    assert f"More with --before {page['next_cursor']}" in cli.call("jobs", "--limit", "2").out
    rest = cli.call("jobs", "--limit", "2", "--before", page["next_cursor"], "--json").json
    assert ([job["id"] for job in rest["items"]], rest["next_cursor"]) == ([ids[0]], None)
    assert cli.call("jobs", "--status", "completed,failed", "--json").json["items"] == []
    assert cli.call("jobs", "--task", "other").out == "No jobs.\n"


def test_cancel_and_retry_answer_for_each_job(cli: Cli) -> None:
    job_id = cli.submit("demo.noop")
    assert cli.call("retry", job_id, code=1).out == f"{job_id}  queued already; there is nothing to retry\n"
    assert cli.run("cancel", job_id).out == f"{job_id}  cancelled\n"
    assert cli.call("status", job_id, "--json").json["status"] == "cancelled"
    answers = cli.run("retry", job_id, "nonsense", code=1).out.splitlines()
    assert answers == [f"{job_id}  queued again", "nonsense  not found; it may have been pruned"]


def test_text_from_elsewhere_is_neither_obeyed_nor_taken_for_markup(cli: Cli) -> None:
    nasty = "\x1b]0;owned\x07[red]\u202e"
    job_id = cli.submit("demo.echo", f"value={nasty}", "--tenant", nasty)
    told, document = cli.run("status", job_id, "--args"), cli.run("status", job_id, "--json")
    for out in (told.out, document.out, cli.call("top", "--once").out):
        assert out.replace("\n", "").isprintable()
    assert document.json["arguments"] == {"value": nasty}
    assert "[red]" in told.out
    assert "\x1b" not in cli.call("status", nasty, code=1).err


def test_doctor_says_what_is_wrong_and_what_to_do(cli: Cli) -> None:
    cli.submit("demo.noop")
    (cli.folder / "headway.db").chmod(0o644)
    ran = cli.run("doctor", "--json", code=1, HEADWAY_TOKEN="hush", HEADWAY_SLOTS="3")
    report = ran.json
    checks = {check["name"]: check for check in report["checks"]}
    assert {name for name, check in checks.items() if check["status"] == "fail"} == {"file modes", "waiting"}
    assert "chmod 600" in checks["file modes"]["advice"]
    assert checks["writing"]["status"] == checks["sqlite"]["status"] == "ok"
    assert report["settings"]["slots"] == {"value": 3, "source": "HEADWAY_SLOTS"}
    assert report["settings"]["token"]["value"] == "***"
    assert "hush" not in ran.out
    assert report["recovery"]["host_lost_seconds"] == 103.0
    assert "synchronous=FULL" in report["store"]["durability"]
    told = cli.call("doctor", code=1).out
    assert "its jobs are back in under 1 s" in told
    assert "→ start one" in told


def test_doctor_says_whether_the_store_of_transient_jobs_answers(cli: Cli) -> None:
    cli.submit("demo.noop")
    away = f"redis://user:hush@127.0.0.1:{free_port()}/5"
    ran = cli.run("doctor", "--json", code=1, HEADWAY_TRANSIENT_STORE=away)
    checks = {check["name"]: check for check in ran.json["checks"]}
    assert checks["transient store"]["status"] == "fail"
    assert "durable jobs go on" in checks["transient store"]["advice"]
    assert checks["store"]["status"] == checks["writing"]["status"] == "ok"
    assert "hush" not in ran.out + ran.err
    there = cli.run("doctor", "--json", code=1, HEADWAY_TRANSIENT_STORE=f"{valkey().url}?prefix={cli.folder.name}")
    checks = {check["name"]: check for check in there.json["checks"]}
    assert checks["transient store"]["status"] == "ok"


def test_doctor_warns_of_an_exposed_history(cli: Cli) -> None:  # S-28
    store = f"{valkey().url}?prefix={cli.folder.name}"
    for host, status in (("db.internal", "warning"), ("127.0.0.1", "ok")):
        ran = cli.call("doctor", "--json", "--store", store, HEADWAY_HISTORY=f"postgresql://me@{host}/app")
        checks = {check["name"]: check["status"] for check in ran.json["checks"]}
        assert (checks["transport"], checks["history transport"]) == ("ok", status)


def test_a_transient_store_inside_one_process_is_refused(cli: Cli) -> None:
    for words in (["stats"], ["worker", "headway.demo:app"], ["serve"]):
        ran = cli.run(*words, code=None, HEADWAY_TRANSIENT_STORE="memory://")
        assert (ran.code, "memory://" in ran.err) == (2, True), ran


def test_migrate_reports_what_it_does(cli: Cli) -> None:
    newest = MIGRATIONS[-1][0]
    steps = "".join(f"  {text.splitlines()[0].removeprefix('-- ')}\n" for _, text in MIGRATIONS)
    assert "  0001_first: jobs, where each of them is, workers, documents, totals.\n" in steps
    assert cli.run("migrate", "--dry-run").out == f"headway.db: no store yet; would become schema {newest}\n{steps}"
    assert not (cli.folder / "headway.db").exists()
    assert cli.run("migrate").out == f"headway.db: no store yet, now schema {newest}\n{steps}"
    assert cli.call("migrate").out == f"headway.db: schema {newest}, nothing to do\n"
    with sqlite3.connect(cli.folder / "other.db") as other:
        other.execute("CREATE TABLE mine (value)")
    other.close()
    assert "[not_a_store]" in cli.call("migrate", "--dry-run", "--store", "sqlite:///other.db", code=1).err


@pytest.mark.parametrize(
    "words, code, message",
    [
        pytest.param(["jobs"], 1, "there is no store at", id="no store"),
        pytest.param(["submit", "no.such.task"], 1, "no task 'no.such.task'", id="unknown task"),
        pytest.param(["submit", "demo.slep"], 1, "did you mean 'demo.sleep'?", id="misspelt demo task"),
        pytest.param(["submit", "demo.sleep", "2"], 2, "arguments are written key=value, not '2'", id="no key"),
        pytest.param(["submit", "demo.noop", "--json-args", "[1]"], 2, "--json-args takes an object", id="no object"),
        pytest.param(["submit", "demo.noop", "--priority", "hihg"], 2, "did you mean 'high'?", id="unknown lane"),
        pytest.param(["submit", "demo.noop", "--run-after", "2030-01-01"], 2, "has no time zone", id="naive"),
        pytest.param(["jobs", "--status", "faild"], 2, "did you mean 'failed'?", id="unknown status"),
        pytest.param(["jobs", "--limit", "many"], 2, "--limit must be a whole number, got 'many'", id="bad number"),
        pytest.param(["smit"], 2, "did you mean 'submit'?", id="unknown command"),
        pytest.param(["stats", "--jsno"], 2, "unknown option '--jsno'; did you mean '--json'?", id="unknown option"),
        pytest.param(["jobs", "a", "b"], 2, "headway jobs does not take the arguments 'a', 'b' (", id="more arguments"),
        pytest.param(
            ["stats", "a"], 2, "headway stats does not take the argument 'a' (headway stats --help", id="more"
        ),
        pytest.param(["stats", "--store", "mysql://x"], 2, "unknown store 'mysql'", id="unknown store"),
        pytest.param(["status"], 2, "headway status needs ID (headway status --help", id="no id"),
        pytest.param(["scale"], 2, "headway scale needs --lane (headway scale --help", id="no option"),
        pytest.param(["dlq", "replay"], 2, "or give --all", id="replay nothing"),
    ],
)
def test_a_wrong_call_gets_one_clear_line_and_leaves_no_trace(
    cli: Cli, words: list[str], code: int, message: str
) -> None:
    ran = cli.call(*words, code=code)
    assert message in ran.err
    assert ran.err.startswith("error: ")
    assert ran.err.count("\n") == 1
    assert ran.err.endswith("]\n")
    assert list(cli.folder.iterdir()) == []


def test_a_setting_that_is_none_is_warned_of_and_a_bad_file_refused(cli: Cli) -> None:
    cli.submit("demo.noop")
    assert "did you mean 'HEADWAY_SLOTS'?" in cli.run("jobs", HEADWAY_SLTOS="3").err
    (cli.folder / "headway.toml").write_text('stoer = "sqlite:///x.db"\n')
    assert "did you mean 'store'?" in cli.call("jobs", code=2).err


def test_help_and_version(cli: Cli) -> None:
    everything = cli.run().out
    for name in ("up", "worker", "submit", "jobs", "status", "dlq", "drain", "top", "policy", "migrate", "doctor"):
        assert f"│ {name} " in everything
    assert cli.run("--version").out.strip() == __version__
    assert "headway submit demo.sleep seconds=2 --wait" in cli.call("submit", "--help").out
