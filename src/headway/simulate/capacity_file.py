"""Workers and pauses of a simulation from a TOML file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.core.policy.enforced import PauseSet
from headway.core.policy.units import found
from headway.core.worker import ANY_TASK
from headway.simulate.capacity import SLOTS_MAX, WORKERS_MAX, Capacity, SlotStep, TimedPause, WorkerPlan
from headway.simulate.toml_file import TomlFile

_WORKER = ("slots", "count", "capabilities", "from", "until", "reserved")
_PAUSE = ("lane", "task", "tenant", "from", "until")


def read_capacity(path: Path) -> Capacity:
    """Read ``[[workers]]`` and ``[[pauses]]``. Raises ``ConfigError`` that names the file, the line and the key."""
    file = TomlFile(path, "capacity")
    file.check_keys(file.data, ("workers", "pauses"))
    workers: list[WorkerPlan] = []
    for where, table in file.tables("workers", _WORKER):
        from_ms, until_ms = _times(file, table, where)
        slots = _count(file, table, "slots", where, SLOTS_MAX)
        offers = file.texts(table, "capabilities", where)
        reserved = _count(file, table, "reserved", where, SLOTS_MAX, 0) if "reserved" in table else None
        for _ in range(_count(file, table, "count", where, WORKERS_MAX, 1)):
            name = f"worker-{len(workers) + 1}"
            workers.append(
                WorkerPlan(name, (SlotStep(from_ms, slots),), (*sorted(offers), ANY_TASK), until_ms, reserved)
            )
    if not workers:
        raise file.error("", "workers", "expected at least one table [[workers]] with slots")
    pauses = []
    for where, table in file.tables("pauses", _PAUSE):
        named = (file.text(table, name, where) for name in ("lane", "task", "tenant"))
        lanes, tasks, tenants = (() if name is None else (name,) for name in named)
        paused = PauseSet(not (lanes or tasks or tenants), lanes, tasks, tenants)
        pauses.append(TimedPause(paused, *_times(file, table, where), where=file.place(f"{where}.lane")))
    return Capacity(tuple(workers), tuple(pauses))


def _count(
    file: TomlFile, table: Mapping[str, Any], name: str, where: str, most: int, default: int | None = None
) -> int:  # fmt: skip
    value = table.get(name, default)
    if isinstance(value, int) and not isinstance(value, bool) and (1 if default is None else 0) <= value <= most:
        return value
    raise file.error(where, name, f"expected a whole number up to {most:,}, found {found(value)}")


def _times(file: TomlFile, table: Mapping[str, Any], where: str) -> tuple[int, int | None]:
    """Read from when until when something holds."""
    from_ms = file.length(table, "from", where)
    until_ms = file.length(table, "until", where) if "until" in table else None
    if until_ms is not None and until_ms <= from_ms:
        raise file.error(where, "until", "expected a time after from")
    return from_ms, until_ms
