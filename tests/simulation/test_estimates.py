"""Estimates hold as often as they say, on the workload on which waits are measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from headway.core.policy.document import BUILT_IN
from tests.simulation.estimate_scores import ScoredEstimate, accuracy, accuracy_table, score_estimates
from tests.simulation.runs import Setting
from tests.simulation.workload import FLOODER, LANES

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("estimates"),
]

Settings = tuple[Setting, ...]


class Runs:
    """The estimates of all runs so far. Each run is made once."""

    def __init__(self) -> None:
        self._done: dict[Setting, tuple[list[ScoredEstimate], int]] = {}

    def get(self, settings: Settings) -> tuple[list[ScoredEstimate], int]:
        for setting in settings:
            if setting not in self._done:
                self._done[setting] = score_estimates(BUILT_IN, setting.works, setting.seed)
        runs = [self._done[setting] for setting in settings]
        return [one for estimates, _ in runs for one in estimates], sum(unknown for _, unknown in runs)

    def tables(self) -> Iterator[str]:
        for setting, (estimates, _) in self._done.items():
            yield f"\nEstimates, {setting}\n"
            yield accuracy_table(estimates)


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    runs = Runs()
    yield runs
    print(*runs.tables(), sep="\n")


def quick(*settings: Setting) -> ParameterSet:
    return pytest.param(settings, id="quick")


def proof(*settings: Setting) -> ParameterSet:
    marks = [pytest.mark.proof, pytest.mark.timeout(0)]
    return pytest.param(settings, id=f"{settings[0]} to {settings[-1].seed}", marks=marks)


# No constant was chosen by runs of these. A lane has few bursts in a run, so that three runs say too little.
CALM_SEEDS, FLOOD_SEEDS = range(41, 47), range(41, 53)
CALM = [quick(Setting(4, 41)), proof(*(Setting(12, seed) for seed in CALM_SEEDS))]


@pytest.mark.parametrize("settings", CALM)
def test_half_of_all_jobs_start_within_p50_and_nine_tenths_within_p90(runs: Runs, settings: Settings) -> None:
    # R3.37, R3.38
    found = accuracy(runs.get(settings)[0])
    assert found.scored > 1_000
    assert 0.45 <= found.within_p50 <= 0.55, found
    assert 0.85 <= found.within_p90 <= 0.95, found


@pytest.mark.parametrize("settings", CALM)
def test_long_waits_are_foreseen_to_within_a_fifth(runs: Runs, settings: Settings) -> None:
    # R3.37
    found = accuracy(runs.get(settings)[0])
    assert found.long > 500
    assert found.error <= 0.20, found


@pytest.mark.parametrize("settings", CALM)
def test_hardly_anything_is_unknown_once_jobs_have_run(runs: Runs, settings: Settings) -> None:
    estimates, unknown = runs.get(settings)
    assert unknown <= 0.1 * len(estimates)


LONG_CALM = [proof(*(Setting(12, seed) for seed in CALM_SEEDS))]
FLOOD = [proof(*(Setting(4, seed, flood=True) for seed in FLOOD_SEEDS))]


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("settings", LONG_CALM)
def test_p50_and_p90_hold_in_each_lane(runs: Runs, settings: Settings, lane: str) -> None:
    # R3.37, R3.38
    found = accuracy(runs.get(settings)[0], lambda work: work.lane == lane)
    assert found.scored > 1_000
    assert 0.45 <= found.within_p50 <= 0.55, found
    assert 0.85 <= found.within_p90 <= 0.95, found


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("settings", FLOOD)
def test_under_a_flood_too_p50_and_p90_hold_in_each_lane(runs: Runs, settings: Settings, lane: str) -> None:
    found = accuracy(runs.get(settings)[0], lambda work: work.lane == lane and work.tenant != FLOODER)
    assert found.scored > 400
    assert 0.45 <= found.within_p50 <= 0.55, found
    assert 0.85 <= found.within_p90 <= (0.98 if lane == "low" else 0.95), found  # docs/explain/estimates.md
    assert found.error <= 0.20, found


@pytest.mark.parametrize("settings", FLOOD)
def test_a_tenant_that_floods_a_lane_gets_estimates_that_hold_nine_times_in_ten(runs: Runs, settings: Settings) -> None:
    # p50 is too short: the first storm of all comes twelve minutes later, and nothing has shown it before.
    found = accuracy(runs.get(settings)[0], lambda work: work.tenant == FLOODER)
    assert found.scored > 500
    assert 0.85 <= found.within_p90 <= 0.95, found
    assert found.error <= 0.30, found
