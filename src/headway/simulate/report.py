"""The report of a simulation: what changes for whom, and how far it can be believed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headway.core.policy.document import Policy
from headway.simulate.calibration import Calibration
from headway.simulate.capacity import Capacity
from headway.simulate.groups import BY, METRICS, GroupFigures, figures_of, members_by
from headway.simulate.job import SimulatedJob
from headway.simulate.noise import Blocks, Draws, busiest, is_noise, spread
from headway.simulate.outcome import LanePromise, Outcome

GROUPS_MAX = 50  # Groups of one kind in a report: the busiest ones.
NAMED_MAX = 3  # Groups that a report names as gaining or losing most.
NAMED_JOBS = 20  # A group with fewer jobs is not named: its p90 is one job.


@dataclass(frozen=True, slots=True)
class Scenario:
    """A policy and a capacity to replay under, with a name for people."""

    name: str
    policy: Policy
    capacity: Capacity
    version: int | None = None


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """The result of one scenario: totals over all replays, and figures by group."""

    scenario: Scenario
    groups: Mapping[tuple[str, str], GroupFigures]
    totals: Counter[str]
    busy: float  # The part of all slots that was busy.
    reserve_idle: float  # The part of the time in which a reserved slot was idle while another lane waited.
    promises: Sequence[LanePromise]
    outcomes: Sequence[Outcome]

    def by(self, by: str) -> list[GroupFigures]:
        """Return the groups of one kind. Lanes come in the order of service, others by their number of jobs."""
        found = [figures for (kind, _), figures in self.groups.items() if kind == by]
        if by == "lane":
            lanes = self.scenario.policy.lanes
            return sorted(found, key=lambda one: (lanes[one.key].level if one.key in lanes else 10**6, one.key))
        return sorted(found, key=lambda one: (-one.jobs, one.key))


@dataclass(frozen=True, slots=True)
class FigureChange:
    """One figure of a group before and after, in seconds. ``noise``: between which factors nine of ten draws lie."""

    by: str
    key: str
    metric: str
    before: float
    after: float
    noise: tuple[float, float]
    same: bool  # The change is within its noise.

    @property
    def ratio(self) -> float | None:
        return self.after / self.before if self.before else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """A scenario against the first one."""

    result: ScenarioResult
    changes: Mapping[tuple[str, str, str], FigureChange]
    gains: Sequence[FigureChange]
    losses: Sequence[FigureChange]


@dataclass(frozen=True, slots=True)
class SimulationInput:
    """The replayed jobs, as described to people and in JSON."""

    kind: str  # recorded | trace | model | now
    source: str
    jobs: int
    span_ms: int
    seeds: int
    scale: float = 1.0
    left_out: Mapping[str, int] = field(default_factory=dict)
    ignored: Sequence[str] = ()
    begin_at: int | None = None


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """Everything that a simulation says. The first result is what the others are compared with."""

    input: SimulationInput
    calibration: Calibration | None
    results: Sequence[ScenarioResult]
    comparisons: Sequence[Comparison]
    jobs: Sequence[Sequence[SimulatedJob]]

    @property
    def base(self) -> ScenarioResult:
        return self.results[0]


def build_report(
    given: SimulationInput,
    scenarios: Sequence[Scenario],
    jobs: Sequence[Sequence[SimulatedJob]],
    outcomes: Sequence[Sequence[Outcome]],
    calibration: Calibration | None = None,
) -> SimulationReport:
    """Build the report from the outcomes of each scenario, one for each seed.

    Pass ``calibration`` if the first scenario does not replay what was recorded.
    """
    blocks = Blocks(jobs)
    results = [_result(scenario, jobs, found) for scenario, found in zip(scenarios, outcomes, strict=True)]
    draws = [_draws(blocks, jobs, result) for result in results] if len(results) > 1 else []
    comparisons = [
        _compare(results[0], draws[0], result, own) for result, own in zip(results[1:], draws[1:], strict=True)
    ]
    return SimulationReport(given, calibration, results, comparisons, jobs)


def _result(scenario: Scenario, jobs: Sequence[Sequence[SimulatedJob]], outcomes: Sequence[Outcome]) -> ScenarioResult:
    busy_ms = sum(outcome.busy_ms for outcome in outcomes)
    groups: dict[tuple[str, str], GroupFigures] = {}
    for by in BY:
        members = members_by(by, jobs, outcomes)
        for key in busiest(members, GROUPS_MAX):
            groups[by, key] = figures_of(by, key, members[key], outcomes, busy_ms)
    totals: Counter[str] = Counter()
    promises: dict[str, LanePromise] = {}
    for outcome in outcomes:
        totals.update(outcome.totals)
        for promise in outcome.promises:
            known = promises.setdefault(promise.lane, LanePromise(promise.lane, promise.slots, promise.after_ms))
            known.jobs += promise.jobs
            known.late_ms = max(known.late_ms, promise.late_ms)
    slot_ms, span_ms = sum(outcome.slot_ms for outcome in outcomes), sum(outcome.span_ms for outcome in outcomes)
    idle_ms = sum(outcome.reserve_idle_ms for outcome in outcomes)
    return ScenarioResult(
        scenario,
        groups,
        totals,
        busy_ms / slot_ms if slot_ms else 0.0,
        idle_ms / span_ms if span_ms else 0.0,
        list(promises.values()),
        outcomes,
    )


def _draws(
    blocks: Blocks, jobs: Sequence[Sequence[SimulatedJob]], result: ScenarioResult
) -> dict[tuple[str, str], Draws]:
    found: dict[tuple[str, str], Draws] = {}
    for by in BY:
        members = members_by(by, jobs, result.outcomes)
        for key in members:
            if (by, key) in result.groups:
                found[by, key] = blocks.draw(members[key], result.outcomes)
    return found


def _compare(
    base: ScenarioResult,
    base_draws: Mapping[tuple[str, str], Draws],
    result: ScenarioResult,
    draws: Mapping[tuple[str, str], Draws],
) -> Comparison:
    changes: dict[tuple[str, str, str], FigureChange] = {}
    for (by, key), after in result.groups.items():
        before = base.groups.get((by, key))
        if before is None:
            continue
        for metric in METRICS:
            bounds = spread(base_draws[by, key], draws[by, key], metric)
            old, new = getattr(before, metric), getattr(after, metric)
            changes[by, key, metric] = FigureChange(by, key, metric, old, new, bounds, is_noise(old, new, bounds))
    gains, losses = _named(result, changes)
    return Comparison(result, changes, gains, losses)


def _named(
    result: ScenarioResult, changes: Mapping[tuple[str, str, str], FigureChange]
) -> tuple[list[FigureChange], list[FigureChange]]:  # fmt: skip
    """Return the tasks and tenants whose p90 gains and loses most."""
    real = [
        change
        for (by, key, metric), change in changes.items()
        if metric == "p90"
        and by in ("task", "tenant")
        and not change.same
        and result.groups[by, key].jobs >= NAMED_JOBS
        and result.groups[by, key].key != "none"
    ]
    gains = sorted((one for one in real if one.after < one.before), key=_factor)[:NAMED_MAX]
    losses = sorted((one for one in real if one.after > one.before), key=_factor, reverse=True)[:NAMED_MAX]
    return gains, losses


def _factor(change: FigureChange) -> tuple[float, str]:
    return (change.after + 0.1) / (change.before + 0.1), change.key
