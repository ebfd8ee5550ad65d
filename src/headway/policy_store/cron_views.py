"""Crons as operators see them: the next run, and the job of the last one."""

from __future__ import annotations

from typing import NamedTuple

from headway.core.cron import next_tick, parse_cron
from headway.core.job import JobId, State
from headway.core.policy.enforced import PauseSet
from headway.policy_store.catalogue import CronDocument, cron_prefix, read_crons, read_paused_crons
from headway.policy_store.rule_documents import read_paused
from headway.stores.base import JobQuery, Store
from headway.stores.paging import find_in_steps

JOBS_SEARCHED = 20  # The newest jobs of a task, among which the jobs of its last ticks are looked for.
UPCOMING, RECENT = 3, 10  # Runs that a view shows.


class CronRun(NamedTuple):
    """The job of a cron's last tick."""

    job_id: JobId
    state: State
    submitted_at: int


class CronView(NamedTuple):
    """A cron with its next and last runs. ``paused``: it is, or its task or lane, or everything.

    ``held``: an operator has paused the cron itself. ``upcoming``: its next runs. ``recent``: its last jobs.
    """

    task: str
    expression: str
    tz: str
    catch_up: str
    overlap: str
    paused: bool
    next_at: int | None
    last: CronRun | None
    held: bool = False
    upcoming: tuple[int, ...] = ()
    recent: tuple[CronRun, ...] = ()


async def read_cron_views(store: Store, *, after: str | None = None, most: int | None = None) -> list[CronView]:
    """Read crons by name: those whose names come after ``after``, at most ``most`` of them."""
    now_at, paused = (await store.snapshot()).now_at, await read_paused(store)
    held = await read_paused_crons(store)
    crons = sorted((cron for cron, _ in await read_crons(store)), key=lambda cron: cron.name)
    wanted = [cron for cron in crons if after is None or cron.name > after][:most]
    return [await _view(store, cron, paused, now_at, held=cron.name in held) for cron in wanted]


async def _view(store: Store, cron: CronDocument, paused: PauseSet, now_at: int, *, held: bool) -> CronView:
    upcoming, recent = _upcoming(cron, now_at), await _recent_runs(store, cron)
    return CronView(
        cron.name,
        cron.expression,
        cron.tz,
        cron.catch_up,
        cron.overlap,
        held or paused.everything or cron.task in paused.tasks or cron.lane in paused.lanes,
        upcoming[0] if upcoming else None,
        recent[0] if recent else None,
        held,
        upcoming,
        recent,
    )


def _upcoming(cron: CronDocument, now_at: int) -> tuple[int, ...]:
    times, at = parse_cron(cron.expression, cron.tz), max(now_at, cron.ticked_at)
    found: list[int] = []
    while len(found) < UPCOMING and (following := next_tick(times, at)) is not None:
        found.append(following)
        at = following
    return tuple(found)


async def _recent_runs(store: Store, cron: CronDocument) -> tuple[CronRun, ...]:
    jobs = find_in_steps(store.find, JobQuery(task=cron.task, limit=JOBS_SEARCHED))
    runs = [job async for job in jobs if (job.idempotency_key or "").startswith(cron_prefix(cron.name))]
    return tuple(CronRun(job.job_id, job.state, job.submitted_at) for job in runs[:RECENT])
