"""Finds where the keys of a TOML or JSON text are written, so that an error can name their line and column."""

from __future__ import annotations

import json
import re
import tomllib
from bisect import bisect_right
from collections.abc import Callable

from headway.core.policy.table_reader import key_path
from headway.core.text_position import Position

FindPosition = Callable[[str], Position | None]  # Returns where a key is written, by its path as in messages.

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_BARE_VALUE = re.compile(r"[^,\]}#\n]+")  # A number, a moment, true, false or null.
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"""(?:"{0,2})' r"|'''.*?'''(?:'{0,2})" r'|"(?:\\.|[^"\\])*"' r"|'[^'\n]*'", re.DOTALL
)


def toml_positions(text: str) -> FindPosition:
    """Return what finds the keys of a text that ``tomllib`` can read."""
    scanner = _Scanner(text, lambda written: tomllib.loads(f"key = {written}")["key"])
    return _finder(text, scanner, scanner.scan_toml)


def json_positions(text: str) -> FindPosition:
    """Return what finds the keys of a text that ``json`` can read."""
    scanner = _Scanner(text, json.loads)
    return _finder(text, scanner, scanner.scan_json)


def _finder(text: str, scanner: _Scanner, scan: Callable[[], None]) -> FindPosition:
    try:
        scan()
    except (ValueError, RecursionError):  # The text nests too deeply. An error without a position is still clear.
        return lambda key: None
    starts = [0, *(found.end() for found in re.finditer("\n", text))]

    def find(key: str) -> Position | None:
        """Return where a key is written, or the table that lacks it."""
        while key and key not in scanner.found:
            key = key[: max(key.rfind("."), key.rfind("["), 0)]
        if not key:
            return None
        line = bisect_right(starts, scanner.found[key])
        return Position(line, scanner.found[key] - starts[line - 1] + 1)

    return find


class _Scanner:
    """Walks over a valid text. ``found`` has the offset of each key and list element, by its path."""

    def __init__(self, text: str, decode: Callable[[str], str]) -> None:
        self.found: dict[str, int] = {}
        self._text = text
        self._decode = decode  # Reads a quoted key.
        self._at = 0
        self._rows: dict[str, int] = {}  # How many tables each array of tables has so far.

    def scan_json(self) -> None:
        self._skip()
        self._value("")

    def scan_toml(self) -> None:
        table = ""
        while self._skip() < len(self._text):
            if self._take("["):
                table = self._header(is_row=self._take("["))
            else:
                self._member(table)

    def _header(self, *, is_row: bool) -> str:
        path = self._keys("", is_row=is_row)
        self._match(re.compile(r"\]\]?"))
        return path

    def _keys(self, path: str, *, is_row: bool = False) -> str:
        """Read a key, dotted or not. Return the path of what it names: in an array of tables, of the last one."""
        while True:
            self._skip()
            at = self._at
            quoted = self._text[at : at + 1] in ("'", '"')
            written = self._match(_STRING if quoted else _BARE_KEY)
            path = key_path(path, self._decode(written) if quoted else written)
            self._skip()
            if not self._take("."):
                break
            self.found.setdefault(path, at)
            if path in self._rows:
                path += f"[{self._rows[path] - 1}]"
        if is_row:
            self.found.setdefault(path, at)
            self._rows[path] = self._rows.get(path, 0) + 1
            path += f"[{self._rows[path] - 1}]"
        self.found[path] = at
        return path

    def _member(self, table: str) -> None:
        """Read a key and its value."""
        path = self._keys(table)
        if not self._take("="):
            self._match(re.compile(":"))
        self._skip()
        self._value(path)

    def _value(self, path: str) -> None:
        if self._take("{"):
            while not self._ends("}"):
                self._member(path)
        elif self._take("["):
            number = 0
            while not self._ends("]"):
                self.found[f"{path}[{number}]"] = self._at
                self._value(f"{path}[{number}]")
                number += 1
        else:
            self._match(_STRING if self._text[self._at : self._at + 1] in ("'", '"') else _BARE_VALUE)

    def _ends(self, end: str) -> bool:
        """Go to the next element of a list or table. Return whether the list or table ends instead."""
        self._skip()
        if self._take(","):
            self._skip()
        return self._take(end)

    def _skip(self) -> int:
        """Skip blanks and comments. Return the offset of what follows."""
        self._match(_BLANK)
        return self._at

    def _take(self, text: str) -> bool:
        if found := self._text.startswith(text, self._at):
            self._at += len(text)
        return found

    def _match(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            raise ValueError(f"cannot scan the text at {self._at}")
        self._at = match.end()
        return match[0]
