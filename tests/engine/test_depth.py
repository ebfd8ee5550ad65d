"""A queue that is as long as the policy allows takes nothing more in."""

from __future__ import annotations

import pytest

from headway.core.errors import QueueFull
from headway.engine import depth
from headway.engine.depth import Depth
from headway.stores.base import Store
from tests.conformance.builders import a_job, submit, submit_one


async def test_no_more_jobs_are_admitted_than_may_wait(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depth, "LOOK_EVERY", 1_000.0)
    await submit(store, a_job(), a_job())
    gauge = Depth()
    await gauge.admit(store, 2, 4)
    with pytest.raises(QueueFull, match="4 jobs wait, and the policy allows 4"):
        await gauge.admit(store, 1, 4)
    with pytest.raises(QueueFull):  # Whole or not at all.
        await Depth().admit(store, 3, 4)


async def test_what_has_left_the_queue_makes_room(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depth, "LOOK_EVERY", 0.0)
    gauge = Depth()
    await gauge.admit(store, 1, 1)
    job_id = await submit_one(store)
    with pytest.raises(QueueFull):
        await gauge.admit(store, 1, 1)
    await store.cancel([job_id])
    await gauge.admit(store, 1, 1)
