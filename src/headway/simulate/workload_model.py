"""A model of jobs that do not exist yet: streams and bursts with distributions of lengths, from a TOML file."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headway.core.errors import ConfigError
from headway.core.policy.units import LENGTH_MS_MAX, found, is_number, parse_rate
from headway.simulate.job import SimulatedJob
from headway.simulate.toml_file import TomlFile
from headway.simulate.trace import JOBS_MAX, in_order

_JOB = ("task", "lane", "tenants", "duration", "needs", "seconds")
_TOP = ("length", "streams", "bursts")
_STREAM = ("rate", *_JOB)
_BURST = ("every", "first", "size", "within", *_JOB)
_LENGTHS = ("mean", "min", "max", "median", "sigma")
_EXPONENT_MAX = 700  # The largest hundred whose exponential a float can hold.
_LONGEST = LENGTH_MS_MAX / 1_000  # Seconds, as in a trace.

Draw = Callable[[random.Random], int]  # Draws the length of a job in milliseconds.


class WorkloadModel:
    """A model that was read from a file. Raises ``ConfigError`` that names the file, the line and the key."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = file = TomlFile(path, "model")
        file.check_keys(file.data, _TOP)
        self.span_ms = file.length(file.data, "length")
        if not self.span_ms:
            raise file.error("", "length", "a model must end, for example length = '4h'")
        self._streams, self._bursts = file.tables("streams", _STREAM), file.tables("bursts", _BURST)
        if not self._streams and not self._bursts:
            raise file.error("", "streams", "a model needs at least one of streams and bursts")
        self._check_size()

    @property
    def source(self) -> str:
        return str(self._path)

    def jobs(self, seed: int) -> list[SimulatedJob]:
        """Draw the jobs of the model. The same seed gives the same jobs."""
        chance = random.Random(seed)
        made: list[SimulatedJob] = []
        for where, stream in self._streams:
            rate, draw = self._rate(stream, where), self._lengths(stream, where)
            at_ms = chance.expovariate(rate) * 1_000
            while at_ms < self.span_ms:
                made.append(self._job(stream, where, at_ms, draw, chance))
                at_ms += chance.expovariate(rate) * 1_000
        for where, burst in self._bursts:
            draw, size = self._lengths(burst, where), self._size(burst, where)
            every_ms, within_ms = self._every(burst, where), self._file.length(burst, "within", where)
            at_ms = self._file.length(burst, "first", where)
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
        jobs = sum(self._rate(stream, where) * seconds for where, stream in self._streams)
        for where, burst in self._bursts:
            every_ms = self._every(burst, where)
            jobs += self._size(burst, where) * (self.span_ms // every_ms + 1 if every_ms else 1)
        for where, table in (*self._streams, *self._bursts):
            self._lengths(table, where)
        if jobs > JOBS_MAX:
            raise ConfigError(f"the model {self._path} makes about {jobs:,.0f} jobs; at most {JOBS_MAX:,} are allowed")

    def _job(
        self, table: Mapping[str, Any], where: str, at_ms: float, draw: Draw, chance: random.Random
    ) -> SimulatedJob:  # fmt: skip
        file, tenants = self._file, self._file.texts(table, "tenants", where)
        return SimulatedJob(
            round(at_ms),
            draw(chance),
            file.text(table, "task", where) or "task",
            file.text(table, "lane", where),
            chance.choice(tenants) if tenants else None,
            file.text(table, "duration", where),
            tuple(file.texts(table, "needs", where)),
        )

    def _lengths(self, table: Mapping[str, Any], where: str) -> Draw:
        value = table.get("seconds")
        if is_number(value) and 0 < value <= _LONGEST:
            length_ms = round(1_000 * value)
            return lambda _: max(1, length_ms)
        if isinstance(value, dict):
            self._file.check_keys(value, _LENGTHS, f"{where}.seconds")
            if all(is_number(one) and 0 < one <= _LONGEST for one in value.values()) and (made := _distribution(value)):
                return made
        raise self._file.error(
            where,
            "seconds",
            "expected seconds, or a table with mean, with min and max, or with median and sigma, all above 0 "
            f"and at most {_LONGEST:,.0f}, found {found(value)}",
        )

    def _rate(self, table: Mapping[str, Any], where: str) -> float:
        value = table.get("rate")
        if is_number(value) and value > 0:
            return float(value)
        try:
            count, period_ms = parse_rate(value)
        except ValueError as problem:
            raise self._file.error(where, "rate", str(problem)) from None
        return 1_000 * count / period_ms

    def _size(self, table: Mapping[str, Any], where: str) -> int:
        value = table.get("size")
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        raise self._file.error(where, "size", f"expected a whole number above 0, found {found(value)}")

    def _every(self, burst: Mapping[str, Any], where: str) -> int:
        """Read the time between bursts, or 0 for one burst."""
        every_ms = self._file.length(burst, "every", where)
        if "every" in burst and not every_ms:
            raise self._file.error(where, "every", "expected a time above 0; leave it out for one burst")
        return every_ms


def _distribution(value: Mapping[str, float]) -> Draw | None:
    least, most = value.get("min", 0.001), value.get("max", _LONGEST)

    def bounded(draw: Callable[[random.Random], float]) -> Draw:
        return lambda chance: max(1, round(1_000 * min(max(draw(chance), least), most)))

    if "mean" in value:
        return bounded(lambda chance: chance.expovariate(1 / value["mean"]))
    if "median" in value:
        sigma = value.get("sigma", 1.0)
        return bounded(lambda chance: value["median"] * math.exp(min(chance.normalvariate(0.0, sigma), _EXPONENT_MAX)))
    if "min" in value and "max" in value and least <= most:
        return bounded(lambda chance: chance.uniform(least, most))
    return None
