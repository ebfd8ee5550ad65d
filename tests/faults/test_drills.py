"""The drills of docs/how-to/operate.md, on real servers, file systems and workers."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from headway.core.errors import StoreError
from tests.faults.conftest import Yard
from tests.servers import Postgres, Valkey

pytestmark = [pytest.mark.proof, pytest.mark.timeout(300)]

REFUSED = 20  # Submits that must be refused before a server starts again.
SERVERS = {
    "valkey": lambda folder: Valkey(folder, "appendonly yes", "appendfsync always"),
    "postgres": lambda folder: Postgres(folder, durable=True),
}


class Load:
    """Submits jobs from a thread of its own, and remembers which ones the store acknowledged."""

    def __init__(self, yard: Yard) -> None:
        self._yard = yard
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acknowledged: list[str] = []
        self.refused: Counter[str] = Counter()

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.01):
            try:
                self.acknowledged.append(self._yard.submit("quick", len(self.acknowledged)).id)
            except StoreError as problem:
                self.refused[problem.code] += 1
