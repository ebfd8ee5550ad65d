"""Job ids: UUID version 7, made by the client, so that a repeated submit is recognised."""

from __future__ import annotations

import os
import time

from headway.core.job import JobId

_VARIANT = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))  # The digit that tells the kind of a UUID.
_DIGITS = 20
_DRAWN = 128

# Random digits drawn beforehand: to ask the system for each id would cost more than all the rest of it.
_chances: list[str] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_chances.clear)  # A child would make the ids its parent makes.


def new_job_id() -> JobId:
    """Make an id that sorts by time: 48 bits of milliseconds, then random bits."""
    moment = f"{time.time_ns() // 1_000_000:012x}"
    try:
        chance = _chances.pop()
    except IndexError:  # Also if another thread took the last one just now.
        digits = os.urandom(_DIGITS // 2 * _DRAWN).hex()
        _chances.extend(digits[at : at + _DIGITS] for at in range(_DIGITS, len(digits), _DIGITS))
        chance = digits[:_DIGITS]
    return JobId(f"{moment[:8]}-{moment[8:]}-7{chance[:3]}-{_VARIANT[chance[3]]}{chance[4:7]}-{chance[7:19]}")
