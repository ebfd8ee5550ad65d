"""The disk: the number of durable writes per second."""

from __future__ import annotations

import os
import time
from pathlib import Path

ROUNDS = 500


def bare_disk(folder: Path) -> dict[str, float]:
    descriptor = os.open(folder / "disk", os.O_CREAT | os.O_WRONLY, 0o600)
    page = b"x" * 8192
    began = time.perf_counter()
    for number in range(ROUNDS):
        os.pwrite(descriptor, page, number % 64 * len(page))
        os.fdatasync(descriptor)
    lasted = time.perf_counter() - began
    os.close(descriptor)
    return {"disk, 8 KiB write and fdatasync": ROUNDS / lasted}
