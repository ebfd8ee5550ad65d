"""``headway dlq``: jobs that used up their retries or crashed too often."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import App, Group, Parameter

from headway.cli import show
from headway.cli.cancel import print_answers, retry_jobs
from headway.cli.jobs import Before, Limit, TaskName, find_page, print_page, read_cursor
from headway.cli.opening import HERE, OPTIONS, JsonFlag, Place, opened, run
from headway.core.errors import ConfigError
from headway.core.job import Job, JobId, State
from headway.stores.base import JobQuery, Store

DEAD = (State.DEAD_LETTER,)
PAGE = 500

All = Annotated[bool, Parameter(name="--all", help="All dead letters.", show_default=False)]
Yes = Annotated[bool, Parameter(name=["--yes", "-y"], help="Do not ask.", show_default=False)]

dlq = App(
    name="dlq",
    help="List, replay or purge dead letters: jobs out of retries, or that crashed.",
    group_commands=Group("Commands"),
    group_parameters=OPTIONS,
    help_epilogue="Examples:\n\n    headway dlq list\n    headway dlq replay --all --task reports.export\n"
    "    headway dlq purge --all --yes",
)


@dlq.command(
    name="list",
    usage="Usage: headway dlq list [OPTIONS]",
    help_epilogue="Example:\n\n    headway dlq list --task reports.export --json",
)
def list_dead(
    *,
    task: TaskName = None,
    limit: Limit = 50,
    before: Before = None,
    json: JsonFlag = False,
    place: Place = HERE,
) -> int:
    """List dead letters with their errors, newest first."""
    query = JobQuery(states=DEAD, task=task, before=read_cursor(before), limit=limit)

    async def find() -> tuple[list[Job], int, bool]:
        async with opened(place) as store:
            return await find_page(store, query)

    print_page(*run(find()), json=json, errors=True)
    return 0


@dlq.command(
    usage="Usage: headway dlq replay [ID…] [OPTIONS]",
    help_epilogue="Examples:\n\n    headway dlq replay ID\n    headway dlq replay --all --task reports.export",
)
def replay(
    *ids: Annotated[str, Parameter(name="ID", help="Ids of dead letters.")],
    all_: All = False,
    task: TaskName = None,
    place: Place = HERE,
) -> int:
    """Queue dead letters again, with all their retries."""
    _check_choice(ids, everything=all_, task=task)

    async def replay_named() -> list[tuple[bool, str]]:
        async with opened(place) as store:
            wanted = [JobId(job_id) for job_id in ids]
            found = await store.get(wanted)
            dead = [job for job in found if job is not None and job.state in DEAD]
            answers = dict(zip(dead, await retry_jobs(store, [job.job_id for job in dead], dead), strict=True))
            return [_not_dead(job) if job not in answers else answers[job] for job in found]

    async def replay_all() -> tuple[int, int]:
        queued = seen = 0
        async with opened(place) as store:
            before: int | None = None
            while page := await store.find(JobQuery(states=DEAD, task=task, before=before, limit=PAGE)):
                answers = await retry_jobs(store, [job.job_id for job in page], page)
                queued += sum(done for done, _ in answers)
                seen += len(page)
                before = page[-1].seq  # Ever older, so one that dies again meanwhile is not met twice.
        return queued, seen

    if ids:
        return print_answers(ids, run(replay_named()))
    queued, seen = run(replay_all())
    print(f"{show.plural(queued, 'job')} queued again")
    if queued < seen:
        print(f"{show.plural(seen - queued, 'job')} stayed: another live job has its unique key", file=sys.stderr)
    return 0 if queued == seen else 1


@dlq.command(
    usage="Usage: headway dlq purge [ID…] [OPTIONS]",
    help_epilogue="Examples:\n\n    headway dlq purge ID --yes\n    headway dlq purge --all --yes",
)
def purge(
    *ids: Annotated[str, Parameter(name="ID", help="Ids of dead letters.")],
    all_: All = False,
    task: TaskName = None,
    yes: Yes = False,
    place: Place = HERE,
) -> int:
    """Remove dead letters for good. Nothing brings them back."""
    _check_choice(ids, everything=all_, task=task)
    if not yes and not _confirmed(f"Remove {'all dead letters' if all_ else show.plural(len(ids), 'dead letter')}?"):
        raise ConfigError("purge removes jobs for good; add --yes if that is what you want")

    async def remove() -> int:
        async with opened(place) as store:
            if ids:
                return await store.purge(DEAD, [JobId(job_id) for job_id in ids], limit=len(ids))
            return await _purge_all(store, task)

    removed = run(remove())
    print(f"{show.plural(removed, 'dead letter')} removed")
    return 0 if not ids or removed == len(set(ids)) else 1


async def _purge_all(store: Store, task: str | None) -> int:
    """Remove dead letters batch by batch; one call would keep the store's writer from others for too long."""
    removed = 0
    while page := await store.find(JobQuery(states=DEAD, task=task, limit=PAGE)):
        gone = await store.purge(DEAD, [job.job_id for job in page], limit=PAGE)
        removed += gone
        if not gone:
            break
    return removed


def _check_choice(ids: tuple[str, ...], *, everything: bool, task: str | None) -> None:
    if not ids and not everything:
        raise ConfigError("name the ids of dead letters, or give --all")
    if ids and (everything or task is not None):
        raise ConfigError("give ids, or --all (with --task, if you like), not both")


def _confirmed(question: str) -> bool:
    if not sys.stdin.isatty():
        return False
    print(question, "[y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _not_dead(job: Job | None) -> tuple[bool, str]:
    return False, "not found; it may have been pruned" if job is None else f"{job.state.value}; it is no dead letter"
