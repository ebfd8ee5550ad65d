"""What came out of a program."""

from __future__ import annotations

import msgspec

from headway.client.programs.files import File


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """What a program wrote: its files by name, sorted, and its words. ``seconds``: how long it ran.

    The files are ``bytes``; bytes of ``stdout`` and ``stderr`` that are no UTF-8 were replaced.
    """

    exit_code: int
    stdout: str
    stderr: str
    files: dict[str, File]
    seconds: float
