"""Crons as operators see them: the next run, and the job of the last one."""

from __future__ import annotations

from typing import NamedTuple

from headway.core.cron import next_tick, parse_cron
from headway.core.job import JobId, State
from headway.core.policy.enforced import PauseSet
from headway.policy_store.catalogue import CronDocument, read_crons
from headway.policy_store.rule_documents import read_paused
from headway.stores.base import JobQuery, Store
from headway.stores.paging import find_in_steps

JOBS_SEARCHED = 20  # The newest jobs of a task, among which the job of its last tick is looked for.


class CronRun(NamedTuple):
    """The job of a cron's last tick."""

    job_id: JobId
    state: State
    submitted_at: int


class CronView(NamedTuple):
    """A cron with its next and last run. ``paused``: its task or lane is, or everything."""

    task: str
    expression: str
    tz: str
    catch_up: str
    overlap: str
    paused: bool
    next_at: int | None
    last: CronRun | None


async def read_cron_views(store: Store, *, after: str | None = None, most: int | None = None) -> list[CronView]:
    """Read crons by name: those whose names come after ``after``, at most ``most`` of them."""
    now_at, paused = (await store.snapshot()).now_at, await read_paused(store)
    crons = sorted((cron for cron, _ in await read_crons(store)), key=lambda cron: cron.task)
    wanted = [cron for cron in crons if after is None or cron.task > after][:most]
    return [await _view(store, cron, paused, now_at) for cron in wanted]


async def _view(store: Store, cron: CronDocument, paused: PauseSet, now_at: int) -> CronView:
    return CronView(
        cron.task,
        cron.expression,
        cron.tz,
        cron.catch_up,
        cron.overlap,
        paused.everything or cron.task in paused.tasks or cron.lane in paused.lanes,
        next_tick(parse_cron(cron.expression, cron.tz), max(now_at, cron.ticked_at)),
        await _last_run(store, cron.task),
    )


async def _last_run(store: Store, task: str) -> CronRun | None:
    async for job in find_in_steps(store.find, JobQuery(task=task, limit=JOBS_SEARCHED)):
        if (job.idempotency_key or "").startswith(f"cron:{task}:"):
            return CronRun(job.job_id, job.state, job.submitted_at)
    return None
