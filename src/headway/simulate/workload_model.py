"""A model of jobs that do not exist yet: streams and bursts with distributions of lengths, from a TOML file."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headway.core.errors import ConfigError
from headway.core.policy.units import found, is_number, parse_length, parse_rate
from headway.core.suggest import did_you_mean
from headway.simulate.job import SimulatedJob
from headway.simulate.trace import JOBS_MAX, in_order

_JOB = ("task", "lane", "tenants", "duration", "needs", "seconds")
_TOP = ("length", "streams", "bursts")
_STREAM = ("rate", *_JOB)
_BURST = ("every", "first", "size", "within", *_JOB)
_LENGTHS = ("mean", "min", "max", "median", "sigma")

Draw = Callable[[random.Random], int]  # Draws the length of a job in milliseconds.


class WorkloadModel:
    """A model that was read from a file. Raises ``ConfigError`` that names the file and the key."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as problem:
            raise ConfigError(f"the model {path} cannot be read: {problem.strerror or problem}") from problem
        except ValueError as problem:  # tomllib names the line and the column.
            raise ConfigError(f"the model {path} is not TOML: {problem}") from problem
        self._known(data, _TOP, "")
        self.span_ms = self._length(data, "length", "")
        if not self.span_ms:
            raise self._error("length", "a model must end, for example length = '4h'")
        self._streams = [self._table(one, _STREAM, f"streams.{n}") for n, one in self._list(data, "streams")]
        self._bursts = [self._table(one, _BURST, f"bursts.{n}") for n, one in self._list(data, "bursts")]
        if not self._streams and not self._bursts:
            raise self._error("streams", "a model needs at least one of streams and bursts")
        self._check_size()

    @property
    def source(self) -> str:
        return str(self._path)

    def jobs(self, seed: int) -> list[SimulatedJob]:
        """Draw the jobs of the model. The same seed gives the same jobs."""
        chance = random.Random(seed)
        made: list[SimulatedJob] = []
        for number, stream in enumerate(self._streams, 1):
            where = f"streams.{number}"
            rate, draw = self._rate(stream, where), self._lengths(stream, where)
            at_ms = chance.expovariate(rate) * 1_000
            while at_ms < self.span_ms:
                made.append(self._job(stream, where, at_ms, draw, chance))
                at_ms += chance.expovariate(rate) * 1_000
        for number, burst in enumerate(self._bursts, 1):
            where = f"bursts.{number}"
            draw, size = self._lengths(burst, where), self._size(burst, where)
            every_ms, within_ms = self._length(burst, "every", where), self._length(burst, "within", where)
            at_ms = self._length(burst, "first", where)
            while at_ms < self.span_ms:
                made += [
                    self._job(burst, where, at_ms + chance.uniform(0, within_ms), draw, chance) for _ in range(size)
                ]
                if not every_ms:
                    break
                at_ms += every_ms
        if not made:
            raise ConfigError(f"the model {self._path} makes no job in its length")
        return in_order(made)

    def _check_size(self) -> None:
        """Refuse a model that would make more jobs than a simulation takes, before any is made."""
        seconds = self.span_ms / 1_000
        jobs = sum(self._rate(one, f"streams.{n}") * seconds for n, one in enumerate(self._streams, 1))
        for number, burst in enumerate(self._bursts, 1):
            where = f"bursts.{number}"
            every_ms = self._length(burst, "every", where)
            jobs += self._size(burst, where) * (self.span_ms // every_ms + 1 if every_ms else 1)
            self._lengths(burst, where)
        for number, stream in enumerate(self._streams, 1):
            self._lengths(stream, f"streams.{number}")
        if jobs > JOBS_MAX:
            raise ConfigError(f"the model {self._path} makes about {jobs:,.0f} jobs; at most {JOBS_MAX:,} are allowed")

    def _job(
        self, table: Mapping[str, Any], where: str, at_ms: float, draw: Draw, chance: random.Random
    ) -> SimulatedJob:  # fmt: skip
        tenants = table.get("tenants")
        if tenants is not None and (not isinstance(tenants, list) or not all(isinstance(t, str) for t in tenants)):
            raise self._error(f"{where}.tenants", f"expected a list of names, found {found(tenants)}")
        return SimulatedJob(
            round(at_ms),
            draw(chance),
            self._text(table, "task", where) or "task",
            self._text(table, "lane", where),
            chance.choice(tenants) if tenants else None,
            self._text(table, "duration", where),
            tuple(table.get("needs", ())),
        )

    def _lengths(self, table: Mapping[str, Any], where: str) -> Draw:
        value = table.get("seconds")
        if is_number(value) and value > 0:
            length_ms = round(1_000 * value)
            return lambda _: max(1, length_ms)
        path = f"{where}.seconds"
        if isinstance(value, dict):
            self._known(value, _LENGTHS, path)
            if all(is_number(one) and one > 0 for one in value.values()) and (made := _distribution(value)):
                return made
        raise self._error(
            path,
            "expected seconds, or a table with mean, with min and max, or with median and sigma, all above 0, "
            f"found {found(value)}",
        )

    def _rate(self, table: Mapping[str, Any], where: str) -> float:
        value = table.get("rate")
        if is_number(value) and value > 0:
            return float(value)
        try:
            count, period_ms = parse_rate(value)
        except ValueError as problem:
            raise self._error(f"{where}.rate", str(problem)) from None
        return 1_000 * count / period_ms

    def _size(self, table: Mapping[str, Any], where: str) -> int:
        value = table.get("size")
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        raise self._error(f"{where}.size", f"expected a whole number above 0, found {found(value)}")

    def _length(self, table: Mapping[str, Any], name: str, where: str) -> int:
        try:
            return parse_length(table.get(name, 0))
        except ValueError as problem:
            raise self._error(f"{where}.{name}".removeprefix("."), str(problem)) from None

    def _text(self, table: Mapping[str, Any], name: str, where: str) -> str | None:
        value = table.get(name)
        if value is not None and not isinstance(value, str):
            raise self._error(f"{where}.{name}", f"expected text, found {found(value)}")
        return value

    def _list(self, data: Mapping[str, Any], name: str) -> list[tuple[int, Any]]:
        value = data.get(name, [])
        if not isinstance(value, list):
            raise self._error(name, f"expected tables such as [[{name}]], found {found(value)}")
        return list(enumerate(value, 1))

    def _table(self, value: Any, known: tuple[str, ...], where: str) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            raise self._error(where, f"expected a table, found {found(value)}")
        self._known(value, known, where)
        return value

    def _known(self, table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
        for key in table:
            if key not in known:
                path = f"{where}.{key}".removeprefix(".")
                raise self._error(path, f"unknown key{did_you_mean(key, known)} (known: {', '.join(known)})")

    def _error(self, key: str, text: str) -> ConfigError:
        return ConfigError(f"the model {self._path}, key {key}: {text}")


def _distribution(value: Mapping[str, float]) -> Draw | None:
    least, most = value.get("min", 0.001), value.get("max", float("inf"))

    def bounded(draw: Callable[[random.Random], float]) -> Draw:
        return lambda chance: max(1, round(1_000 * min(max(draw(chance), least), most)))

    if "mean" in value:
        return bounded(lambda chance: chance.expovariate(1 / value["mean"]))
    if "median" in value:
        return bounded(lambda chance: value["median"] * chance.lognormvariate(0.0, value.get("sigma", 1.0)))
    if "min" in value and "max" in value and least <= most:
        return bounded(lambda chance: chance.uniform(least, most))
    return None
