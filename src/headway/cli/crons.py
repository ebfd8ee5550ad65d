"""``headway crons``: jobs that run by the clock."""

from __future__ import annotations

from typing import Any, NamedTuple

from cyclopts import App, Group

from headway.cli import show
from headway.cli.opening import HERE, OPTIONS, JsonFlag, Place, opened, run
from headway.core.cron import next_tick, parse_cron
from headway.core.job import Job
from headway.core.policy.rules import Paused
from headway.engine.catalogue import CronDocument, read_crons
from headway.engine.rules import read_paused
from headway.stores.base import JobQuery, Store

LOOKED_AT = 20  # The newest jobs of a task, among which the job of its last tick is looked for.

crons = App(
    name="crons",
    help="List the jobs that run by the clock, with their last and next run.",
    group_commands=Group("Commands"),
    group_parameters=OPTIONS,
    help_epilogue="Examples:\n\n    headway crons list\n    headway crons list --json",
)


class _Row(NamedTuple):
    cron: CronDocument
    next_at: int | None
    last: Job | None
    paused: bool


@crons.command(
    name="list",
    usage="Usage: headway crons list [OPTIONS]",
    help_epilogue="Example:\n\n    headway crons list --json",
)
def list_all(*, json: JsonFlag = False, place: Place = HERE) -> int:
    """List crons by their next run, with the job of their last one.

    A worker writes its crons to the store when it starts. To run one now, use
    `headway submit TASK`; to stop one for a while, `headway pause --task TASK`.
    """

    async def read() -> tuple[list[_Row], int]:
        async with opened(place) as store:
            now_at, paused = (await store.snapshot()).now_at, await read_paused(store)
            found = [await _row(store, cron, paused, now_at) for cron, _ in await read_crons(store)]
            return sorted(found, key=lambda row: (row.next_at is None, row.next_at, row.cron.task)), now_at

    rows, now_at = run(read())
    if json:
        show.print_json({"items": [_values(row) for row in rows], "next_cursor": None})
    elif rows:
        _print(rows, now_at)
    else:
        print("No crons. A worker whose app has `@app.cron(…)` tasks writes them to the store when it starts.")
    return 0


async def _row(store: Store, cron: CronDocument, paused: Paused, now_at: int) -> _Row:
    newest = await store.find(JobQuery(task=cron.task, limit=LOOKED_AT))
    last = next((job for job in newest if (job.idempotency_key or "").startswith(f"cron:{cron.task}:")), None)
    stopped = paused.everything or cron.task in paused.tasks or cron.lane in paused.lanes
    return _Row(cron, next_tick(parse_cron(cron.expression, cron.tz), max(now_at, cron.ticked_at)), last, stopped)


def _values(row: _Row) -> dict[str, Any]:
    cron, last = row.cron, row.last
    return {
        "task": cron.task,
        "expression": cron.expression,
        "tz": cron.tz,
        "catch_up": cron.catch_up,
        "overlap": cron.overlap,
        "paused": row.paused,
        "next_at": show.moment(row.next_at),
        "last": None
        if last is None
        else {"id": last.job_id, "status": last.state.value, "submitted_at": show.moment(last.submitted_at)},
    }


def _print(rows: list[_Row], now_at: int) -> None:
    short = show.short_ids(row.last.job_id for row in rows if row.last is not None)
    lines: list[dict[str, Any]] = []
    for cron, next_at, last, paused in rows:
        soon = show.NOTHING if next_at is None else f"in {show.duration(next_at - now_at)}"
        lines.append(
            {
                "task": show.text(cron.task),
                "expression": show.text(cron.expression),
                "zone": show.text(cron.tz),
                "next run": show.text("paused", "yellow") if paused else show.text(soon),
                "last run": show.NOTHING if last is None else f"{show.age(last.submitted_at, now_at)} ago",
                "status": show.NOTHING if last is None else show.status_text(last.state.value),
                "job": show.NOTHING if last is None else show.text(short[last.job_id]),
            }
        )
    show.console().print(
        show.FittedTable(
            lines,
            ("task", "expression", "zone", "next run", "last run", "status", "job"),
            ("task", "expression", "next run", "last run", "status"),
            ("task", "next run", "status"),
            kept="task",
            right=["next run", "last run"],
        )
    )
