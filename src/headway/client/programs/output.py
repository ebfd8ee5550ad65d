"""The output of a program."""

from __future__ import annotations

from pathlib import Path

import msgspec

from headway.client.programs.files import File

TAIL_MAX = 64 << 10  # Bytes kept of each stream of a failed program if its output is too large to store.


class Artifact(msgspec.Struct, frozen=True, kw_only=True):
    """An output file of a program, which the worker moved to the artifacts folder. ``size`` is in bytes."""

    path: str
    size: int
    sha256: str

    def read_bytes(self) -> bytes:
        """Return the content of the file. The artifacts folder must be mounted on this machine."""
        return Path(self.path).read_bytes()


class Output(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The output of a program: its streams, and its files sorted by name. ``seconds`` is the run time.

    The files are ``bytes``. Bytes of ``stdout`` and ``stderr`` that are not UTF-8 were replaced. ``artifacts`` replaces
    ``files`` if the command has an artifacts folder. ``cut`` is true if the output was too large and was shortened.
    """

    exit_code: int
    stdout: str
    stderr: str
    files: dict[str, File]
    seconds: float
    artifacts: dict[str, Artifact] = {}
    cut: bool = False

    def size(self) -> int:
        """Return the size of this output as a stored result, in bytes."""
        return len(msgspec.json.encode(self, enc_hook=lambda file: file.model_dump()))

    def cut_to(self, largest: int) -> Output:
        """Return the part of this output that a store can keep: the ends of both streams, then the smallest files."""
        if self.size() <= largest:
            return self
        tail = min(TAIL_MAX, largest // 16)  # JSON may need six bytes for one.
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
