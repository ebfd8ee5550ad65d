"""Finds the output files of a program, and reads or moves them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO

from headway.client.programs.output import Artifact

PIECE = 1 << 20
DEPTH_MAX = 32  # Levels of folders to search. The supervisor stops a program that makes more.


def find_files(folder: str, collect: Sequence[str], came_in: Collection[str]) -> dict[str, int]:
    """Return the names and sizes of the output files.

    An input file is included only if ``collect`` has its exact name. Links and special files are never included.
    """
    if not collect:
        return {}
    found: dict[str, int] = {}
    for name, size in _files(folder):
        patterns = [one for one in collect if one == name or name not in came_in]
        if any(one == name or matches(name, one) for one in patterns):
            found[name] = size
    return dict(sorted(found.items()))


def matches(name: str, pattern: str) -> bool:
    """Return whether a path matches a pattern. ``*`` matches within one folder, ``**`` matches any folders."""
    return _parts_match(name.split("/"), pattern.split("/"))


def _parts_match(parts: list[str], patterns: list[str]) -> bool:
    if not patterns:
        return not parts
    if patterns[0] == "**":
        return any(_parts_match(parts[skipped:], patterns[1:] or ["*"]) for skipped in range(len(parts)))
    return bool(parts) and fnmatchcase(parts[0], patterns[0]) and _parts_match(parts[1:], patterns[1:])


def _files(folder: str, within: str = "", depth: int = 0) -> Iterator[tuple[str, int]]:
    """Yield names and sizes of the files in a folder, without following links."""
    try:
        with os.scandir(os.path.join(folder, within)) as entries:
            found = list(entries)
    except OSError:  # The program has removed the permission to read it.
        return
    for entry in found:
        name = f"{within}/{entry.name}" if within else entry.name
        if entry.is_dir(follow_symlinks=False):
            if depth < DEPTH_MAX:
                yield from _files(folder, name, depth + 1)
        elif S_ISREG((facts := entry.stat(follow_symlinks=False)).st_mode):
            yield name, facts.st_size


def read_files(folder: str, names: Mapping[str, int]) -> dict[str, bytes]:
    """Return the contents of files by name. Names that are not UTF-8 are changed so that JSON can hold them."""
    files: dict[str, bytes] = {}
    for name in names:
        with _open(folder, name) as file:
            files[_text(name)] = file.read()
    return files


def move_files(folder: str, names: Mapping[str, int], artifacts: str) -> dict[str, Artifact]:
    """Copy files to the artifacts folder, which may be on another disk. Return the new location of each."""
    moved: dict[str, Artifact] = {}
    for name in names:
        target = Path(artifacts, name)
        target.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        unfinished = target.with_name(f".{target.name}.{os.getpid()}")
        digest, size = hashlib.sha256(), 0
        with _open(folder, name) as source, open(unfinished, "wb") as copy:
            while piece := source.read(PIECE):
                digest.update(piece)
                size += copy.write(piece)
            copy.flush()
            os.fsync(copy.fileno())
        os.replace(unfinished, target)
        moved[_text(name)] = Artifact(path=_text(str(target)), size=size, sha256=digest.hexdigest())
    return moved


def _open(folder: str, name: str) -> BinaryIO:
    return open(os.open(os.path.join(folder, name), os.O_RDONLY | os.O_NOFOLLOW), "rb")


def _text(name: str) -> str:
    return os.fsencode(name).decode(errors="replace")
