"""Waits by group, and the table of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tests.simulation.workload import GROUPS, Work

Waits = Mapping[str, Sequence[float]]  # By group: how long its jobs waited, in seconds.


def by_group(works: Sequence[Work], waits: Sequence[float]) -> dict[str, list[float]]:
    """Return the waits of each group that had jobs."""
    grouped: dict[str, list[float]] = {}
    for name, belongs in GROUPS.items():
        found = [wait for work, wait in zip(works, waits, strict=True) if belongs(work)]
        if found:
            grouped[name] = found
    return grouped


def together(runs: Iterable[Waits]) -> dict[str, list[float]]:
    """Return the waits of several runs as those of one."""
    whole: dict[str, list[float]] = {}
    for run in runs:
        for name, waits in run.items():
            whole.setdefault(name, []).extend(waits)
    return whole


def quantile(waits: Sequence[float], part: float) -> float:
    """Return the wait that this share of the jobs did not exceed."""
    return sorted(waits)[min(len(waits) - 1, int(part * len(waits)))]


def p99(waits: Sequence[float]) -> float:
    return quantile(waits, 0.99)


def table(rows: Mapping[str, Waits]) -> str:
    """Return a table of waits: p50 / p95 / p99 of each group in seconds, one row a discipline."""
    names = list(next(iter(rows.values())))
    lines = [["", *names], ["---"] * (1 + len(names))]
    lines += [[discipline, *(_spread(waits[name]) for name in names)] for discipline, waits in rows.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _spread(waits: Sequence[float]) -> str:
    return " / ".join(_figures(waits))


def _figures(waits: Sequence[float]) -> Iterator[str]:
    for part in (0.5, 0.95, 0.99):
        wait = quantile(waits, part)
        yield f"{wait:.1f}" if wait < 100 else f"{wait:.0f}"
