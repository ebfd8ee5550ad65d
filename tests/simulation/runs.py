"""Runs of workloads under disciplines. Tests share them, and each run is made once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from headway.core.policy.document import BUILT_IN, Policy, Reserve
from tests.simulation.disciplines import DISCIPLINES, replay
from tests.simulation.driver import play
from tests.simulation.waits import Waits, by_group, table, together
from tests.simulation.workload import Work, make_workload

HEADWAY = "Headway"
UNRESERVED = "Headway without a reserve"
POLICIES: dict[str, Policy] = {HEADWAY: BUILT_IN, UNRESERVED: replace(BUILT_IN, reserve=Reserve(slots=0))}
OTHERS = {discipline.name: discipline for discipline in DISCIPLINES}


class Setting(NamedTuple):
    """The settings of a workload."""

    hours: int
    seed: int
    flood: bool = False

    @property
    def works(self) -> list[Work]:
        return make_workload(self.seed, self.hours, flood=self.flood)

    def __str__(self) -> str:
        return f"{self.hours} h{' with a flood' if self.flood else ''}, seed {self.seed}"


class Runs:
    """The waits of all runs so far."""

    def __init__(self) -> None:
        self._done: dict[tuple[str, Setting], Waits] = {}

    def get(self, discipline: str, setting: Setting) -> Waits:
        """Return the waits of a workload under a discipline."""
        if (discipline, setting) not in self._done:
            works = setting.works
            if discipline in POLICIES:
                waits = play(POLICIES[discipline], works)
            else:
                waits = replay(OTHERS[discipline](), works)
            self._done[discipline, setting] = by_group(works, waits)
        return self._done[discipline, setting]

    def tables(self) -> Iterator[str]:
        """Yield a table of all runs for each length of workload, with its seeds together."""
        for hours, flood in sorted({(setting.hours, setting.flood) for _, setting in self._done}):
            rows: dict[str, list[Waits]] = {}
            seeds: set[int] = set()
            for (discipline, setting), waits in self._done.items():
                if (setting.hours, setting.flood) == (hours, flood):
                    rows.setdefault(discipline, []).append(waits)
                    seeds.add(setting.seed)
            which = f"seeds {', '.join(map(str, sorted(seeds)))} of {hours} h{' with a flood' if flood else ''}"
            yield f"\nSeconds waited, p50 / p95 / p99; {which}\n"
            yield table({name: together(found) for name, found in rows.items()})
