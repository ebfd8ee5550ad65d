"""The pytest plugin: fixtures that need no import."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headway.testing.bed import Testbed
from headway.testing.clock import ManualClock


@pytest.fixture
def headway_clock() -> ManualClock:
    """The clock of the fixture ``headway``: it stands still until ``advance`` moves it."""
    return ManualClock()


@pytest.fixture
def headway(headway_clock: ManualClock) -> Iterator[Testbed]:
    """A test bed with an app of its own, ``headway.app``, on the memory store.

    To test an app that exists already, write ``with Testbed(app) as bed:`` instead.
    """
    with Testbed(clock=headway_clock) as bed:
        yield bed
