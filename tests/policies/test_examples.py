"""All example policies are valid and have the promised effect, and the page beside them names each."""

from __future__ import annotations

import re

import pytest

from headway.core.policy.lint import check_policy
from headway.core.policy.reader import read_policy
from headway.core.policy.writer import policy_data
from tests.policies.pool import POLICIES, example

NAMES = sorted(file.stem for file in POLICIES.glob("*.toml"))


def test_there_is_one_for_each_kind_of_queue() -> None:
    assert NAMES == ["celery-routing", "durations", "fasdis", "ioqueue", "priority-queue"]


@pytest.mark.parametrize("name", NAMES)
def test_each_is_read_as_it_is_written_out(name: str) -> None:
    policy = example(name)
    assert read_policy(policy_data(policy), name) == policy
    assert policy.default_lane in policy.lanes


@pytest.mark.parametrize("name", NAMES)
def test_only_the_literal_rule_of_promotion_is_warned_of(name: str) -> None:
    checked = check_policy(example(name), slots=10)
    assert [finding.code for finding in checked.findings] == (["absolute"] if name == "priority-queue" else [])
    assert all(sure.after_ms is not None for sure in checked.guarantees), "a lane of it can starve"


def test_the_page_names_each() -> None:
    page = (POLICIES / "README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| \[([\w-]+)\.toml\]", page, re.MULTILINE)) == NAMES
