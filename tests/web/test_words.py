"""The dashboard's lists of words contain every state, event and reason of core."""

from __future__ import annotations

import re
from pathlib import Path

from headway.client.job_template import RETRIES_MAX
from headway.core.event import EVENT_KINDS
from headway.core.policy.why import CODES

SOURCES = Path(__file__).resolve().parents[2] / "web" / "src"


def test_the_page_of_a_job_follows_every_event_after_its_submit() -> None:
    (listed,) = re.findall(r"const EVENTS = (\[.*?\]);", (SOURCES / "job.tsx").read_text())
    assert re.findall(r'"(\w+)"', listed) == [kind for kind in EVENT_KINDS if kind != "queued"]


def test_every_reason_has_words_in_the_dashboard() -> None:
    written = re.findall(r'^  (\w+): "[^"]+",$', (SOURCES / "reasons.ts").read_text(), re.MULTILINE)
    assert set(written) == {*CODES, "ready"}


def test_unlimited_attempts_are_those_of_the_most_retries() -> None:
    (number,) = re.findall(r'retries === ([\d_]+) \? "any number"', (SOURCES / "format.ts").read_text())
    assert int(number) == RETRIES_MAX
