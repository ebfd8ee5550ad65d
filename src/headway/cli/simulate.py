"""``headway simulate``: what would change, and for whom."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from cyclopts.validators import Number

from headway.cli import render
from headway.cli.help import option
from headway.cli.operator import Operator
from headway.cli.simulation_input import current_policy, policy_versions, read_span, record_jobs
from headway.cli.store_access import HERE, JsonFlag, TargetOptions, ask
from headway.core.errors import ConfigError
from headway.core.policy.document import BUILT_IN, Policy
from headway.policy_store.versions import PolicyVersion, load_policy
from headway.simulate.capacity import Capacity, all_needs, parse_steps, same_workers, stepped_workers
from headway.simulate.condition import failed_conditions, parse_condition
from headway.simulate.html_report import html_report
from headway.simulate.json_report import json_report
from headway.simulate.report import Scenario, SimulationInput, SimulationReport
from headway.simulate.run import simulate as run_simulation
from headway.simulate.text_report import text_report
from headway.simulate.trace import Trace, check_lanes, scaled
from headway.simulate.trace_file import read_trace

if TYPE_CHECKING:
    from headway.simulate.run import Progress

FAILED_CHECK = 4  # The exit code if a condition of --fail-if holds.
SLOTS_DEFAULT_WORKERS = 1

By = Literal["lane", "tenant", "task", "duration"]
CURRENT, BUILT_IN_NAME = "current", "built-in"


class _Given(NamedTuple):
    """What is replayed, and the versions of the policy that were read with it."""

    kind: str
    trace: Trace
    current: tuple[Policy, int] | None
    versions: list[PolicyVersion]


def simulate(
    *,
    recorded: Annotated[str | None, option("Replay the jobs of the last 24h, 90m, 7d …", "TIME")] = None,
    trace: Annotated[Path | None, option("Replay the jobs of a trace: CSV or JSON lines.", "FILE")] = None,
    policy: Annotated[list[Path] | None, option("Replay under this policy file; may be repeated.", "FILE")] = None,
    version: Annotated[
        list[int] | None, option("Replay under this version of the policy; may be repeated.", "N")
    ] = None,
    against: Annotated[
        str | None, option("What to compare with: current, built-in, a version or a policy file.", "POLICY")
    ] = None,
    slots: Annotated[int | None, option("Slots of each worker; else as recorded.", validator=Number(gte=1))] = None,
    workers: Annotated[int | None, option("How many workers; else 1.", validator=Number(gte=1))] = None,
    capacity: Annotated[str | None, option("Slots of all workers over time: 0h:8,2h:16.", "STEPS")] = None,
    scale: Annotated[float, option("This many times the arrivals.", validator=Number(gt=0, lte=100))] = 1.0,
    seeds: Annotated[int, option("Replay with this many seeds.", validator=Number(gte=1, lte=100))] = 1,
    by: Annotated[list[By] | None, option("A table by lane, tenant, task or duration; may be repeated.")] = None,
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
    given = _read(recorded, trace, version or [], against, place)
    new_capacity = _capacity(slots, workers, capacity, given.trace)
    base, others = _scenarios(given, policy or [], against, new_capacity)
    report = _run(given, [base, *others], scale, seeds)
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
    recorded: str | None, trace: Path | None, versions: list[int], against: str | None, place: TargetOptions
) -> _Given:
    sources = [name for name, value in (("--recorded", recorded), ("--trace", trace)) if value is not None]
    if len(sources) > 1:
        raise ConfigError(f"give one of --recorded and --trace, got {' and '.join(sources)}")
    numbers = [*versions, *([int(against)] if against is not None and against.isdecimal() else [])]
    if trace is not None:
        read = read_trace(trace)
        asks = bool(numbers) or against == CURRENT
        current, found = ask(place, lambda operator: _policies(operator, numbers)) if asks else (None, [])
        return _Given("trace", read, current, found)
    span_ms = read_span(recorded or "24h", "--recorded")

    async def read_store(operator: Operator) -> _Given:
        return _Given("recorded", await record_jobs(operator, span_ms), *await _policies(operator, numbers))

    return ask(place, read_store, history=True)


async def _policies(operator: Operator, numbers: list[int]) -> tuple[tuple[Policy, int], list[PolicyVersion]]:
    return await current_policy(operator), await policy_versions(operator, numbers)


def _capacity(slots: int | None, workers: int | None, steps: str | None, trace: Trace) -> Capacity | None:
    """Return the workers that the command line asks for, or None for those of the recording."""
    if steps is not None:
        if slots is not None:
            raise ConfigError("give --slots or --capacity, not both")
        made = stepped_workers(parse_steps(steps), workers or SLOTS_DEFAULT_WORKERS, all_needs(trace.jobs))
    elif slots is not None:
        made = same_workers(slots, workers or SLOTS_DEFAULT_WORKERS, all_needs(trace.jobs))
    elif workers is not None:
        raise ConfigError("--workers needs --slots, the slots of each worker")
    else:
        return None
    return Capacity(made.workers, made.pauses, trace.declared)


def _scenarios(
    given: _Given, files: list[Path], against: str | None, new_capacity: Capacity | None
) -> tuple[Scenario, list[Scenario]]:
    """Return what to compare with, and what to compare."""
    trace = given.trace
    as_recorded = trace.capacity
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
    return base, wanted


def _named(name: str, policy: Policy, capacity: Capacity) -> Scenario:
    return Scenario(name, policy, capacity)


def _in_force(policy: Policy, version: int | None, capacity: Capacity) -> Scenario:
    name = f"policy {version} (in force)" if version else "the built-in policy (in force)"
    return Scenario(name, policy, capacity, version)


def _run(given: _Given, scenarios: list[Scenario], scale: float, seeds: int) -> SimulationReport:
    trace = given.trace
    jobs = scaled(trace.jobs, scale)
    described = SimulationInput(
        given.kind,
        trace.source,
        len(jobs),
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
        in_force = _in_force(trace.policy or base.policy, trace.policy_version, trace.capacity or base.capacity)
        recorded = trace.jobs, in_force
    with _progress_bar() as progress:
        return run_simulation(described, scenarios, [jobs] * seeds, recorded=recorded, progress=progress)


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as problem:
        raise ConfigError(f"the page {file} cannot be written: {problem.strerror or problem}") from problem


def _progress_bar() -> nullcontext[Progress | None]:
    """Return what draws a progress bar, if a person watches."""
    if not sys.stderr.isatty():
        return nullcontext(None)

    def draw(done: int, whole: int) -> None:
        full = 30 * done // max(1, whole)
        end = "\r\x1b[K" if done >= whole else ""
        bar = f"\r{'━' * full}{'╌' * (30 - full)} {done:,} of {whole:,} jobs"
        print(end or bar, end="", file=sys.stderr, flush=True)

    return nullcontext(draw)
