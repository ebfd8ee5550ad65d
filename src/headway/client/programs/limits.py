"""What a program may use."""

from __future__ import annotations

from typing import NamedTuple


class Limits(NamedTuple):
    """Seconds of CPU and bytes of memory in each process, bytes of all that comes out."""

    cpu: int | None
    memory: int | None
    output: int
