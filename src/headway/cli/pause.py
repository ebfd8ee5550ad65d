"""``headway pause`` and ``headway resume``: let nothing of a lane, a task or a tenant start."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from headway.cli import show
from headway.cli.opening import HERE, Place, opened, policy_of, run
from headway.core.errors import ConfigError
from headway.core.policy.rules import Paused, pausing, resuming
from headway.core.words import nearest
from headway.engine.rules import change_paused
from headway.stores.base import Store

Lane = Annotated[str | None, Parameter(help="Only this lane.", metavar="NAME")]
TaskName = Annotated[str | None, Parameter(help="Only this task.", metavar="NAME")]
Tenant = Annotated[str | None, Parameter(help="Only this tenant.", metavar="NAME")]


def pause(*, lane: Lane = None, task: TaskName = None, tenant: Tenant = None, place: Place = HERE) -> int:
    """Let nothing of a lane, a task or a tenant start; without any, nothing at all.

    What runs goes on, and what is submitted waits. It holds for all workers at
    once, until `headway resume`.
    """

    async def change() -> Paused:
        async with opened(place) as store:
            await _check_lane(store, lane)
            return await change_paused(store, pausing(lane, task, tenant))

    _print(run(change()))
    return 0


def resume(*, lane: Lane = None, task: TaskName = None, tenant: Tenant = None, place: Place = HERE) -> int:
    """Let go on what was paused by the same words; without any, everything."""

    async def change() -> Paused:
        async with opened(place) as store:
            return await change_paused(store, resuming(lane, task, tenant))

    _print(run(change()))
    return 0


async def _check_lane(store: Store, lane: str | None) -> None:
    """Refuse a lane that is neither in the policy nor in use: to pause it would do nothing."""
    if lane is None:
        return
    known = list(dict.fromkeys([*(await policy_of(store)).lanes, *(await store.stats()).lanes]))
    if lane not in known:
        raise ConfigError(f"no lane {lane!r}{nearest(lane, known)} (lanes: {', '.join(known)})")


def _print(paused: Paused) -> None:
    names = paused.names()
    print(show.clean(f"paused: {', '.join(names)}" if names else "nothing is paused"))
