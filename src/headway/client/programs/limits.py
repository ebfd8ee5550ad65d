"""The limits of a program."""

from __future__ import annotations

from typing import NamedTuple


class Limits(NamedTuple):
    """CPU seconds and bytes of memory for each process, and bytes for all output together."""

    cpu: int | None
    memory: int | None
    output: int
