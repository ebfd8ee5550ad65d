"""An ear for two stores: whichever rings, it is heard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from headway.core.job import JobId
from headway.stores.base import Ear

HEARD = 60.0  # Seconds of one wait at either ear.
ABSENT = 1.0  # Seconds between looks for a second ear that is not there yet.


class PairedEar:
    """Waits at both ears at once. The second one may come later: until then it is looked for now and then."""

    def __init__(self, first: Ear, find_second: Callable[[], Ear | None]) -> None:
        self._ears: list[Ear] = [first]
        self._find_second = find_second
        self._waits: dict[Ear, asyncio.Task[Sequence[JobId] | None]] = {}
        self._complete()

    async def wait(self, timeout: float) -> Sequence[JobId] | None:
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        while True:
            self._complete()
            left = max(0.0, until - loop.time())
            for ear in self._ears:
                if ear not in self._waits:
                    self._waits[ear] = loop.create_task(_heard(ear))
            patience = left if len(self._ears) > 1 else min(left, ABSENT)
            # Those that go on are not cancelled: what rings between two waits of ours is kept for the next.
            done, _ = await asyncio.wait(
                self._waits.values(), timeout=patience, return_when=asyncio.FIRST_COMPLETED
            )  # fmt: skip
            self._waits = {ear: task for ear, task in self._waits.items() if task not in done}
            heard = [names for task in done if (names := task.result()) is not None]
            if heard:
                return [name for names in heard for name in names] if all(heard) else ()
            if loop.time() >= until:
                return None

    def close(self) -> None:
        for task in self._waits.values():
            task.cancel()
        for ear in self._ears:
            ear.close()

    def _complete(self) -> None:
        if len(self._ears) == 1 and (second := self._find_second()) is not None:
            self._ears.append(second)


async def _heard(ear: Ear) -> Sequence[JobId] | None:
    return await ear.wait(HEARD)
