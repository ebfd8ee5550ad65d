"""``headway jobs``: find jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from cyclopts.validators import Number

from headway.cli import render
from headway.cli.help import option, split_names
from headway.cli.operator import Operator
from headway.cli.store_access import HERE, JsonFlag, TargetOptions, ask
from headway.client.app import read_states
from headway.client.job_template import RETRIES_MAX
from headway.client.job_values import job_values
from headway.core.errors import ConfigError
from headway.core.job import JobRecord
from headway.core.search import JobSearch, build_search
from headway.core.suggest import did_you_mean
from headway.stores.base import JobQuery

if TYPE_CHECKING:
    from rich.text import Text

ERROR_LEAST = 24  # Columns that an error needs at least; a longer one is folded.

ListLimit = Annotated[int, option("List at most this many.", "N", validator=Number(gte=1, lte=10_000))]
Before = Annotated[str | None, option("Continue after the previous page: its next_cursor.", "CURSOR")]
TaskName = Annotated[str | None, option("Only jobs of this task.", "TASK")]
LaneName = Annotated[str | None, option("Only jobs of this lane.", "LANE", name=["--lane", "--priority"])]


def jobs(
    *,
    status: Annotated[list[str] | None, option("Only jobs in these states, separated by commas.", "STATUS")] = None,
    task: TaskName = None,
    lane: LaneName = None,
    tenant: Annotated[str | None, option("Only jobs of this tenant.", "TENANT")] = None,
    worker: Annotated[str | None, option("Only jobs that this worker runs or ended.", "WORKER")] = None,
    why: Annotated[list[str] | None, option("Only jobs that wait, first of all for these reasons.", "REASON")] = None,
    limit: ListLimit = 50,
    before: Before = None,
    json: JsonFlag = False,
    place: TargetOptions = HERE,
) -> None:
    """List jobs, newest first."""
    query = JobQuery(
        states=read_states(split_names(status or ())),
        task=task,
        lane=lane,
        tenant=tenant,
        worker_id=worker,
        before=read_cursor(before),
        limit=limit,
    )
    reasons = split_names(why or ())

    async def find(operator: Operator) -> tuple[list[JobRecord], int, bool]:
        if lane is not None:
            await check_lane(operator, lane)
        if reasons:
            search = await _search(operator, query, reasons)
            found = await operator.search(search, before=query.before, limit=limit + 1)
        else:
            found = await operator.find(query._replace(limit=limit + 1))
        return found[:limit], await operator.now_at(), len(found) > limit

    print_page(*ask(place, find, history=True), json=json)


async def _search(operator: Operator, query: JobQuery, reasons: list[str]) -> JobSearch:
    """Return the search for jobs that wait for these reasons. Raises ``ConfigError`` for an unknown reason."""
    fields = {"task": query.task, "lane": query.lane, "tenant": query.tenant, "worker": query.worker_id}
    given = {name: [value] for name, value in fields.items() if value is not None}
    states = [state.value for state in query.states]
    return build_search({**given, **({"state": states} if states else {}), "why": reasons}, await operator.now_at())


def print_page(found: list[JobRecord], now_at: int, more: bool, *, json: bool, errors: bool = False) -> None:
    """Print a page of jobs, as a table or as JSON."""
    cursor = str(found[-1].seq) if more else None
    if json:
        render.print_json({"items": [job_values(job) for job in found], "next_cursor": cursor})
        return
    if not found:
        print("No jobs.")
        return
    console = render.console()
    console.print(jobs_table(found, now_at, errors=errors))
    if cursor is not None:
        console.print(f"More with --before {cursor}", style="dim")


def jobs_table(found: Sequence[JobRecord], now_at: int, *, errors: bool = False) -> render.FittedTable:
    """Return a table of jobs, one a line. A narrow table shortens ids first, then leaves out attempts and lane."""
    last, short = "error" if errors else "took", render.short_ids(job.job_id for job in found)
    rows: list[dict[str, str | Text]] = []
    for job in found:
        error = "" if job.error is None else f"{job.error.type}: {job.error.message}"
        rows.append(
            {
                "id": render.text(job.job_id),
                "id:short": render.text(short[job.job_id]),
                "status": render.status_text(_status(job)),
                "task": render.text(job.task),
                "lane": render.text(job.lane),
                "attempts": str(job.attempts)
                if job.max_retries == RETRIES_MAX
                else f"{job.attempts}/{job.max_retries + 1}",
                "age": render.age(job.submitted_at, now_at),
                "took": render.NOTHING
                if job.started_at is None
                else render.duration((job.finished_at or now_at) - job.started_at),
                "error": render.text(render.cut(error.partition("\n")[0], 80)),
            }
        )
    return render.FittedTable(
        rows,
        ("id", "status", "task", "lane", "attempts", "age", last),
        ("id:short", "status", "task", "lane", "attempts", "age", last),
        ("id:short", "status", "task", "lane", "age", last),
        ("id:short", "status", "task", "age", last),
        ("id:short", "task", last) if errors else ("id:short", "status", "task", "age"),
        kept="task",
        right=["attempts", "age", "took"],
        flexible={"error": ERROR_LEAST},
    )


def _status(job: JobRecord) -> str:
    if job.held:
        return f"{job.state.value} (held)"
    if job.due_at is not None:
        return f"{job.state.value} (delayed)"
    if job.cancel_requested_at is not None and not job.state.ended:
        return f"{job.state.value} (cancelling)"
    return job.state.value


async def check_lane(operator: Operator, lane: str) -> None:
    """Refuse a lane that neither the policy nor the store knows, suggesting the nearest."""
    lanes = (await operator.policy()).lanes
    if lane in lanes:
        return
    known = list(dict.fromkeys([*lanes, *(await operator.stats()).lanes]))
    if lane not in known:
        raise ConfigError(f"no lane {lane!r}{did_you_mean(lane, known)} (lanes: {', '.join(known)})")


def read_cursor(text: str | None) -> int | None:
    """Read where a page begins."""
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ConfigError(f"--before takes the next_cursor of another page, not {text!r}")
    return int(text)
