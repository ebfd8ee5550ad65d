"""What several topics of the conformance tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from headway.stores.base import Store, Subscription

Listen = Callable[[str], Subscription]


@pytest.fixture
def listen(store: Store) -> Iterator[Listen]:
    """Subscribe to channels of the store, and close the subscriptions after the test."""
    subscriptions: list[Subscription] = []

    def subscribe(name: str) -> Subscription:
        subscriptions.append(store.subscribe(name))
        return subscriptions[-1]

    yield subscribe
    for subscription in subscriptions:
        subscription.close()
