"""The pytest plugin: fixtures that need no import, and a guard against real stores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headway.client.client import Client
from headway.stores.base import Store
from headway.testing.clock import ManualClock
from headway.testing.harness import Testbed

GUARD = "headway_guard"
MARK = "headway_store"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(GUARD, "Refuse tests that use a real Headway store outside a Testbed.", type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{MARK}: this test may use a real Headway store although {GUARD} is set")


@pytest.fixture(autouse=True)
def _headway_guard(request: pytest.FixtureRequest) -> Iterator[None]:
    """Refuse every store except the memory store during a test, if the ini option is set."""
    guarded = request.config.getini(GUARD) and request.node.get_closest_marker(MARK) is None
    Client.guard = staticmethod(_refuse) if guarded else None
    yield
    Client.guard = None


def _refuse(store: Store) -> None:
    if store.abilities.shared:
        raise RuntimeError(
            "this test would use a real Headway store; wrap it in `with Testbed(app):`, "
            f"or mark it with @pytest.mark.{MARK}"
        )


@pytest.fixture
def headway_clock() -> ManualClock:
    """Return the clock of the fixture ``headway``. It moves only on ``advance``."""
    return ManualClock()


@pytest.fixture
def headway(headway_clock: ManualClock) -> Iterator[Testbed]:
    """Yield a test bed with a new app, ``headway.app``, on the memory store.

    To test an existing app, write ``with Testbed(app) as bed:`` instead.
    """
    with Testbed(clock=headway_clock) as bed:
        yield bed
