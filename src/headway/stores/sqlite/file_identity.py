"""Checks whether the path of a store still leads to the open file.

SQLite continues to write to a file that was deleted or replaced, and those writes are lost.
"""

from __future__ import annotations

import os
from pathlib import Path

from headway.core.errors import StoreUnavailable


class FileIdentity:
    """Records the identity of the open files. A check costs two system calls."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, tuple[int, int]] = {}

    def note(self) -> None:
        """Record the files that are at the path now as the open ones."""
        path = os.path.abspath(self._path)  # The process may change its folder.
        self._files = (path, f"{path}-wal")
        self._known = {}
        self.check()

    def check(self) -> None:
        """Raise ``StoreUnavailable`` if the file or its log is gone or another one has its place."""
        for file in self._files:
            try:
                found = os.stat(file)
            except FileNotFoundError:
                if file in self._known:
                    raise self._lost(file, "deleted") from None
                continue  # A log comes with the first write.
            identity = found.st_dev, found.st_ino
            if self._known.setdefault(file, identity) != identity:
                raise self._lost(file, "replaced")

    def _lost(self, file: str, how: str) -> StoreUnavailable:
        return StoreUnavailable(
            f"{file} was {how} while it was open; nothing is accepted into it any more. Put the file back, or restart "
            "this process to use what is there now",
            path=str(self._path),
        )
