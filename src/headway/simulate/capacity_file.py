"""Workers and pauses of a simulation from a TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.core.errors import ConfigError
from headway.core.policy.enforced import PauseSet
from headway.core.policy.units import found, parse_length
from headway.core.suggest import did_you_mean
from headway.core.worker import ANY_TASK
from headway.simulate.capacity import SLOTS_MAX, WORKERS_MAX, Capacity, SlotStep, TimedPause, WorkerPlan

_WORKER = ("slots", "count", "capabilities", "from", "until", "reserved")
_PAUSE = ("lane", "task", "tenant", "from", "until")


def read_capacity(path: Path) -> Capacity:
    """Read ``[[workers]]`` and ``[[pauses]]``. Raises ``ConfigError`` that names the file and the key."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise ConfigError(f"the capacity {path} cannot be read: {problem.strerror or problem}") from problem
    except ValueError as problem:  # tomllib names the line and the column.
        raise ConfigError(f"the capacity {path} is not TOML: {problem}") from problem
    reader = _CapacityReader(path)
    reader.known(data, ("workers", "pauses"), "")
    workers: list[WorkerPlan] = []
    for where, table in reader.tables(data, "workers"):
        reader.known(table, _WORKER, where)
        from_ms, until_ms = reader.times(table, where)
        slots = reader.count(table, "slots", where, SLOTS_MAX)
        offers = table.get("capabilities", [])
        if not isinstance(offers, list) or not all(isinstance(one, str) for one in offers):
            raise reader.error(f"{where}.capabilities", f"expected a list of names, found {found(offers)}")
        reserved = reader.count(table, "reserved", where, SLOTS_MAX, 0) if "reserved" in table else None
        for _ in range(reader.count(table, "count", where, WORKERS_MAX, 1)):
            name = f"worker-{len(workers) + 1}"
            workers.append(
                WorkerPlan(name, (SlotStep(from_ms, slots),), (*sorted(offers), ANY_TASK), until_ms, reserved)
            )
    if not workers:
        raise reader.error("workers", "expected at least one table [[workers]] with slots")
    pauses = []
    for where, table in reader.tables(data, "pauses"):
        reader.known(table, _PAUSE, where)
        lanes, tasks, tenants = ((table[name],) if name in table else () for name in ("lane", "task", "tenant"))
        everything = not (lanes or tasks or tenants)
        pauses.append(TimedPause(PauseSet(everything, lanes, tasks, tenants), *reader.times(table, where)))
    return Capacity(tuple(workers), tuple(pauses))


class _CapacityReader:
    def __init__(self, path: Path) -> None:
        self._path = path

    def tables(self, data: Mapping[str, Any], name: str) -> list[tuple[str, Mapping[str, Any]]]:
        value = data.get(name, [])
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            raise self.error(name, f"expected tables such as [[{name}]], found {found(value)}")
        return [(f"{name}.{number}", one) for number, one in enumerate(value, 1)]

    def known(self, table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
        for key in table:
            if key not in known:
                path = f"{where}.{key}".removeprefix(".")
                raise self.error(path, f"unknown key{did_you_mean(key, known)} (known: {', '.join(known)})")

    def count(
        self, table: Mapping[str, Any], name: str, where: str, most: int, default: int | None = None
    ) -> int:  # fmt: skip
        value = table.get(name, default)
        if isinstance(value, int) and not isinstance(value, bool) and (1 if default is None else 0) <= value <= most:
            return value
        raise self.error(f"{where}.{name}", f"expected a whole number up to {most:,}, found {found(value)}")

    def times(self, table: Mapping[str, Any], where: str) -> tuple[int, int | None]:
        """Read from when until when something holds."""
        try:
            from_ms = parse_length(table.get("from", 0))
            until_ms = parse_length(table["until"]) if "until" in table else None
        except ValueError as problem:
            raise self.error(where, f"from and until: {problem}") from None
        if until_ms is not None and until_ms <= from_ms:
            raise self.error(f"{where}.until", "expected a time after from")
        return from_ms, until_ms

    def error(self, key: str, text: str) -> ConfigError:
        return ConfigError(f"the capacity {self._path}, key {key}: {text}")
