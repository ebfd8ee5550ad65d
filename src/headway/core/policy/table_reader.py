"""Reads one table of a policy file key by key. It collects every problem, and uses the default for a wrong value."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard, TypeVar

from headway.core.errors import PolicyProblem
from headway.core.policy.units import COUNT_MAX, LENGTH_MS_MAX, found, is_number, parse_length, parse_rate, write_length
from headway.core.suggest import did_you_mean

NAME_MAX = 200  # Characters. Keys of limits and classes contain names, and stores bound their bytes.

D = TypeVar("D")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_ABSENT: Any = object()


class TableReader:
    """One table. Each method reads one key, and ``close`` reports the keys that no method has read."""

    def __init__(self, data: object, key: str, problems: list[PolicyProblem]) -> None:
        self.key = key
        self._problems = problems
        self._asked: list[str] = []
        self._data: Mapping[str, Any] = data if isinstance(data, Mapping) else {}
        if not isinstance(data, Mapping):
            problems.append(PolicyProblem(key, f"expected a table, found {found(data)}"))

    def path(self, key: str) -> str:
        """Return the full path of a key."""
        return key_path(self.key, key)

    def error(self, key: str, text: str, at: int | None = None) -> None:
        """Report a problem with a key, or with one element of its list."""
        place = "" if at is None else f"[{at}]"
        self._problems.append(PolicyProblem(self.path(key) + place, text))

    def wrong_here(self, text: str) -> None:
        """Report a problem with the table itself."""
        self._problems.append(PolicyProblem(self.key, text))

    def has(self, key: str) -> bool:
        """Return whether the file sets a key."""
        return key in self._data

    def need(self, key: str, what: str) -> None:
        """Report a key that is missing."""
        if key not in self._data:
            self.error(key, f"expected {what}, found nothing")

    def close(self) -> None:
        """Report every unknown key, with the most similar known one."""
        for key in self._data:
            if key not in self._asked:
                known = f" (known are {', '.join(self._asked)})"
                self.error(key, f"unknown key{did_you_mean(key, self._asked) or known}")

    # ------------------------------------------------------------------ values

    def whole(self, key: str, default: D, *, least: int = 0, most: int = COUNT_MAX) -> int | D:
        """Read a whole number."""
        value = self._get(key)
        if value is _ABSENT:
            return default
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        bounds = f"from {least} to {most}" if most < COUNT_MAX else f"of at least {least}"
        self.error(key, f"expected a whole number {bounds}, found {found(value)}")
        return default

    def number(self, key: str, default: float, *, least: float, most: float) -> float:
        """Read a number."""
        value = self._get(key)
        if value is _ABSENT:
            return default
        if is_number(value) and least <= value <= most:
            return value
        self.error(key, f"expected a number from {least:g} to {most:,.0f}, found {found(value)}")
        return default

    def length(self, key: str, default: D, *, least_ms: int = 0, most_ms: int = LENGTH_MS_MAX) -> int | D:
        """Read a length of time."""
        value = self._get(key)
        if value is _ABSENT:
            return default
        read = self._length(key, value, least_ms, most_ms)
        return default if read is None else read

    def lengths(self, key: str, *, least_ms: int = 0) -> tuple[int, ...]:
        """Read a list of lengths of time, none shorter than the one before."""
        read: list[int] = []
        for at, value in self._list(key):
            length_ms = self._length(key, value, max([least_ms, *read]), LENGTH_MS_MAX, at)
            if length_ms is not None:
                read.append(length_ms)
        return tuple(read)

    def rate(self, key: str) -> tuple[int, int] | tuple[None, int]:
        """Read a rate: how many, and in how many milliseconds."""
        value = self._get(key)
        try:
            return (None, 0) if value is _ABSENT else parse_rate(value)
        except ValueError as problem:
            self.error(key, str(problem))
            return None, 0

    def word(self, key: str, default: D, known: Sequence[str], what: str = "") -> str | D:
        """Read one of some known words. ``what`` describes them in errors, if that is not obvious."""
        value = self._get(key)
        if value is _ABSENT:
            return default
        if isinstance(value, str) and value in known:
            return value
        hint = did_you_mean(value, known) if isinstance(value, str) else ""
        choices = " or ".join(filter(None, [", ".join(known[:-1]), *known[-1:]]))
        self.error(key, f"expected {what}{choices or 'nothing, as there is none'}, found {found(value)}{hint}")
        return default

    def text(self, key: str, default: D) -> str | D:
        """Read a text that is not empty."""
        value = self._get(key)
        if value is _ABSENT:
            return default
        if is_name(value):
            return value
        self.error(key, f"expected a text of 1 to {NAME_MAX} printable characters, found {found(value)}")
        return default

    def texts(self, key: str) -> tuple[str, ...]:
        """Read a list of texts."""
        read: list[str] = []
        for at, value in self._list(key):
            if is_name(value):
                read.append(value)
            else:
                self.error(key, f"expected a text, found {found(value)}", at)
        return tuple(read)

    def raw(self, key: str) -> Any:
        """Return a value as the file has it, or None."""
        value = self._get(key)
        return None if value is _ABSENT else value

    # ------------------------------------------------------------------ tables

    def table(self, key: str) -> TableReader:
        """Read a table. A missing one is empty."""
        value = self._get(key)
        return TableReader({} if value is _ABSENT else value, self.path(key), self._problems)

    def tables(self, key: str) -> Iterator[tuple[str, TableReader]]:
        """Read a table of tables whose names the user chose."""
        outer = self.table(key)
        for name in outer.names():
            yield name, outer.table(name)

    def names(self) -> Iterator[str]:
        """Yield the keys of a table whose names the user chose."""
        for name in self._data:
            if is_name(name):
                yield name
            else:
                self.error(str(name), f"expected a name of 1 to {NAME_MAX} printable characters")

    def rows(self, key: str) -> Iterator[TableReader]:
        """Read a list of tables."""
        for at, value in self._list(key):
            yield TableReader(value, f"{self.path(key)}[{at}]", self._problems)

    # ------------------------------------------------------------------ inside

    def _get(self, key: str) -> Any:
        self._asked.append(key)
        return self._data.get(key, _ABSENT)

    def _list(self, key: str) -> Iterator[tuple[int, Any]]:
        value = self._get(key)
        if isinstance(value, (list, tuple)):
            yield from enumerate(value)
        elif value is not _ABSENT:
            self.error(key, f"expected a list, found {found(value)}")

    def _length(self, key: str, value: object, least_ms: int, most_ms: int, at: int | None = None) -> int | None:
        try:
            length_ms = parse_length(value)
        except ValueError as problem:
            self.error(key, str(problem), at)
            return None
        if least_ms <= length_ms <= most_ms:
            return length_ms
        least, most = write_length(least_ms), write_length(most_ms)
        bounds = f"from {least} to {most}" if most_ms < LENGTH_MS_MAX else f"of at least {least}"
        before = ", like the one before it" if at else ""
        self.error(key, f"expected a length {bounds}{before}, found {found(value)}", at)
        return None


def key_path(outer: str, *keys: str) -> str:
    """Return the path of a key inside a table, quoted as in TOML."""
    written = (key if _BARE.fullmatch(key) else json.dumps(key, ensure_ascii=False) for key in keys)
    return ".".join([*([outer] if outer else []), *written])


def is_name(value: object) -> TypeGuard[str]:
    """Return whether a value can be a name: a printable text of bounded length that is not empty."""
    return isinstance(value, str) and 0 < len(value) <= NAME_MAX and value.isprintable()
