"""Lines and columns of a text file, for error messages."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple


class Position(NamedTuple):
    """A place in a text. The first line and the first column are 1, and a column is a character."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"line {self.line:,}, column {self.column:,}"


def place_in(where: str, position: Position | None) -> str:
    """Return the place of a problem for its message: the file, and the line and column if they are known."""
    return where if position is None else f"{where} {position}"


class BadByte(NamedTuple):
    """The first byte of a file that is not UTF-8."""

    position: Position
    value: int

    def __str__(self) -> str:
        return f"{self.position}: the file is not text in UTF-8, found the byte 0x{self.value:02x}"


def find_bad_byte(chunks: Iterable[bytes]) -> BadByte | None:
    """Return the first byte that is not UTF-8, or None. ``chunks`` is the file in order, split anywhere."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    line = column = 1
    for chunk in chain(chunks, [None]):
        bad: int | None = None
        try:
            text = decoder.decode(chunk or b"", final=chunk is None)
        except UnicodeDecodeError as problem:
            text, bad = problem.object[: problem.start].decode(), problem.object[problem.start]
        line += text.count("\n")
        column = len(text) - text.rfind("\n") if "\n" in text else column + len(text)
        if bad is not None:
            return BadByte(Position(line, column), bad)
    return None
