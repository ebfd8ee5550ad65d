"""Input and output files of a program."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Self

FILES_MAX = 100
NAME_MAX = 255  # Bytes of a name, the limit of most file systems.
DEPTH_MAX = 8  # Folders in a name.


class File(bytes):
    """The bytes of a file. In JSON they are text if they are UTF-8, else ``{"base64": "…"}``."""

    @classmethod
    def of(cls, content: object) -> Self:
        """Return a file from text, bytes, or an object with ``base64``. Raises ``ValueError``."""
        if isinstance(content, cls):
            return content
        match content:
            case str():
                try:
                    return cls(content.encode())
                except UnicodeEncodeError:
                    raise ValueError("is text with lone surrogates, which no file holds") from None
            case bytes() | bytearray() | memoryview():
                return cls(content)
            case {"base64": str(text), **others} if not others:
                try:
                    return cls(base64.b64decode(text, validate=True))
                except (binascii.Error, ValueError):
                    raise ValueError("is not base64") from None
            case _:
                raise ValueError(f'is text, bytes or {{"base64": "…"}}, not {type(content).__name__}')

    # The codec recognises a model by these two methods.

    @classmethod
    def model_validate(cls, value: Any) -> Self:
        return cls.of(value)

    def model_dump(self, *, mode: str = "json") -> str | dict[str, str]:
        try:
            return self.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(self).decode()}


def read_files(given: object) -> dict[str, File]:
    """Check and return the caller's files. Raises ``ValueError``, which names the invalid file."""
    if not isinstance(given, Mapping):
        raise ValueError(f"is an object of names and contents, not {type(given).__name__}")
    if len(given) > FILES_MAX:
        raise ValueError(f"has {len(given):,} files, more than the {FILES_MAX} allowed")
    files: dict[str, File] = {}
    for name, content in given.items():
        if (wrong := name_problem(name)) is not None:
            raise ValueError(f"has a file {name!r}: {wrong}")
        try:
            files[name] = File.of(content)
        except ValueError as problem:
            raise ValueError(f"has a file {name!r} that {problem}") from None
    for name in files:
        parts = name.split("/")
        for depth in range(1, len(parts)):
            if (folder := "/".join(parts[:depth])) in files:
                raise ValueError(f"has a file {folder!r} and a file {name!r}: one name is both file and folder")
    return files


def name_problem(name: object) -> str | None:
    """Return an error text for an invalid file name, else None.

    A name may contain folders, as in ``data/points.csv``, but must not lead out of the working folder. No part may
    begin with a dot, because the folder is also the program's home and programs read their settings from such files.
    """
    if not isinstance(name, str):
        return "a name is text"
    if not name:
        return "a name is not empty"
    parts = name.split("/")
    if "\\" in name or not all(parts) or "." in parts or ".." in parts:
        return "a name is a path inside the folder, such as data/points.csv"
    if len(parts) > DEPTH_MAX:
        return f"a name has at most {DEPTH_MAX} folders in it"
    if any(part.startswith(".") for part in parts):
        return "no part of a name begins with a dot"
    if "\0" in name:
        return "a name has no NUL in it"
    try:
        return None if len(name.encode()) <= NAME_MAX else f"a name has at most {NAME_MAX} bytes"
    except UnicodeEncodeError:
        return "a name has no lone surrogates in it"
