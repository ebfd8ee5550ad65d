"""``headway crons``: jobs that run by the clock."""

from __future__ import annotations

from typing import Annotated, Any

from headway.cli import render
from headway.cli.help import command, family, option
from headway.cli.operator import Operator
from headway.cli.store_access import HERE, JsonFlag, TargetOptions, ask, change
from headway.core.errors import ConfigError
from headway.core.timestamps import write_moment
from headway.policy_store.cron_views import CronView

CronName = Annotated[str, option("The task of the cron.", name="TASK")]

crons = family(
    "crons",
    "List cron jobs with their last and next run; run, pause and resume them.",
    "headway crons list --json",
    "headway crons run reports.nightly",
    "headway crons pause reports.nightly",
)


@command(crons, "list [OPTIONS]", "headway crons list --json")
def list_all(*, json: JsonFlag = False, place: TargetOptions = HERE) -> int:
    """List crons by their next run, with the job of their last one.

    A worker writes its crons to the store when it starts.
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
    return 0


@command(crons, "run TASK [OPTIONS]", "headway crons run reports.nightly")
def run(task: CronName, /, *, place: TargetOptions = HERE) -> int:
    """Submit the job of a cron now, in addition to its schedule and even if the cron is paused."""
    kept = change(place, lambda operator: operator.run_cron(task))
    if kept is None:
        raise _absent(task)
    print(f"{kept.job_id}  {'another job of this cron is not done yet' if kept.deduplicated else 'queued'}")
    return 1 if kept.deduplicated else 0


@command(crons, "pause TASK [OPTIONS]", "headway crons pause reports.nightly")
def pause(task: CronName, /, *, place: TargetOptions = HERE) -> int:
    """Stop a cron from submitting jobs until it is resumed.

    Jobs that it has submitted go on, and the task can still be submitted. Runs that
    pass meanwhile are not made up for.
    """
    if not change(place, lambda operator: operator.pause_cron(task)):
        raise _absent(task)
    print(render.clean(f"{task} is paused"))
    return 0


@command(crons, "resume TASK [OPTIONS]", "headway crons resume reports.nightly")
def resume(task: CronName, /, *, place: TargetOptions = HERE) -> int:
    """Let a paused cron submit jobs again, from its next run on."""
    if not change(place, lambda operator: operator.resume_cron(task)):
        raise _absent(task)
    print(render.clean(f"{task} runs again by its schedule"))
    return 0


def _absent(task: str) -> ConfigError:
    return ConfigError(f"no cron {task!r}; `headway crons list` shows them")


def _values(row: CronView) -> dict[str, Any]:
    last: dict[str, Any] | None = None
    if row.last is not None:
        job_id, state, submitted_at = row.last
        last = {"id": job_id, "status": state.value, "submitted_at": write_moment(submitted_at)}
    values = row._asdict() | {"next_at": write_moment(row.next_at), "last": last}
    return {name: value for name, value in values.items() if name not in ("upcoming", "recent")}


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
