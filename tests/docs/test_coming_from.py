"""The pages for users of other queues. ``test_policy_pages`` runs their examples of the code after the move."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("peer", ["rq", "arq", "dramatiq", "huey"])
def test_the_example_prints_the_same_before_and_after(peer: str) -> None:
    page = (ROOT / f"docs/how-to/coming-from-{peer}.md").read_text()
    shown = dict(re.findall(r"\$ python (before|after)\.py\n(.*?)```", page, re.DOTALL))
    assert shown["before"] == shown["after"] != ""
    assert "```console\n$ python after.py\n" in page  # Only such blocks are run.
