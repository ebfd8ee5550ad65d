"""``headway policy`` checks, applies, shows and rolls back a policy file."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.cli.toml import toml_text
from headway.core.policy.document import BUILT_IN
from headway.core.policy.writer import policy_data
from tests.cli.command import Cli

POLICY = """
crash_limit = 5
[limits.github]
concurrency = 2
[tasks."reports.export"]
priority = "low"
"""


@pytest.fixture
def stored(cli: Cli) -> Cli:
    """Return the command line with an empty store and a policy file."""
    (cli.folder / "policy.toml").write_text(POLICY)
    cli.call("migrate")
    return cli


def lines(text: str) -> list[str]:
    """Return the lines of a table, however wide its columns are."""
    return [" ".join(line.split()) for line in text.splitlines()]


# ---------------------------------------------------------------------- check


def test_check_prints_what_each_lane_is_sure_of_and_makes_no_store(cli: Cli) -> None:
    # R5.12
    (cli.folder / "policy.toml").write_text("")
    ran = cli.call("policy", "check", "policy.toml")
    assert lines(ran.out)[1:4] == [
        "high 0 6 60% 3 min behind 10 min of work in its lane",
        "medium 1 3 30% 27 min behind 10 min of work in its lane",
        "low 2 1 10% 40 min behind 10 min of work in its lane",
    ]
    assert ran.out.endswith("ok, with no warnings, for 1 worker with 5 slots\n")
    assert [file.name for file in cli.folder.iterdir()] == ["policy.toml"]


def test_check_counts_the_slots_it_is_told_of(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    (cli.folder / "policy.json").write_text('{"limits": {"x": {"concurrency": 12}}}')
    monkeypatch.setenv("HEADWAY_SLOTS", "6")
    assert "[limit_unused]" in cli.call("policy", "check", "policy.json").out
    ran = cli.call("policy", "check", "policy.json", "--workers", "3")
    assert ran.out.endswith("ok, with no warnings, for 3 workers with 6 slots\n")
    assert "[limit_unused]" in cli.call("policy", "check", "policy.json", "--workers", "3", "--slots", "4").out


def test_check_warns_and_still_succeeds(cli: Cli) -> None:
    (cli.folder / "policy.toml").write_text("promotion = 'absolute'\n[lanes.a]\nlevel = 0\n[lanes.b]\nlevel = 1")
    out = cli.call("policy", "check", "policy.toml").out
    assert "warning promotion: with absolute promotion one old backlog" in out
    assert "warning lanes.b.promote_after: lane b can wait for ever" in out
    assert out.endswith("ok, with 2 warnings, for 1 worker with 5 slots\n")
    document = cli.call("policy", "check", "policy.toml", "--json").json
    assert (document["ok"], document["slots"], document["workers"]) == (True, 5, 1)
    assert [(found["code"], found["key"]) for found in document["warnings"]] == [
        ("absolute", "promotion"),
        ("starves", "lanes.b.promote_after"),
    ]
    assert document["lanes"][1] == {
        "lane": "b",
        "level": 1,
        "weight": 1,
        "share": 0.0,
        "slots": 0.0,
        "after_seconds": None,
        "bound": "none: it can wait for ever",
    }


def test_check_tells_all_that_is_wrong_at_once(cli: Cli) -> None:
    (cli.folder / "policy.toml").write_text("crash_limt = 1\n[tasks.x]\npriority = 'lo'")
    assert cli.call("policy", "check", "policy.toml", code=2).err.splitlines() == [
        "error: policy.toml line 3, column 1: tasks.x.priority: expected a lane: high, medium or low, "
        "found 'lo'; did you mean 'low'?",
        "policy.toml line 1, column 1: crash_limt: unknown key; did you mean 'crash_limit'? [policy]",
    ]
    document = cli.call("policy", "check", "policy.toml", "--json", code=2).json
    assert document["ok"] is False
    assert [(problem["key"], problem["line"], problem["column"]) for problem in document["problems"]] == [
        ("tasks.x.priority", 3, 1),
        ("crash_limt", 1, 1),
    ]


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        pytest.param(["check", "none.toml"], 2, "none.toml cannot be read", id="no file"),
        pytest.param(["check"], 2, "headway policy check needs FILE (headway policy check --help", id="none named"),
        pytest.param(["check", "policy.toml", "--slots", "0"], 2, "must be at least 1", id="no slots"),
        pytest.param(["show", "--history", "--version", "1"], 2, "not both", id="two wishes"),
        pytest.param(["show", "--version", "7"], 2, "no policy version 7 (versions: none yet)", id="no version"),
        pytest.param(["rollback"], 2, "no policy was ever applied", id="nothing to undo"),
        pytest.param(["show", "--store", "sqlite:///other.db"], 1, "there is no store at", id="no store"),
        pytest.param(["aply", "policy.toml"], 2, "did you mean 'apply'?", id="misspelt"),
    ],
)
def test_a_wrong_call_gets_one_clear_line(stored: Cli, arguments: list[str], code: int, message: str) -> None:
    err = stored.call("policy", *arguments, code=code).err
    assert message in err
    assert err.count("\n") == 1


def test_text_in_a_file_is_not_obeyed(cli: Cli) -> None:
    (cli.folder / "policy.json").write_text(json.dumps({"\x1b]0;owned\x07\n": 1, "lanes": {"[red]x\u202e": {}}}))
    err = cli.call("policy", "check", "policy.json", code=2).err
    assert err.replace("\n", "").isprintable()
    assert len(err.splitlines()) == 2


# ---------------------------------------------------------------------- apply, show, rollback


def test_a_policy_is_applied_shown_and_undone(stored: Cli) -> None:
    first = stored.run("policy", "apply", "policy.toml", "--note", "why not").out
    assert lines(first) == [
        "key before now",
        "crash_limit 3 5",
        "limits.github.concurrency – 2",
        'tasks."reports.export".priority – "low"',
        "version 1 is in force, after the built-in policy",
    ]
    again = stored.call("policy", "apply", "policy.toml").out
    assert again == "nothing changes: version 1, which is in force, says the same\n"
    (stored.folder / "policy.toml").write_text(POLICY.replace("concurrency = 2", "rate = '5/s'"))
    second = stored.call("policy", "apply", "policy.toml").out
    assert "limits.github.concurrency 2 –" in lines(second)
    assert 'limits.github.rate – "5/s"' in lines(second)
    assert stored.call("policy", "show", "--json").json["version"] == 2

    back = stored.run("policy", "rollback").out
    assert "limits.github.concurrency – 2" in lines(back)
    assert back.endswith("version 3 is in force, after version 2\n")
    told = stored.call("policy", "show", "--history").out
    assert lines(told)[1].startswith("3 in force ")
    assert "rolled back to version 1" in told
    assert "why not" in told
    listed = stored.call("policy", "show", "--history", "--json").json
    assert listed["next_cursor"] is None
    assert [(item["version"], item["current"]) for item in listed["items"]] == [(3, True), (2, False), (1, False)]
    assert listed["items"][0]["digest"] == listed["items"][2]["digest"]

    forth = stored.call("policy", "rollback", "--to", "2").out
    assert forth.endswith("version 4 is in force, after version 3\n")
    assert stored.call("policy", "rollback", "--to", "2").out.startswith("nothing changes: version 4")


def test_the_first_policy_can_be_undone_and_its_warnings_are_printed(stored: Cli) -> None:
    (stored.folder / "policy.toml").write_text("[lanes.medium]\nlevel = 1\n[lanes.high]\nlevel = 0\n")
    (warning,) = [line for line in lines(stored.call("policy", "check", "policy.toml").out) if "starves" in line]
    applied = stored.call("policy", "apply", "policy.toml").out
    assert warning in lines(applied)
    back = stored.call("policy", "rollback").out
    assert back.endswith("version 2 is in force, after version 1\n")
    assert tomllib.loads(stored.call("policy", "show").out) == policy_data(BUILT_IN)
    assert "rolled back to the built-in policy" in stored.call("policy", "show", "--history").out
    stored.call("policy", "rollback")
    assert stored.call("policy", "rollback", "--to", "0").out.endswith("version 4 is in force, after version 3\n")


def test_what_is_shown_is_a_policy_file(stored: Cli) -> None:
    built_in = stored.call("policy", "show")
    assert built_in.out.startswith("# the built-in policy; none was applied\n")
    assert tomllib.loads(built_in.out) == policy_data(BUILT_IN)
    assert stored.call("policy", "show", "--history").out.startswith("No policy was applied")
    assert stored.call("policy", "show", "--json").json == {
        "version": 0,
        "current": True,
        "applied_at": None,
        "note": "built in",
        "digest": None,
        "policy": policy_data(BUILT_IN),
    }
    stored.call("policy", "apply", "policy.toml", "--note", "a\nb")
    shown = stored.call("policy", "show").out
    assert shown.startswith("# version 1, in force, applied ")
    assert tomllib.loads(shown)["tasks"] == {"reports.export": {"priority": "low"}}
    (stored.folder / "shown.toml").write_text(shown)
    assert stored.call("policy", "apply", "shown.toml").out.startswith("nothing changes: version 1")
    stored.call("policy", "rollback", "--to", "1")
    assert stored.call("policy", "show", "--version", "1").out == shown


def test_a_file_that_is_wrong_changes_nothing(stored: Cli) -> None:
    # R3.17
    rungs = "{name='m', seconds=1, limit=1}, {name='s', seconds=2, limit=2}"
    (stored.folder / "policy.toml").write_text(f"[ladder]\nrungs = [{rungs}]")
    err = stored.call("policy", "apply", "policy.toml", code=2).err
    assert "line 2, column 64: ladder.rungs[1].limit: expected at most 1" in err
    assert stored.call("policy", "show", "--history", "--json").json["items"] == []


# ---------------------------------------------------------------------- TOML

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
values = st.recursive(
    texts | st.integers(-(2**62), 2**62) | st.booleans() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(data=st.dictionaries(texts, values, max_size=4))
def test_what_is_written_as_toml_reads_as_the_same(data: dict[str, Any]) -> None:
    text = toml_text(data)
    assert tomllib.loads(text) == data
    assert text.replace("\n", "").isprintable()
