"""``headway crons``: jobs that run by the clock."""

from __future__ import annotations

from typing import Any, NamedTuple

from cyclopts import App, Group

from headway.cli import render
from headway.cli.store_access import HERE, OPTIONS, JsonFlag, TargetOptions, opened, run
from headway.core.cron import next_tick, parse_cron
from headway.core.job import JobRecord
from headway.core.policy.enforced import PauseSet
from headway.policy_store.catalogue import CronDocument, read_crons
from headway.policy_store.rule_documents import read_paused
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
    last: JobRecord | None
    paused: bool


@crons.command(
    name="list",
    usage="Usage: headway crons list [OPTIONS]",
    help_epilogue="Example:\n\n    headway crons list --json",
)
def list_all(*, json: JsonFlag = False, place: TargetOptions = HERE) -> int:
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
        render.print_json({"items": [_values(row) for row in rows], "next_cursor": None})
    elif rows:
        _print(rows, now_at)
    else:
        print("No crons. A worker whose app has `@app.cron(…)` tasks writes them to the store when it starts.")
    return 0


async def _row(store: Store, cron: CronDocument, paused: PauseSet, now_at: int) -> _Row:
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
        "next_at": render.moment(row.next_at),
        "last": None
        if last is None
        else {"id": last.job_id, "status": last.state.value, "submitted_at": render.moment(last.submitted_at)},
    }


def _print(rows: list[_Row], now_at: int) -> None:
    short = render.short_ids(row.last.job_id for row in rows if row.last is not None)
    lines: list[dict[str, Any]] = []
    for cron, next_at, last, paused in rows:
        soon = render.NOTHING if next_at is None else f"in {render.duration(next_at - now_at)}"
        lines.append(
            {
                "task": render.text(cron.task),
                "expression": render.text(cron.expression),
                "zone": render.text(cron.tz),
                "next run": render.text("paused", "yellow") if paused else render.text(soon),
                "last run": render.NOTHING if last is None else f"{render.age(last.submitted_at, now_at)} ago",
                "status": render.NOTHING if last is None else render.status_text(last.state.value),
                "job": render.NOTHING if last is None else render.text(short[last.job_id]),
            }
        )
    render.console().print(
        render.FittedTable(
            lines,
            ("task", "expression", "zone", "next run", "last run", "status", "job"),
            ("task", "expression", "next run", "last run", "status"),
            ("task", "next run", "status"),
            kept="task",
            right=["next run", "last run"],
        )
    )
