"""The audit records each action of an operator on the command line: user, machine, and values before and after."""

from __future__ import annotations

import json
from typing import Any

from headway.cli.store_access import cli_user
from tests.cli.command import Cli


def told(cli: Cli) -> list[dict[str, Any]]:
    """Return the audit, the oldest entry first."""
    entries: list[dict[str, Any]] = cli.call("token", "audit", "--limit", "1000", "--json").json["items"][::-1]
    return entries


def test_every_verb_of_an_operator_is_recorded(cli: Cli) -> None:
    # S-35
    one = cli.call("submit", "demo.noop", "--app", "headway.demo:app").out.strip()
    (cli.folder / "a.json").write_text(json.dumps({"crash_limit": 5}))
    (cli.folder / "b.json").write_text(json.dumps({"crash_limit": 6}))
    cli.call("cancel", one)
    cli.call("cancel", one)
    cli.call("retry", one)
    cli.call("pause", "--lane", "low")
    cli.call("pause", "--lane", "low")
    cli.call("resume")
    cli.call("policy", "apply", "a.json", "--note", "five")
    cli.call("policy", "apply", "a.json")
    cli.call("policy", "apply", "b.json")
    cli.call("policy", "rollback")
    token = cli.call("token", "create", "--scope", "read").out.strip().split("_")[1]
    cli.call("token", "revoke", token)
    cli.call("dlq", "purge", "--all", "--yes")  # There is none, so nothing is done.
    found = told(cli)
    assert {entry["who"] for entry in found} == {cli_user()}
    assert [(entry["what"], entry["target"]) for entry in found] == [
        ("task.cancel", one),
        ("task.retry", one),
        ("pause", "lane low"),
        ("resume", "lane low"),
        ("policy.put", "version 1"),
        ("policy.put", "version 2"),
        ("policy.put", "version 3"),
        ("token.create", token),
        ("token.revoke", token),
    ]
    assert (found[0]["before"], found[0]["after"]) == ({one: "queued"}, {one: "cancelled"})
    assert (found[4]["before"], found[4]["after"]["note"]) == (None, "five")
    assert (found[6]["before"]["version"], found[6]["after"]["version"]) == (2, 3)
