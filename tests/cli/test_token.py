"""``headway token`` creates, lists and revokes tokens."""

from __future__ import annotations

import re

import pytest

from headway.cli.store_access import cli_user
from tests.cli.command import Cli


def made(cli: Cli, *words: str) -> tuple[str, str]:
    """Create a token. Return its id and its text."""
    text = cli.call("token", "create", *words).out.strip()
    return text.split("_")[1], text


def statuses(cli: Cli) -> dict[str, str]:
    return {token["id"]: token["status"] for token in cli.call("token", "list", "--json").json["items"]}


def test_create_prints_the_token_alone_and_only_once(cli: Cli) -> None:
    # S-1
    ran = cli.call("token", "create", "--scope", "submit", "--scope", "read", "--tenant", "acme", "--expires", "30d")
    assert re.fullmatch(r"hw_[0-9a-f]{10}_[A-Za-z0-9_-]{43}\n", ran.out)
    _, token_id, secret = ran.out.strip().split("_", 2)
    assert f"token {token_id} allows submit, read, for tenant acme alone, until 20" in ran.err
    assert "not shown again" in ran.err
    listed = cli.call("token", "list")
    for text in (ran.err, listed.out, cli.call("token", "list", "--json").out):
        assert secret not in text
    assert secret.encode() not in b"".join(file.read_bytes() for file in cli.folder.iterdir() if file.is_file())


def test_create_as_json(cli: Cli) -> None:
    ran = cli.call("token", "create", "--scope", "worker,read", "--note", "gpu hosts", "--json")
    values = ran.json
    assert values["token"].startswith(f"hw_{values['id']}_")
    assert (values["scopes"], values["tenant"], values["note"]) == (["read", "worker"], None, "gpu hosts")
    assert (values["status"], values["expires_at"], values["last_used_at"]) == ("active", None, None)
    assert values["created_at"].endswith("Z")
    assert ran.err == ""


def test_list_says_when_there_are_none(cli: Cli) -> None:
    cli.call("migrate")
    assert "open to all" in cli.call("token", "list").out
    assert cli.call("token", "list", "--json").json == {"items": [], "next_cursor": None}


def test_list_shows_what_each_allows(cli: Cli) -> None:
    made(cli, "--scope", "admin", "--note", "[bold]me")
    made(cli, "--scope", "submit", "--tenant", "acme", "--expires", "12h")
    head, admin, acme = (" ".join(line.split()) for line in cli.call("token", "list").out.splitlines())
    assert head == "id status scopes tenant tasks created expires last used note"
    assert re.fullmatch(r"\w{10} active admin – – .* ago – – \[bold\]me", admin)
    assert re.fullmatch(r"\w{10} active submit acme – .* ago in (11 h 59 m|12 h).* –", acme)


def test_a_worker_token_is_bound_to_tasks(cli: Cli) -> None:
    ran = cli.call("token", "create", "--scope", "worker", "--tasks", "reports.*, resize", "--tasks", "mail")
    assert "allows worker, for tasks mail, reports.*, resize alone, for ever" in ran.err
    assert "mail, reports.*, resize" in cli.call("token", "list").out
    [one] = cli.call("token", "list", "--json").json["items"]
    assert one["tasks"] == ["mail", "reports.*", "resize"]
    assert "scope worker" in cli.call("token", "create", "--scope", "read", "--tasks", "a", code=2).err


def test_a_token_may_have_a_rate_of_its_own(cli: Cli) -> None:
    ran = cli.call("token", "create", "--scope", "submit", "--rate", "100/s")
    assert "allows submit, 100/s, for ever" in ran.err
    assert cli.call("token", "list", "--json").json["items"][0]["rate"] == "100/s"
    assert "expected a rate" in cli.call("token", "create", "--scope", "submit", "--rate", "x", code=2).err


def test_revoke_ends_a_token_named_by_its_id_or_itself(cli: Cli) -> None:
    (one, _), (two, text), (three, _) = (made(cli, "--scope", "read") for _ in range(3))
    assert cli.call("token", "revoke", one, text).out == f"{one}  revoked\n{two}  revoked\n"
    assert statuses(cli) == {one: "revoked", two: "revoked", three: "active"}
    assert cli.call("token", "revoke", one).out == f"{one}  revoked\n"  # Again: it is.


def test_revoke_says_which_token_it_does_not_know(cli: Cli) -> None:
    one, _ = made(cli, "--scope", "read")
    near = one[:-1] + ("0" if one[-1] != "0" else "1")
    ran = cli.call("token", "revoke", near, one, code=1)
    assert ran.out == f"{near}  not found; did you mean '{one}'?\n{one}  revoked\n"


def test_a_forgotten_token_is_no_longer_listed(cli: Cli) -> None:
    one, _ = made(cli, "--scope", "read")
    assert cli.call("token", "revoke", one, "--forget").out == f"{one}  revoked and forgotten\n"
    assert statuses(cli) == {}


@pytest.mark.parametrize(
    "words, message",
    [
        pytest.param(["create"], "--scope", id="no scope"),
        pytest.param(["create", "--scope", "amdin"], "did you mean 'admin'?", id="misspelt scope"),
        pytest.param(["create", "--scope", ","], "at least one scope", id="empty scope"),
        pytest.param(["create", "--scope", "read", "--expires", "soon"], "--expires: expected", id="bad length"),
        pytest.param(["create", "--scope", "read", "--expires", "0s"], "in the future", id="no length"),
        pytest.param(["create", "--scope", "read", "--tenant", ""], "tenant", id="empty tenant"),
    ],
)
def test_a_wrong_call_makes_nothing(cli: Cli, words: list[str], message: str) -> None:
    ran = cli.call("token", *words, code=2)
    assert message in ran.err
    assert ran.err.count("\n") == 1
    if "--tenant" not in words:
        assert list(cli.folder.iterdir()) == []


def test_help_shows_examples(cli: Cli) -> None:
    assert "headway token revoke 3f9c2b7a10" in cli.call("token").out
    assert "headway token create --scope worker" in cli.call("token", "create", "--help").out
    assert "│ token " in cli.call().out


def test_what_operators_did_is_shown(cli: Cli) -> None:
    cli.call("token", "create", "--scope", "read", "--note", "the dashboard")
    shown = cli.call("token", "audit")
    assert "token.create" in shown.out
    assert "cli:" in shown.out
    (entry,) = cli.call("token", "audit", "--json").json["items"]
    assert (entry["who"], entry["what"]) == (cli_user(), "token.create")
