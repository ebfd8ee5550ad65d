"""Job ids: UUID version 7, made by the client, so that a repeated submit is recognised."""

from __future__ import annotations

import os
import time

from headway.core.job import JobId

_VARIANT = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))  # Random digit to UUID variant digit.
_DIGITS = 20
_DRAWN = 128

# Random ends of ids, drawn in batches. A system call for each id would cost more than all other work on it.
_ends: list[str] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_ends.clear)  # A child would make the same ids as its parent.
_begun = 0, ""  # The last millisecond in which an id was made, and how ids of that millisecond begin.


def new_job_id() -> JobId:
    """Return a new id that sorts by time: 48 bits of milliseconds, then random bits."""
    global _begun
    now_ms = time.time_ns() // 1_000_000
    known_ms, begin = _begun
    if now_ms != known_ms:
        moment = f"{now_ms:012x}"
        begin = f"{moment[:8]}-{moment[8:]}-7"
        _begun = now_ms, begin
    try:
        return JobId(begin + _ends.pop())
    except IndexError:  # Also if another thread took the last one just now.
        end, *others = _draw()
        _ends.extend(others)
        return JobId(begin + end)


def _draw() -> list[str]:
    digits = os.urandom(_DIGITS // 2 * _DRAWN).hex()
    drawn = (digits[at : at + _DIGITS] for at in range(0, len(digits), _DIGITS))
    return [f"{some[:3]}-{_VARIANT[some[3]]}{some[4:7]}-{some[7:19]}" for some in drawn]
