"""One run of the benchmarks: its options, its stores, and the figures so far."""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.contenders import Contender
from benchmarks.places import Place
from benchmarks.stand import Stand, stands

Figures = dict[str, Any]
Best = Callable[[float, float], float]


@dataclass
class Run:
    """Figures of a run. A contender has one flat row, which keeps the best of several rounds."""

    folder: Path
    places: dict[str, Place]
    contenders: list[Contender]
    quick: bool = False
    deep: int = 1_000_000
    features: tuple[str, ...] = ()
    axes: tuple[str, ...] = ()
    long: bool = False
    rows: dict[str, Figures] = field(default_factory=dict)
    others: Figures = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._numbers = itertools.count(1)
        self._began = time.monotonic()
        for contender in self.contenders:
            self.rows[contender.name] = {"store": contender.store, "ours": contender.ours, "failed": {}}

    def on(self, store: str) -> list[Contender]:
        return [contender for contender in self.contenders if contender.store == store]

    def stand(self, contender: Contender, *, alone: bool = True) -> Stand:
        folder = self.folder / f"stand-{next(self._numbers)}"
        return Stand(contender, self.places[contender.store], folder, alone=alone)

    @contextlib.contextmanager
    def trying(self, contender: Contender, part: str) -> Iterator[None]:
        """Record a failure in the row of the contender, and continue."""
        self.say(f"{part}: {contender.name}")
        try:
            yield
        except Exception as problem:
            self.fail(contender, part, problem)

    def fail(self, contender: Contender, part: str, problem: Exception) -> None:
        reason = " ".join(f"{problem}".split()) or type(problem).__name__
        self.rows[contender.name]["failed"][part] = reason[:300]
        self.say(f"{part}: {contender.name} failed: {reason[:300]}")

    def opened(self, contenders: list[Contender], part: str) -> contextlib.AbstractContextManager[list[Stand]]:
        """Open a stand for each contender, without those that fail."""
        made = [self.stand(contender, alone=number == 0) for number, contender in enumerate(contenders)]
        return stands(made, lambda stand, problem: self.fail(stand.contender, part, problem))

    def keep(self, contender: Contender, name: str, value: float, best: Best = max) -> None:
        row = self.rows[contender.name]
        row[name] = best(row[name], value) if name in row else value

    def out_of_the_running(self, contender: Contender, figure: str, *, less: bool = False) -> bool:
        """Return whether a peer is three times worse than the best on its store, so that more rounds are useless."""
        peers = [row for row in self.rows.values() if row["store"] == contender.store and not row["ours"]]
        found = [row[figure] for row in peers if figure in row]
        mine = self.rows[contender.name].get(figure)
        if contender.ours or mine is None:
            return False
        return bool(mine > 3 * min(found) if less else mine * 3 < max(found))

    def note(self, stand: Stand) -> None:
        """Record the configuration and versions of the contender."""
        facts = {name: stand.facts[name] for name in ("configuration", "versions")}
        self.rows[stand.contender.name].update(facts)

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:6.0f} s  {text}", file=sys.stderr)
