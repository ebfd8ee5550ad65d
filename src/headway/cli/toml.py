"""Writes plain values as TOML, for files that people read and edit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headway.core.policy.table_reader import key_path


def toml_text(data: Mapping[str, Any]) -> str:
    """Write a table: its values first, then its tables, each under a heading. What is None is left out."""
    return "\n".join(_lines(data, "")).strip() + "\n"


def _lines(table: Mapping[str, Any], path: str) -> Iterator[str]:
    values = {key: value for key, value in table.items() if value is not None and not isinstance(value, Mapping)}
    inner = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    if path and (values or not inner):
        yield ""
        yield f"[{path}]"
    for key, value in values.items():
        yield f"{_key(key)} = {_value(value)}"
    for key, value in inner.items():
        yield from _lines(value, f"{path}.{_key(key)}" if path else _key(key))


def _key(key: str) -> str:
    bare = key_path("", key) == key
    return key if bare else _text(key)


def _value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _text(value)
        case Mapping():
            pairs = (f"{_key(key)} = {_value(inner)}" for key, inner in value.items() if inner is not None)
            return f"{{{', '.join(pairs)}}}"
        case list() | tuple():
            return f"[{', '.join(_value(inner) for inner in value)}]"
        case _:
            return str(value)


def _text(text: str) -> str:
    """Quote a text, with an escape for whatever a terminal would not show."""
    return '"' + "".join(_letter(letter) for letter in text) + '"'


def _letter(letter: str) -> str:
    if letter in '"\\':
        return f"\\{letter}"
    if letter.isprintable():
        return letter
    return f"\\u{ord(letter):04x}" if ord(letter) <= 0xFFFF else f"\\U{ord(letter):08x}"
