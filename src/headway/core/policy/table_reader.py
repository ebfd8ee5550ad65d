"""Reads one table of a policy file key by key. It collects every problem, and uses the default for a wrong value."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeGuard, TypeVar

from headway.core.errors import PolicyProblem
from headway.core.policy.keys import Key
from headway.core.policy.units import found
from headway.core.suggest import did_you_mean

NAME_MAX = 200  # Characters. Keys of limits and classes contain names, and stores bound their bytes.

D = TypeVar("D")
T = TypeVar("T")
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
        return key_path(self.key, key)

    def error(self, key: str, text: str, at: int | None = None) -> None:
        """Report a problem with a key, or with one element of its list."""
        place = "" if at is None else f"[{at}]"
        self._problems.append(PolicyProblem(self.path(key) + place, text))

    def wrong_here(self, text: str) -> None:
        """Report a problem with the table itself."""
        self._problems.append(PolicyProblem(self.key, text))

    def has(self, key: str) -> bool:
        return key in self._data

    def need(self, key: str, what: str) -> None:
        """Report a key that is missing."""
        if key not in self._data:
            self.error(key, f"expected {what}, found nothing")

    def close(self, made: T) -> T:
        """Report every unknown key, with the most similar known one. Return what was made of the table."""
        for key in self._data:
            if key not in self._asked:
                known = f" (known are {', '.join(self._asked)})"
                self.error(key, f"unknown key{did_you_mean(key, self._asked) or known}")
        return made

    def read(self, key: str, default: D, read: Callable[[Any], T]) -> T | D:
        value = self._get(key)
        return default if value is _ABSENT else self.check(key, value, default, read)

    def fields(self, keys: Iterable[Key], usual: object) -> dict[str, Any]:
        """Read the fields that these keys set. ``usual`` has their defaults."""
        return {key.field: self.read(key.name, getattr(usual, key.field), key.read) for key in keys}

    def check(self, key: str, value: Any, default: D, read: Callable[[Any], T], at: int | None = None) -> T | D:
        """Return a value as ``read`` returns it, or the default if it is wrong."""
        try:
            return read(value)
        except ValueError as problem:
            self.error(key, str(problem), at)
            return default

    def texts(self, key: str) -> tuple[str, ...]:
        read: list[str] = []
        for at, value in self.items(key):
            if is_name(value):
                read.append(value)
            else:
                self.error(key, f"expected a text, found {found(value)}", at)
        return tuple(read)

    def raw(self, key: str) -> Any:
        """Return a value as the file has it, or None."""
        value = self._get(key)
        return None if value is _ABSENT else value

    def items(self, key: str) -> Iterator[tuple[int, Any]]:
        """Yield the elements of a list with their numbers."""
        value = self._get(key)
        if isinstance(value, (list, tuple)):
            yield from enumerate(value)
        elif value is not _ABSENT:
            self.error(key, f"expected a list, found {found(value)}")

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
        for at, value in self.items(key):
            yield TableReader(value, f"{self.path(key)}[{at}]", self._problems)

    def _get(self, key: str) -> Any:
        self._asked.append(key)
        return self._data.get(key, _ABSENT)


def key_path(outer: str, *keys: str) -> str:
    """Return the path of a key inside a table, quoted as in TOML."""
    written = (key if _BARE.fullmatch(key) else json.dumps(key, ensure_ascii=False) for key in keys)
    return ".".join([*([outer] if outer else []), *written])


def is_name(value: object) -> TypeGuard[str]:
    """Return whether a value can be a name: a printable text of bounded length that is not empty."""
    return isinstance(value, str) and 0 < len(value) <= NAME_MAX and value.isprintable()


def read_text(value: Any) -> str:
    """Return a text that is not empty. Raises ``ValueError`` for another value."""
    if is_name(value):
        return value
    raise ValueError(f"expected a text of 1 to {NAME_MAX} printable characters, found {found(value)}")
