"""``headway dlq``: jobs that used up their retries or crashed too often."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, fields
from typing import Annotated

from cyclopts import Parameter

from headway.cli import render
from headway.cli.cancel import NOT_FOUND, print_answers, retry_jobs
from headway.cli.help import command, family, flag, option
from headway.cli.jobs import Before, LaneName, ListLimit, TaskName, print_page, read_cursor
from headway.cli.operator import Operator
from headway.cli.store_access import HERE, JsonFlag, TargetOptions, ask, change, whole_ids
from headway.core.errors import ConfigError
from headway.core.job import JobId, JobRecord, State
from headway.core.search import MOMENT, read_time
from headway.stores.base import JobQuery

DEAD = (State.DEAD_LETTER,)
PAGE = 500

All = Annotated[bool, flag("All dead letters that the filters choose.", name="--all")]
Yes = Annotated[bool, flag("Do not ask.", name=["--yes", "-y"])]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Filters:
    """The options that select dead letters."""

    task: TaskName = None
    error: Annotated[str | None, option("Only errors of this type, or with this in their message.", "TEXT")] = None
    lane: LaneName = None
    tenant: Annotated[str | None, option("Only jobs of this tenant.", "TENANT")] = None
    since: Annotated[str | None, option(f"Only jobs that ended since: {MOMENT}.", "TIME")] = None
    until: Annotated[str | None, option("Only jobs that ended before this time.", "TIME")] = None

    @property
    def given(self) -> bool:
        return any(getattr(self, field.name) is not None for field in fields(self))

    async def find(self, operator: Operator, before: int | None = None) -> AsyncGenerator[list[JobRecord]]:
        """Find dead letters, newest first, page by page. A page may be empty."""
        now_at = await operator.now_at()
        since_at, until_at = (
            None if text is None else read_time(name, text, now_at)
            for name, text in (("--since", self.since), ("--until", self.until))
        )
        query = JobQuery(states=DEAD, task=self.task, lane=self.lane, tenant=self.tenant, limit=PAGE)
        while page := await operator.find(query._replace(before=before)):
            yield [
                job
                for job in page
                if self._has_error(job)
                and (since_at is None or (job.finished_at or 0) >= since_at)
                and (until_at is None or (job.finished_at or 0) < until_at)
            ]
            before = page[-1].seq  # Ever older, so one that dies again meanwhile is not met twice.

    def _has_error(self, job: JobRecord) -> bool:
        if self.error is None:
            return True
        return job.error is not None and (
            job.error.type == self.error or self.error.casefold() in job.error.message.casefold()
        )


EVERY = Filters()

dlq = family(
    "dlq",
    "List, replay or purge dead letters: jobs that used up their retries or crashed.",
    "headway dlq list --since 2h --error ConnectionError",
    "headway dlq replay --all --task reports.export",
    "headway dlq purge --all --tenant acme --yes",
)


@command(dlq, "list [OPTIONS]", "headway dlq list --task reports.export --json")
def list_dead(
    *,
    filters: Filters = EVERY,
    limit: ListLimit = 50,
    before: Before = None,
    json: JsonFlag = False,
    place: TargetOptions = HERE,
) -> None:
    """List dead letters with their errors, newest first."""
    cursor = read_cursor(before)

    async def find(operator: Operator) -> tuple[list[JobRecord], int, bool]:
        found: list[JobRecord] = []
        async with aclosing(filters.find(operator, cursor)) as pages:
            async for page in pages:
                found += page
                if len(found) > limit:
                    break
        return found[:limit], await operator.now_at(), len(found) > limit

    print_page(*ask(place, find), json=json, errors=True)


@command(dlq, "replay [ID…] [OPTIONS]", "headway dlq replay ID", "headway dlq replay --all --task reports.export")
def replay(
    *ids: Annotated[str, option("Ids of dead letters.", name="ID")],
    all_: All = False,
    filters: Filters = EVERY,
    place: TargetOptions = HERE,
) -> int:
    """Queue dead letters again, with all their retries."""
    _check_choice(ids, everything=all_, filters=filters)

    async def replay_named(operator: Operator) -> tuple[list[JobId], list[tuple[bool, str]]]:
        wanted = await whole_ids(operator, ids, DEAD)
        found = await operator.get(wanted)
        dead = [job for job in found if job is not None and job.state in DEAD]
        answers = dict(zip(dead, await retry_jobs(operator, [job.job_id for job in dead], dead), strict=True))
        for job in found:
            if job is not None and job not in answers:
                answers[job] = False, f"{job.state.value}; it is no dead letter"
        return wanted, [NOT_FOUND if job is None else answers[job] for job in found]

    async def replay_all(operator: Operator) -> tuple[int, int]:
        queued = seen = 0
        async for page in filters.find(operator):
            answers = await retry_jobs(operator, [job.job_id for job in page], page) if page else []
            queued += sum(done for done, _ in answers)
            seen += len(page)
        return queued, seen

    if ids:
        return print_answers(*change(place, replay_named))
    queued, seen = change(place, replay_all)
    print(f"{render.plural(queued, 'job')} queued again")
    if queued < seen:
        print(f"{render.plural(seen - queued, 'job')} stayed: another live job has its unique key", file=sys.stderr)
    return 0 if queued == seen else 1


@command(dlq, "purge [ID…] [OPTIONS]", "headway dlq purge ID --yes", "headway dlq purge --all --yes")
def purge(
    *ids: Annotated[str, option("Ids of dead letters.", name="ID")],
    all_: All = False,
    filters: Filters = EVERY,
    yes: Yes = False,
    place: TargetOptions = HERE,
) -> int:
    """Delete dead letters. This cannot be undone."""
    _check_choice(ids, everything=all_, filters=filters)
    chosen = "all dead letters that the filters choose" if filters.given else "all dead letters"
    if not yes and not _confirmed(f"Remove {chosen if all_ else render.plural(len(ids), 'dead letter')}?"):
        raise ConfigError("purge removes jobs for good; add --yes if that is what you want")

    async def remove(operator: Operator) -> int:
        if ids:
            return await operator.purge_dead(await whole_ids(operator, ids, DEAD))
        removed = 0
        async for page in filters.find(operator):  # One call for all would block the store's other writers too long.
            removed += await operator.purge_dead([job.job_id for job in page]) if page else 0
        return removed

    removed = change(place, remove)
    print(f"{render.plural(removed, 'dead letter')} removed")
    return 0 if not ids or removed == len(set(ids)) else 1


def _check_choice(ids: tuple[str, ...], *, everything: bool, filters: Filters) -> None:
    if not ids and not everything:
        raise ConfigError("no dead letters named: name their ids, or give --all")
    if ids and (everything or filters.given):
        raise ConfigError("give ids, or --all with filters, not both")


def _confirmed(question: str) -> bool:
    if not sys.stdin.isatty():
        return False
    print(question, "[y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
