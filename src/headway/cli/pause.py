"""``headway pause`` and ``headway resume``: let nothing of a lane, a task or a tenant start."""

from __future__ import annotations

from typing import Annotated

from headway.cli import render
from headway.cli.help import option
from headway.cli.jobs import check_lane
from headway.cli.operator import Operator
from headway.cli.store_access import HERE, TargetOptions, change
from headway.core.policy.enforced import PauseSet

LaneName = Annotated[str | None, option("Only this lane.", "NAME")]
TaskName = Annotated[str | None, option("Only this task.", "NAME")]
Tenant = Annotated[str | None, option("Only this tenant.", "NAME")]


def pause(*, lane: LaneName = None, task: TaskName = None, tenant: Tenant = None, place: TargetOptions = HERE) -> None:
    """Pause a lane, a task or a tenant; without an option, pause everything.

    Running jobs continue, and new jobs wait. The pause applies to all workers at
    once, until `headway resume`.
    """

    async def act(operator: Operator) -> PauseSet:
        if lane is not None:
            await check_lane(operator, lane)
        return await operator.pause(lane, task, tenant)

    _print(change(place, act))


def resume(*, lane: LaneName = None, task: TaskName = None, tenant: Tenant = None, place: TargetOptions = HERE) -> None:
    """Resume a lane, a task or a tenant; without an option, resume everything."""
    _print(change(place, lambda operator: operator.resume(lane, task, tenant)))


def _print(paused: PauseSet) -> None:
    names = paused.names()
    print(render.clean(f"paused: {', '.join(names)}" if names else "nothing is paused"))
