"""``headway crons``: jobs that run by the clock."""

from __future__ import annotations

from typing import Any

from headway.cli import render
from headway.cli.help import command, family
from headway.cli.operator import Operator
from headway.cli.store_access import HERE, JsonFlag, TargetOptions, ask
from headway.policy_store.cron_views import CronView

crons = family(
    "crons", "List cron jobs, with their last and next run.", "headway crons list", "headway crons list --json"
)


@command(crons, "list [OPTIONS]", "headway crons list --json")
def list_all(*, json: JsonFlag = False, place: TargetOptions = HERE) -> None:
    """List crons by their next run, with the job of their last one.

    A worker writes its crons to the store when it starts. To run one now, use
    `headway submit TASK`; to stop one for a while, `headway pause --task TASK`.
    """

    async def read(operator: Operator) -> tuple[list[CronView], int]:
        return await operator.crons(), await operator.now_at()

    found, now_at = ask(place, read)
    rows = sorted(found, key=lambda row: (row.next_at is None, row.next_at, row.task))
    if json:
        render.print_json({"items": [_values(row) for row in rows], "next_cursor": None})
    elif rows:
        _print(rows, now_at)
    else:
        print("No crons. A worker whose app has `@app.cron(…)` tasks writes them to the store when it starts.")


def _values(row: CronView) -> dict[str, Any]:
    last: dict[str, Any] | None = None
    if row.last is not None:
        job_id, state, submitted_at = row.last
        last = {"id": job_id, "status": state.value, "submitted_at": render.moment(submitted_at)}
    return row._asdict() | {"next_at": render.moment(row.next_at), "last": last}


def _print(rows: list[CronView], now_at: int) -> None:
    short = render.short_ids(row.last.job_id for row in rows if row.last is not None)
    lines: list[dict[str, Any]] = []
    for row in rows:
        last = row.last
        soon = render.NOTHING if row.next_at is None else f"in {render.duration(row.next_at - now_at)}"
        lines.append(
            {
                "task": render.text(row.task),
                "expression": render.text(row.expression),
                "zone": render.text(row.tz),
                "next run": render.text("paused", "yellow") if row.paused else render.text(soon),
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
