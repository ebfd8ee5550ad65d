"""Job ids: UUID version 7, made by the client, so that a repeated submit is recognised."""

from __future__ import annotations

import os
import time

from headway.core.job import JobId

_VARIANT = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))  # The digit that tells the kind of a UUID.


def new_job_id() -> JobId:
    """Make an id that sorts by time: 48 bits of milliseconds, then random bits."""
    moment = f"{time.time_ns() // 1_000_000:012x}"
    chance = os.urandom(10).hex()
    return JobId(f"{moment[:8]}-{moment[8:]}-7{chance[:3]}-{_VARIANT[chance[3]]}{chance[4:7]}-{chance[7:19]}")
