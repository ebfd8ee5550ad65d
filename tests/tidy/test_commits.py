"""Commit messages have an imperative subject and a body."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import commit_message
from scripts.commit_message import messages, problems

BODY = "\n\nWhat was wrong, what changed and why.\n"
GOOD = f"Bound task lists by bytes{BODY}"
BAD = "Bounded task lists"


def git(folder: Path, *arguments: str) -> str:
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    own |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    own["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{own['PATH']}"  # The hook runs `python3`.
    command = ["git", "-c", "user.name=A", "-c", "user.email=a@example.org", *arguments]
    done = subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, check=True, timeout=30)
    return done.stdout.strip()


def commit(folder: Path, message: str) -> str:
    git(folder, "commit", "-q", "--allow-empty", "-m", message)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    return folder


def test_the_messages_of_this_history_follow_the_rules() -> None:
    wrong = {name: found for name, message in messages() if (found := problems(message))}
    assert wrong == {}, "amend these commits; `make hooks` checks messages before they are made"


@pytest.mark.parametrize(
    "message",
    [
        GOOD,
        f"Feed the parsers with random bytes{BODY}",
        f"{'Name ' * 14}it{BODY}",
        f"# A comment.\nFix `headway why`{BODY}# On branch main\n",
        f"Add a hook{BODY}# ------------------------ >8 ------------------------\ndiff --git a/x b/x\n",
    ],
)
def test_a_good_message_passes(message: str) -> None:
    assert problems(message) == []


@pytest.mark.parametrize(
    "message, problem",
    [
        (f"{'Name ' * 14}its{BODY}", "73 characters"),
        (f"bound task lists{BODY}", "capital letter"),
        (f"`headway why` counts jobs{BODY}", "capital letter"),
        (f"Bound task lists.{BODY}", "full stop"),
        (f"Bounded task lists{BODY}", "imperative"),
        (f"Bounding task lists{BODY}", "imperative"),
        (f"Needed lists are bounded{BODY}", "imperative"),
        (f"The lists are bounded{BODY}", "imperative"),
        (f"On Redis a job goes to an idle worker{BODY}", "imperative"),
        ("Bound task lists\nThey were too long.\n\nNow they are not.\n", "blank line"),
        ("Bound task lists", "body is missing"),
        ("Bound task lists\n\n# Please enter the commit message\n", "body is missing"),
    ],
)
def test_a_bad_message_is_refused(message: str, problem: str) -> None:
    [found] = problems(message)
    assert problem in found


def test_an_empty_message_is_refused() -> None:
    assert problems("\n# Please enter the commit message\n") != []


def test_only_commits_after_the_base_are_checked(repository: Path) -> None:
    base = commit(repository, BAD)
    commit(repository, GOOD)
    last = commit(repository, "Fix a list\n\nIt was long.")
    assert [message.strip() for _, message in messages(repository, base)] == [
        "Fix a list\n\nIt was long.",
        GOOD.strip(),
    ]
    assert list(messages(repository, last)) == []


def test_merges_are_not_checked(repository: Path) -> None:
    base = commit(repository, BAD)
    git(repository, "checkout", "-q", "-b", "other")
    commit(repository, GOOD)
    git(repository, "checkout", "-q", "-b", "main-again", base)
    git(repository, "merge", "-q", "--no-ff", "-m", "Merge branch 'other'", "other")
    assert [message.strip() for _, message in messages(repository, base)] == [GOOD.strip()]


def test_a_shallow_clone_is_checked_as_far_as_it_goes(repository: Path, tmp_path: Path) -> None:
    base = commit(repository, BAD)
    commit(repository, GOOD)
    git(tmp_path, "clone", "-q", "--depth", "1", repository.as_uri(), "shallow")
    assert [message.strip() for _, message in messages(tmp_path / "shallow", base)] == [GOOD.strip()]


def test_a_history_without_the_base_is_not_checked(repository: Path, tmp_path: Path) -> None:
    assert list(messages(repository)) == []
    commit(repository, BAD)
    assert list(messages(repository)) == []
    assert list(messages(tmp_path)) == []


def test_the_hook_refuses_a_bad_message_and_lets_a_good_one_pass(repository: Path) -> None:
    hooks = commit_message.ROOT / ".githooks"
    (repository / "scripts").mkdir()
    (repository / "scripts" / "commit_message.py").write_bytes(
        (commit_message.ROOT / "scripts/commit_message.py").read_bytes()
    )
    git(repository, "config", "core.hooksPath", str(hooks))
    with pytest.raises(subprocess.CalledProcessError) as refused:
        commit(repository, BAD)
    assert "imperative" in refused.value.stderr
    assert "body is missing" in refused.value.stderr
    commit(repository, GOOD)
    assert git(repository, "log", "--format=%s") == "Bound task lists by bytes"
