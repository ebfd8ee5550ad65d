"""``headway bulk``: change all jobs that fit a search."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from headway.cli import render
from headway.cli.help import command, family, flag, option
from headway.cli.jobs import check_lane
from headway.cli.operator import BulkEnd, Operator
from headway.cli.store_access import HERE, JsonFlag, TargetOptions, ask, change
from headway.core.errors import ConfigError
from headway.core.job import JobId
from headway.maintenance.bulk import CONFIRMED_FROM, Action


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class BulkOptions:
    """Which jobs a command changes, and how many the operator expects."""

    where: Annotated[str, option("Which jobs: a search such as 'state:queued task:reports.*'.", "SEARCH")]
    dry_run: Annotated[bool, flag("Only count the jobs and show some of them.", name="--dry-run")] = False
    expect: Annotated[
        int | None, option("How many jobs you expect. If more than 10 % above it fit, none is changed.", "N")
    ] = None
    json: JsonFlag = False
    place: TargetOptions = HERE


bulk = family(
    "bulk",
    "Cancel, retry or move all jobs that fit a search.\n\n"
    "A search consists of state: task: lane: tenant: worker: why: error: id: after: and before:, each with a value, "
    "and of words that must appear in the arguments. Quotes keep spaces together.",
    "headway bulk cancel --where 'state:queued task:reports.* before:1d' --dry-run",
    "headway bulk retry --where 'state:failed error:ConnectionError after:2h' --expect 40",
)


@command(bulk, "cancel --where SEARCH [OPTIONS]", "headway bulk cancel --where 'tenant:acme lane:low' --dry-run")
def cancel(*, options: BulkOptions) -> int:
    """Cancel all queued and running jobs that fit. Running jobs are asked to stop."""
    return _act("cancel", options)


@command(bulk, "retry --where SEARCH [OPTIONS]", "headway bulk retry --where 'state:dead_letter after:1d' --expect 12")
def retry(*, options: BulkOptions) -> int:
    """Queue all jobs again that fit and failed, were cancelled or are dead letters."""
    return _act("retry", options)


@command(bulk, "run-now --where SEARCH [OPTIONS]", "headway bulk run-now --where 'why:scheduled task:mail.send'")
def run_now(*, options: BulkOptions) -> int:
    """Let all delayed jobs that fit run now, also those that wait for their next attempt."""
    return _act("run_now", options)


@command(bulk, "change-lane LANE --where SEARCH [OPTIONS]", "headway bulk change-lane high --where 'tenant:acme'")
def change_lane(
    lane: Annotated[str, option("The lane to move jobs to.", name="LANE")], /, *, options: BulkOptions
) -> int:
    """Move all queued jobs that fit to a lane, behind the jobs that wait there."""
    return _act("change_lane", options, lane)


def _act(action: Action, options: BulkOptions, lane: str | None = None) -> int:
    """Count the jobs, let the operator confirm the number, and change them."""

    async def count(operator: Operator) -> tuple[int, list[JobId]]:
        if lane is not None:
            await check_lane(operator, lane)
        return await operator.count_bulk(action, options.where, lane)

    async def run(operator: Operator) -> BulkEnd:
        return await operator.run_bulk(action, options.where, lane, confirmed)

    found, examples = ask(options.place, count)
    if options.dry_run:
        if options.json:
            render.print_json({"count": found, "examples": examples})
        else:
            print(f"{render.plural(found, 'job')} would change")
            print("\n".join(render.clean(job_id) for job_id in examples))
        return 0
    confirmed = options.expect if options.expect is not None else _confirm(action, found)
    ended = change(options.place, run)
    if options.json:
        render.print_json(ended._asdict())
    else:
        print(f"{render.plural(ended.changed, 'job')} changed of {ended.visited:,}")
    if ended.error is not None:
        print(render.clean(f"{ended.status}: {ended.error}"), file=sys.stderr)
    return 0 if ended.status == "done" else 1


def _confirm(action: Action, found: int) -> int:
    """Return the number of jobs. If there are many, the operator must type it."""
    if found <= CONFIRMED_FROM:
        return found
    if not sys.stdin.isatty():
        raise ConfigError(f"{render.plural(found, 'job')} would change; add --expect {found} to do it")
    verb = action.replace("_", " ")
    print(f"{verb} {render.plural(found, 'job')}? Type the number to go on: ", end="", flush=True)
    if sys.stdin.readline().strip().replace(",", "") != str(found):
        raise ConfigError("nothing was changed")
    return found
