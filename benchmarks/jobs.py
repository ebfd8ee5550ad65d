"""The measured jobs, the same for every contender. They count themselves in shared memory, which takes 0.2 µs each."""

from __future__ import annotations

import asyncio
import mmap
import os
import struct
import threading
import time
from typing import Any

TEXT = "x" * 40
NAP = 0.05  # Seconds.
FIELDS = struct.Struct("qqq")  # Jobs done, when the first nap began, when the last one ended (monotonic ns).

_lock = threading.Lock()
_numbers: Any = None
_stamps: int | None = None


def noop(number: int, text: str) -> int:
    _count()
    return number


async def async_noop(number: int, text: str) -> int:
    _count()
    return number


def nap() -> None:
    began = time.monotonic_ns()
    time.sleep(NAP)
    _count(began)


async def async_nap() -> None:
    began = time.monotonic_ns()
    await asyncio.sleep(NAP)
    _count(began)


def stamp(sent_ns: int) -> None:
    """Record how long after its submission the job began."""
    late = time.time_ns() - sent_ns
    global _stamps
    if _stamps is None:
        _stamps = os.open(os.environ["BENCH_STAMPS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(_stamps, struct.pack("q", late))
    _count()


async def async_stamp(sent_ns: int) -> None:
    stamp(sent_ns)


def _count(began: int = 0) -> None:
    numbers = _numbers or _open()
    with _lock:
        numbers[0] += 1
        if began:
            numbers[1] = numbers[1] or began
            numbers[2] = time.monotonic_ns()


def _open() -> Any:
    """Open a file for this process's own counters, which the benchmark reads."""
    global _numbers
    with _lock:
        if _numbers is None:
            with open(f"{os.environ['BENCH_COUNTS']}/{os.getpid()}", "w+b") as file:
                file.truncate(FIELDS.size)
                _numbers = memoryview(mmap.mmap(file.fileno(), FIELDS.size)).cast("q")
    return _numbers


def _forget() -> None:
    global _numbers, _lock
    _numbers, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)
