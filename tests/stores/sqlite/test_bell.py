"""Named pipes: an ear that is being opened is never taken for one that is gone."""

from __future__ import annotations

import threading
from pathlib import Path

from headway.core.job import JobId
from headway.stores.base import WATCHER
from headway.stores.sqlite.bell import Bell


def test_ears_open_while_others_ring(tmp_path: Path) -> None:
    store_path, stop = tmp_path / "headway.db", threading.Event()
    job_id = JobId("00000000-0000-0000-0000-000000000001")

    def ring() -> None:
        bell = Bell(store_path)
        while not stop.is_set():
            bell.ring_watchers([job_id])

    ringers = [threading.Thread(target=ring) for _ in range(2)]
    for ringer in ringers:
        ringer.start()
    try:
        bell = Bell(store_path)
        for number in range(500):
            bell.listen(f"{WATCHER}{number}").close()
    finally:
        stop.set()
        for ringer in ringers:
            ringer.join()
    assert list((tmp_path / "headway.db-wake").iterdir()) == []
