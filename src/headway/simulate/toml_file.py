"""A model or capacity file: TOML whose errors name the file, the line, the column and the key."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from headway.core.errors import ConfigError
from headway.core.policy.key_positions import FindPosition, toml_positions
from headway.core.policy.units import found, parse_length
from headway.core.suggest import did_you_mean
from headway.core.text_position import find_bad_byte, place_in


class TomlFile:
    """One file. Raises ``ConfigError`` if it cannot be read. ``kind`` is what the file is in messages."""

    def __init__(self, path: Path, kind: str) -> None:
        self.name = f"the {kind} {path}"
        try:
            self._text = path.read_text(encoding="utf-8")
            self.data = tomllib.loads(self._text)
        except OSError as problem:
            raise ConfigError(f"{self.name} cannot be read: {problem.strerror or problem}") from problem
        except UnicodeDecodeError as problem:
            raise ConfigError(f"{self.name} {find_bad_byte([problem.object])}") from problem
        except (ValueError, RecursionError) as problem:  # tomllib names the line and the column.
            raise ConfigError(f"{self.name} is not TOML: {problem}") from problem

    def check_keys(self, table: Mapping[str, Any], known: tuple[str, ...], where: str = "") -> None:
        for key in table:
            if key not in known:
                raise self.error(where, key, f"unknown key{did_you_mean(key, known)} (known: {', '.join(known)})")

    def tables(self, name: str, known: tuple[str, ...]) -> list[tuple[str, Mapping[str, Any]]]:
        """Return the tables of an array with their paths."""
        value = self.data.get(name, [])
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            raise self.error("", name, f"expected tables such as [[{name}]], found {found(value)}")
        tables = [(f"{name}[{number}]", one) for number, one in enumerate(value)]
        for where, table in tables:
            self.check_keys(table, known, where)
        return tables

    def length(self, table: Mapping[str, Any], name: str, where: str = "") -> int:
        """Read a length of time in milliseconds. A missing one is 0."""
        try:
            return parse_length(table.get(name, 0))
        except ValueError as problem:
            raise self.error(where, name, str(problem)) from None

    def text(self, table: Mapping[str, Any], name: str, where: str) -> str | None:
        value = table.get(name)
        if value is not None and not isinstance(value, str):
            raise self.error(where, name, f"expected text, found {found(value)}")
        return value

    def texts(self, table: Mapping[str, Any], name: str, where: str) -> list[str]:
        value = table.get(name, [])
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self.error(where, name, f"expected a list of names, found {found(value)}")
        return value

    def place(self, key: str) -> str:
        """Return where a key is, for a message."""
        return f"{place_in(self.name, self._find(key))}, key {key}"

    def error(self, where: str, name: str, text: str) -> ConfigError:
        """Return the error of a key in the table ``where``."""
        return ConfigError(f"{self.place(f'{where}.{name}'.strip('.'))}: {text}")

    @cached_property
    def _find(self) -> FindPosition:
        return toml_positions(self._text)
