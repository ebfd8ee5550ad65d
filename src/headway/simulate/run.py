"""Runs a simulation: the calibration first, then every scenario with every seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from headway.simulate.calibration import Calibration, calibrate
from headway.simulate.job import SimulatedJob
from headway.simulate.outcome import Outcome
from headway.simulate.replay import replay
from headway.simulate.report import Scenario, SimulationInput, SimulationReport, build_report

# Called with the number of jobs replayed so far and the number of all.
ShowProgress = Callable[[int, int], None]


def simulate(
    given: SimulationInput,
    scenarios: Sequence[Scenario],
    jobs: Sequence[Sequence[SimulatedJob]],
    *,
    recorded: tuple[Sequence[SimulatedJob], Scenario] | None = None,
    progress: ShowProgress | None = None,
) -> SimulationReport:
    """Replay the jobs of each seed under each scenario, and compare all scenarios with the first one.

    ``recorded``: what really happened and the policy and workers of that time. It is replayed first, so that the
    report can say how far a replay is from the truth.
    """
    whole = sum(map(len, jobs)) * len(scenarios) + (len(recorded[0]) if recorded else 0)
    done = 0

    def run(what: Sequence[SimulatedJob], scenario: Scenario, seed: int) -> Outcome:
        nonlocal done
        before, report = done, progress

        def note(count: int) -> None:
            if report is not None:
                report(before + count, whole)

        outcome = replay(what, scenario.policy, scenario.capacity, seed=seed, progress=note)
        done += len(what)
        return outcome

    calibration: Calibration | None = None
    first: Outcome | None = None
    if recorded is not None:
        first = run(*recorded, seed=0)
        calibration = calibrate(recorded[0], first)
    outcomes: list[list[Outcome]] = []
    for number, scenario in enumerate(scenarios):
        found: list[Outcome] = []
        for seed, what in enumerate(jobs):
            same = recorded is not None and number == seed == 0 and _is_same(recorded, what, scenario)
            found.append(first if same and first is not None else run(what, scenario, seed))
        outcomes.append(found)
    if progress is not None:
        progress(whole, whole)
    return build_report(given, scenarios, jobs, outcomes, calibration)


def _is_same(
    recorded: tuple[Sequence[SimulatedJob], Scenario], what: Sequence[SimulatedJob], scenario: Scenario
) -> bool:
    return what is recorded[0] and replace(recorded[1], name=scenario.name, version=scenario.version) == scenario
