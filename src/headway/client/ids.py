"""Job ids: UUID version 7, made by the client, so that a repeated submit is recognised."""

from __future__ import annotations

import os
import time

from headway.core.job import JobId

_VERSION_7 = 7 << 76
_VARIANT = 2 << 62
_RANDOM_A = (1 << 12) - 1
_RANDOM_B = (1 << 62) - 1


def new_job_id() -> JobId:
    """Make an id that sorts by time: 48 bits of milliseconds, then random bits."""
    chance = int.from_bytes(os.urandom(10))
    number = (
        (time.time_ns() // 1_000_000) << 80
        | _VERSION_7
        | (chance >> 64 & _RANDOM_A) << 64
        | _VARIANT
        | chance & _RANDOM_B
    )
    text = f"{number:032x}"
    return JobId(f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}")
