"""How long jobs wait under the built-in policy, beside six other ways to choose who runs next.

All get the same jobs and eight slots. With ``-s`` the tables of the waits are shown at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.simulation.disciplines import StrictPriority
from tests.simulation.runs import HEADWAY, OTHERS, UNRESERVED, Runs, Setting
from tests.simulation.waits import p99
from tests.simulation.workload import FLOODER, HOUR, SLOTS

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("simulation"),  # Together, so that nothing is run twice.
]

SMALL_TENANTS = "medium, small tenants"
BULK_TENANTS = "medium, bulk tenants"


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    runs = Runs()
    yield runs
    print(*runs.tables(), sep="\n")


def quick(setting: Setting) -> ParameterSet:
    return pytest.param(setting, id=f"{setting}, quick")


def proof(setting: Setting) -> ParameterSet:
    return pytest.param(setting, id=str(setting), marks=[pytest.mark.proof, pytest.mark.timeout(0)])


LONG = [proof(Setting(12, seed)) for seed in (1, 2, 3)]
CALM = [quick(Setting(4, 1)), *LONG]
FLOODED = [quick(Setting(4, 1, flood=True)), *(proof(Setting(4, seed, flood=True)) for seed in (2, 3))]


def test_the_workload_keeps_the_slots_busy_for_four_fifths_of_the_time() -> None:
    works = Setting(4, 1).works
    load = sum(work.seconds for work in works) / (4 * HOUR * SLOTS)
    assert (len(works), round(load, 3)) == (22_734, 0.818)
    flood = [work for work in Setting(4, 1, flood=True).works if work.tenant == FLOODER]
    assert (len(flood), round(sum(work.seconds for work in flood) / HOUR, 1)) == (1_500, 8.2)


@pytest.mark.parametrize("setting", [*CALM, *FLOODED])
def test_high_waits_hardly_longer_than_under_strict_priority(runs: Runs, setting: Setting) -> None:
    ours = p99(runs.get(HEADWAY, setting)["high"])
    assert ours <= 1.2 * p99(runs.get(StrictPriority.name, setting)["high"])


@pytest.mark.parametrize("setting", [*CALM, *FLOODED])
def test_small_tenants_wait_hardly_longer_than_where_they_wait_least(runs: Runs, setting: Setting) -> None:
    # R4.1, R4.39
    ours = p99(runs.get(HEADWAY, setting)[SMALL_TENANTS])
    assert ours <= 1.5 * min(p99(runs.get(name, setting)[SMALL_TENANTS]) for name in OTHERS)


@pytest.mark.parametrize("setting", FLOODED)
def test_a_flood_hardly_touches_those_who_did_not_bring_it(runs: Runs, setting: Setting) -> None:
    # R5.65, R5.66
    before, after = runs.get(HEADWAY, setting._replace(flood=False)), runs.get(HEADWAY, setting)
    times_longer = {name: p99(after[name]) / p99(waits) for name, waits in before.items()}
    assert all(times_longer[name] <= 2 for name in ("high", SMALL_TENANTS, BULK_TENANTS)), times_longer
    assert times_longer["low"] <= 3, times_longer


@pytest.mark.parametrize("setting", LONG)
def test_the_reserve_is_not_what_the_bounds_rest_on(runs: Runs, setting: Setting) -> None:
    ours = runs.get(UNRESERVED, setting)
    assert p99(ours["high"]) <= 1.2 * p99(runs.get(StrictPriority.name, setting)["high"])
    best = min(p99(runs.get(name, setting)[SMALL_TENANTS]) for name in OTHERS)
    assert p99(ours[SMALL_TENANTS]) <= 1.5 * best


@pytest.mark.parametrize(
    "discipline, expected",
    [
        # Seconds: the 99th percentile of high, of small and of bulk tenants in medium, of low.
        pytest.param("first come, first served", (653, 661, 669, 665), id="first come, first served"),
        pytest.param("strict priority", (11, 668, 689, 1216), id="strict priority"),
        pytest.param("aging, a mover every 60 s", (11, 715, 722, 718), id="aging"),
        pytest.param("two of eight reserved, two loops", (24, 971, 967, 974), id="reserved slots"),
        pytest.param("ladder 8/6/5 with downgrades", (519, 530, 543, 557), id="ladder"),
        pytest.param("20 queues, a batch to one", (86, 13, 2124, 12), id="20 queues"),
    ],
)
def test_the_others_are_what_they_were_when_the_bounds_were_set(
    runs: Runs, discipline: str, expected: tuple[int, ...]
) -> None:
    waits = runs.get(discipline, Setting(4, 1))
    assert tuple(round(p99(found)) for found in waits.values()) == expected
