"""``headway simulate``: what would change, and for whom."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from cyclopts.validators import Number

from headway.cli import render
from headway.cli.help import option
from headway.cli.operator import Operator
from headway.cli.progress_bar import progress_bar
from headway.cli.simulation_input import current_policy, policy_versions, read_now, read_span, record_jobs
from headway.cli.store_access import HERE, JsonFlag, TargetOptions, ask
from headway.core.errors import ConfigError
from headway.core.policy.document import BUILT_IN, Policy
from headway.policy_store.versions import PolicyVersion, load_policy
from headway.simulate.capacity import Capacity, all_needs, check_pauses, parse_steps, same_workers, stepped_workers
from headway.simulate.capacity_file import read_capacity
from headway.simulate.condition import failed_conditions, parse_condition
from headway.simulate.html_report import html_report
from headway.simulate.job import SimulatedJob
from headway.simulate.json_report import json_report
from headway.simulate.live_queue import LiveQueue, jobs_from_now
from headway.simulate.report import Scenario, SimulationInput, SimulationReport
from headway.simulate.run import simulate as run_simulation
from headway.simulate.text_report import text_report
from headway.simulate.trace import Trace, check_lanes, scaled
from headway.simulate.trace_file import read_trace
from headway.simulate.workload_model import WorkloadModel

FAILED_CHECK = 4  # The exit code if a condition of --fail-if holds.
SLOTS_DEFAULT_WORKERS = 1
SEEDS = 5  # Draws of a model or of what comes, by default.

GroupBy = Literal["lane", "tenant", "task", "duration"]
CURRENT, BUILT_IN_NAME = "current", "built-in"


class _ReplayInput(NamedTuple):
    """The jobs to replay, and the policies read with them. ``draw`` makes the jobs of a seed for a random model."""

    kind: str
    trace: Trace
    current: tuple[Policy, int] | None = None
    versions: Sequence[PolicyVersion] = ()
    capacity: Capacity | None = None
    draw: Callable[[int], list[SimulatedJob]] | None = None


def simulate(
    *,
    recorded: Annotated[str | None, option("Replay the jobs of the last 24h, 90m, 7d …", "TIME")] = None,
    trace: Annotated[Path | None, option("Replay the jobs of a trace: CSV or JSON lines.", "FILE")] = None,
    model: Annotated[Path | None, option("Replay jobs that a model describes: TOML.", "FILE")] = None,
    now: Annotated[str | None, option("Simulate the next 30m, 2h … from the present queue.", "TIME")] = None,
    policy: Annotated[list[Path] | None, option("Replay under this policy file; may be repeated.", "FILE")] = None,
    version: Annotated[
        list[int] | None, option("Replay under this version of the policy; may be repeated.", "N")
    ] = None,
    against: Annotated[
        str | None, option("What to compare with: current, built-in, a version or a policy file.", "POLICY")
    ] = None,
    slots: Annotated[
        int | None, option("Slots of each worker; else as recorded.", "N", validator=Number(gte=1))
    ] = None,
    workers: Annotated[int | None, option("How many workers; else 1.", "N", validator=Number(gte=1))] = None,
    capacity: Annotated[str | None, option("Slots over time, 0h:8,2h:16, or a TOML file.", "STEPS")] = None,
    scale: Annotated[
        float, option("Multiply the arrivals by this number.", "N", validator=Number(gt=0, lte=100))
    ] = 1.0,
    seeds: Annotated[
        int | None,
        option(
            "Replay with this many seeds; else 5 with --model and --now, 1 otherwise.",
            "N",
            validator=Number(gte=1, lte=100),
        ),
    ] = None,
    by: Annotated[list[GroupBy] | None, option("A table by lane, tenant, task or duration; may be repeated.")] = None,
    fail_if: Annotated[
        list[str] | None, option("Exit with 4 if this holds: 'low.p99 > 600'; may be repeated.", "CONDITION")
    ] = None,
    json: JsonFlag = False,
    html: Annotated[Path | None, option("Also write a page with drawings to this file.", "FILE")] = None,
    place: TargetOptions = HERE,
) -> int:
    """Replay jobs under other policies or workers, and print what changes for whom.

    The real policy decides, on a virtual clock. The report first says how far
    a replay of the policy in force is from what really happened. A change that
    is within its noise is shown as =.

    Exits with 4 if a condition of --fail-if holds.
    """
    conditions = [parse_condition(text) for text in fail_if or ()]
    began = time.monotonic()
    given = _read({"--recorded": recorded, "--trace": trace, "--model": model, "--now": now}, version, against, place)
    new_capacity = _capacity(slots, workers, capacity, given)
    base, others = _scenarios(given, policy or [], against, new_capacity)
    report = _run(given, [base, *others], scale, seeds or (1 if given.draw is None else SEEDS))
    if html is not None:
        _write(html, html_report(report))
    if json:
        render.print_json(json_report(report))
    else:
        print(render.clean(text_report(report, by or ("lane",), seconds=time.monotonic() - began), lines=True))
    failed = failed_conditions(report, conditions)
    for line in failed:
        print(render.clean(f"failed: {line}"), file=sys.stderr)
    return FAILED_CHECK if failed else 0


def _read(
    sources: dict[str, str | Path | None], versions: list[int] | None, against: str | None, place: TargetOptions
) -> _ReplayInput:
    named = [name for name, value in sources.items() if value is not None]
    if len(named) > 1:
        raise ConfigError(f"give one of {', '.join(sources)}, got {' and '.join(named)}")
    numbers = [*(versions or ()), *([int(against)] if against is not None and against.isdecimal() else [])]
    kind = named[0] if named else "--recorded"
    value = sources[kind] or "24h"
    if isinstance(value, Path):
        asks = bool(numbers) or against == CURRENT
        current, found = ask(place, lambda operator: _policies(operator, numbers)) if asks else (None, [])
        if kind == "--trace":
            with progress_bar("lines") as progress:
                read = read_trace(value, progress)
            return _ReplayInput("trace", read, current, found, read.capacity)
        made = WorkloadModel(value)
        return _ReplayInput("model", Trace(made.jobs(0), made.source), current, found, None, made.jobs)
    span_ms = read_span(value, kind)

    async def read_store(operator: Operator) -> _ReplayInput:
        policies = await _policies(operator, numbers)
        if kind == "--recorded":
            read = await record_jobs(operator, span_ms)
            return _ReplayInput("recorded", read, *policies, read.capacity)
        return _from_now(await read_now(operator), span_ms, *policies)

    return ask(place, read_store, history=kind == "--recorded")


def _from_now(
    queue: LiveQueue, span_ms: int, current: tuple[Policy, int], versions: list[PolicyVersion]
) -> _ReplayInput:  # fmt: skip
    jobs = jobs_from_now(queue, span_ms, 0)
    if not any(job.counted for job in jobs):
        raise ConfigError("no job waits, and nothing was learned of jobs to come; run some jobs first")
    trace = Trace(
        jobs, "the store", queue.now_at, policy=queue.policy, policy_version=current[1], left_out=queue.left_out
    )
    return _ReplayInput(
        "now", trace, current, versions, queue.capacity, lambda seed: jobs_from_now(queue, span_ms, seed)
    )


async def _policies(operator: Operator, numbers: list[int]) -> tuple[tuple[Policy, int], list[PolicyVersion]]:
    return await current_policy(operator), await policy_versions(operator, numbers)


def _capacity(slots: int | None, workers: int | None, steps: str | None, given: _ReplayInput) -> Capacity | None:
    """Return the workers that the command line asks for, or None for those of the recording."""
    needs = all_needs(given.trace.jobs)
    if steps is not None:
        if slots is not None:
            raise ConfigError("give --slots or --capacity, not both")
        if (":" in steps or steps.isdigit()) and not Path(steps).exists():
            made = stepped_workers(parse_steps(steps), workers or SLOTS_DEFAULT_WORKERS, needs)
        else:
            made = read_capacity(Path(steps))
    elif slots is not None:
        made = same_workers(slots, workers or SLOTS_DEFAULT_WORKERS, needs)
    elif workers is not None:
        raise ConfigError("--workers needs --slots, the slots of each worker")
    else:
        return None
    as_recorded = given.capacity or Capacity(())
    return Capacity(made.workers, made.pauses or as_recorded.pauses, as_recorded.declared or given.trace.declared)


def _scenarios(
    given: _ReplayInput, files: list[Path], against: str | None, new_capacity: Capacity | None
) -> tuple[Scenario, list[Scenario]]:
    """Return what to compare with, and what to compare."""
    trace = given.trace
    as_recorded = given.capacity
    capacity = new_capacity or as_recorded
    if capacity is None:
        raise ConfigError(f"{trace.source} does not say which workers there were; give --slots, or --capacity")
    read = {one.version: one for one in given.versions}
    wanted = [_named(str(file), load_policy(file), capacity) for file in files]
    wanted += [
        Scenario(f"policy {one.version}", one.policy, capacity, one.version)
        for one in given.versions
        if against != str(one.version)
    ]
    base_capacity = as_recorded or capacity
    if against is None or against == CURRENT:
        if against == CURRENT and given.current is not None:
            base = _in_force(*given.current, base_capacity)
        elif trace.policy is not None:
            base = _in_force(trace.policy, trace.policy_version, base_capacity)
        elif len(wanted) > 1 and against is None:
            base, wanted = wanted[0], wanted[1:]
        else:
            base = Scenario("the built-in policy", BUILT_IN, base_capacity)
    elif against == BUILT_IN_NAME:
        base = Scenario("the built-in policy", BUILT_IN, base_capacity)
    elif against.isdecimal():
        base = Scenario(f"policy {against}", read[int(against)].policy, base_capacity, int(against))
    else:
        base = _named(against, load_policy(Path(against)), base_capacity)
    if not wanted and new_capacity is not None and as_recorded is not None:
        wanted = [Scenario(f"the same on {new_capacity.describe()}", base.policy, new_capacity)]
    for scenario in (base, *wanted):
        check_lanes(trace, scenario.policy, scenario.name)
        check_pauses(scenario.capacity, scenario.policy, scenario.name)
    return base, wanted


def _named(name: str, policy: Policy, capacity: Capacity) -> Scenario:
    return Scenario(name, policy, capacity)


def _in_force(policy: Policy, version: int | None, capacity: Capacity) -> Scenario:
    name = f"policy {version} (in force)" if version else "the built-in policy (in force)"
    return Scenario(name, policy, capacity, version)


def _run(given: _ReplayInput, scenarios: list[Scenario], scale: float, seeds: int) -> SimulationReport:
    trace = given.trace
    drawn = [trace.jobs] * seeds if given.draw is None else [given.draw(seed) for seed in range(seeds)]
    jobs = [scaled(one, scale) for one in drawn]
    described = SimulationInput(
        given.kind,
        trace.source,
        sum(map(len, jobs)) // seeds,
        trace.span_ms,
        seeds,
        scale,
        dict(trace.left_out),
        trace.ignored,
        trace.begin_at,
    )
    recorded = None
    if any(job.waited_ms is not None for job in trace.jobs):
        base = scenarios[0]
        in_force = _in_force(trace.policy or base.policy, trace.policy_version, given.capacity or base.capacity)
        recorded = trace.jobs, in_force
    with progress_bar("jobs") as progress:
        return run_simulation(described, scenarios, jobs, recorded=recorded, progress=progress)


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as problem:
        raise ConfigError(f"the page {file} cannot be written: {problem.strerror or problem}") from problem
