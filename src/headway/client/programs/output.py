"""What came out of a program."""

from __future__ import annotations

from pathlib import Path

import msgspec

from headway.client.programs.files import File

TAIL_MAX = 64 << 10  # Bytes of each stream that a failed program's output keeps when all of it is too large.


class Artifact(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a program made and that was moved to the artifacts folder. ``size`` is in bytes."""

    path: str
    size: int
    sha256: str

    def read_bytes(self) -> bytes:
        """Return the content of the file. Needs the artifacts folder to be mounted here."""
        return Path(self.path).read_bytes()


class Output(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a program wrote: its files by name, sorted, and its words. ``seconds``: how long it ran.

    The files are ``bytes``; bytes of ``stdout`` and ``stderr`` that are no UTF-8 were replaced. ``artifacts`` replaces
    ``files`` where the command has an artifacts folder. ``cut``: this is what is left of an output that was too large.
    """

    exit_code: int
    stdout: str
    stderr: str
    files: dict[str, File]
    seconds: float
    artifacts: dict[str, Artifact] = {}
    cut: bool = False

    def size(self) -> int:
        """Return the bytes that this takes as a stored result."""
        return len(msgspec.json.encode(self, enc_hook=lambda file: file.model_dump()))

    def cut_to(self, largest: int) -> Output:
        """Return as much of this as a store keeps: the ends of both streams, then the smallest files."""
        if self.size() <= largest:
            return self
        tail = min(TAIL_MAX, largest // 16)  # A byte may take six in JSON.
        kept = msgspec.structs.replace(self, stdout=self.stdout[-tail:], stderr=self.stderr[-tail:], files={}, cut=True)
        if kept.size() > largest:
            kept = msgspec.structs.replace(kept, artifacts={})
        left = largest - kept.size()
        files: dict[str, File] = {}
        for name, file in sorted(self.files.items(), key=lambda item: len(item[1])):
            left -= len(msgspec.json.encode({name: file.model_dump()}))
            if left < 0:
                break
            files[name] = file
        return msgspec.structs.replace(kept, files=dict(sorted(files.items())))
