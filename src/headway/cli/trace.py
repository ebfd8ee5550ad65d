"""``headway trace``: write, look at and anonymise what a simulation replays."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated, Any

from headway.cli import render
from headway.cli.help import command, family, flag, option
from headway.cli.progress_bar import progress_bar
from headway.cli.simulation_input import read_span, record_jobs
from headway.cli.store_access import HERE, JsonFlag, TargetOptions, ask
from headway.core.errors import ConfigError
from headway.core.timestamps import write_moment
from headway.simulate.groups import quantile
from headway.simulate.job import SimulatedJob
from headway.simulate.text_report import length_of, length_text
from headway.simulate.trace import Trace, anonymised
from headway.simulate.trace_file import read_trace, write_trace

TraceFile = Annotated[Path, option("A trace: .csv, or JSON lines under another name.", name="FILE")]
KeepTenants = Annotated[bool, flag("Keep the names of tenants.", name="--keep-tenants")]
Tasks = Annotated[bool, flag("Hash the names of tasks, too.", name="--tasks")]
Force = Annotated[bool, flag("Replace the file if it exists.")]

trace = family(
    "trace",
    "Record, show or anonymise the jobs that `headway simulate` replays. A trace has no arguments and no results.",
    "headway trace record jobs.csv --recorded 7d",
    "headway trace show jobs.csv",
    "headway trace anonymise jobs.csv shared.csv",
)


@command(trace, "record FILE [OPTIONS]", "headway trace record jobs.csv", "headway trace record day.jsonl --anonymise")
def record(
    file: TraceFile,
    /,
    *,
    recorded: Annotated[str, option("The jobs of the last 24h, 90m, 7d …", "TIME")] = "24h",
    anonymise: Annotated[bool, flag("Hash the names of tenants.")] = False,
    force: Force = False,
    place: TargetOptions = HERE,
) -> None:
    """Write the jobs that have ended to a file, with the workers and the policy of now.

    The file has no arguments and no results. Values in limit counters come from
    arguments, so they are hashed.
    """
    _check_new(file, force=force)
    span_ms = read_span(recorded, "--recorded")
    made = ask(place, lambda operator: record_jobs(operator, span_ms), history=True)
    write_trace(anonymised(made, secrets.token_bytes(16), tenants=anonymise, names=False), file)
    left = sum(made.left_out.values())
    out = f", {render.plural(left, 'job')} left out" if left else ""
    print(f"{render.plural(len(made.jobs), 'job')} of {length_of(made.span_ms)} written to {file}{out}")


@command(trace, "show FILE [OPTIONS]", "headway trace show jobs.csv --json")
def show(file: TraceFile, /, *, json: JsonFlag = False) -> None:
    """Print what a trace holds: its jobs by lane and by task, its workers and its policy."""
    read = _read(file)
    if json:
        render.print_json(_values(read))
        return
    known = sum(job.waited_ms is not None for job in read.jobs)
    pairs: dict[str, object] = {
        "jobs": f"{len(read.jobs):,} in {length_of(read.span_ms)}",
        "begins": render.NOTHING if read.begin_at is None else write_moment(read.begin_at),
        "recorded waits": f"{known:,}",
        "workers": render.NOTHING if read.capacity is None else read.capacity.describe(),
        "policy": render.NOTHING if read.policy is None else f"version {read.policy_version or 0}",
    }
    if read.left_out:
        pairs["left out"] = ", ".join(f"{count:,} {why}" for why, count in read.left_out.items())
    if read.ignored:
        pairs["other columns"] = ", ".join(read.ignored)
    console = render.console()
    console.print(render.facts(pairs))
    for by in ("lane", "task"):
        numbers = ["jobs", "p50", "p90", "longest", "work"]
        table = render.table(by, *numbers, right=numbers)
        for key, jobs in _grouped(read, by):
            lengths = sorted(job.run_ms for job in jobs)
            cells = [quantile(lengths, 0.5), quantile(lengths, 0.9), lengths[-1], sum(lengths)]
            table.add_row(render.text(key), f"{len(jobs):,}", *(length_text(cell / 1_000) for cell in cells))
        print()
        console.print(table)


@command(trace, "anonymise FILE NEW [OPTIONS]", "headway trace anonymise jobs.csv shared.csv --tasks")
def anonymise(
    file: TraceFile,
    new: Annotated[Path, option("The file to write.", name="NEW")],
    /,
    *,
    tasks: Tasks = False,
    keep_tenants: KeepTenants = False,
    force: Force = False,
) -> None:
    """Write a trace with hashed names: equal names stay equal, so a simulation gives the same waits.

    The salt of the hash is random and not kept, so no name can be guessed.
    """
    _check_new(new, force=force)
    read = _read(file)
    write_trace(anonymised(read, secrets.token_bytes(16), tenants=not keep_tenants, tasks=tasks), new)
    print(f"{render.plural(len(read.jobs), 'job')} written to {new}")


def _read(file: Path) -> Trace:
    with progress_bar("lines") as progress:
        return read_trace(file, progress)


def _check_new(file: Path, *, force: bool) -> None:
    if file.exists() and not force:
        raise ConfigError(f"{file} exists; give another name, or --force to replace it")


def _grouped(read: Trace, by: str) -> list[tuple[str, list[SimulatedJob]]]:
    groups: dict[str, list[SimulatedJob]] = {}
    for job in read.jobs:
        groups.setdefault((job.lane or "the default lane") if by == "lane" else job.task, []).append(job)
    return sorted(groups.items(), key=lambda pair: (-len(pair[1]), pair[0]))


def _values(read: Trace) -> dict[str, Any]:
    return {
        "jobs": len(read.jobs),
        "seconds": read.span_ms / 1_000,
        "begins_at": write_moment(read.begin_at),
        "recorded_waits": sum(job.waited_ms is not None for job in read.jobs),
        "slots": None if read.capacity is None else read.capacity.slots,
        "workers": len(read.workers),
        "policy_version": read.policy_version,
        "left_out": dict(read.left_out),
        **{
            f"{by}s": {
                key: {"jobs": len(jobs), "seconds": sum(job.run_ms for job in jobs) / 1_000}
                for key, jobs in _grouped(read, by)
            }
            for by in ("lane", "task")
        },
    }
