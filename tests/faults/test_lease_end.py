"""A worker ends its jobs before its leases expire, whichever of its processes stands still."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path

import pytest

from tests.faults.conftest import Yard, alive, children, tree, wait_until
from tests.worker.test_http_backend_live import LossyProxy, Shop


def spans(folder: Path, run: str) -> list[tuple[int, int]]:
    """Return for each process its first and last mark of this job."""
    found: dict[str, list[int]] = {}
    for line in (folder / "marks").read_text().splitlines():
        if line.startswith(f"{run} ") and len(words := line.split()) == 3:
            found.setdefault(words[1], []).append(int(words[2]))
    return sorted((moments[0], moments[-1]) for moments in found.values())


def assert_no_overlap(seen: list[tuple[int, int]]) -> None:
    assert len(seen) == 2
    for (_, end), (start, _) in itertools.pairwise(seen):
        assert end < start, f"both ran for {(end - start) / 1e9:.2f} s"


@pytest.mark.parametrize("task", ["exclusive", "exclusive_blocking", "exclusive_thread", "exclusive_process"])
def test_a_runner_whose_parent_stands_still_ends_before_the_job_begins_elsewhere(yard: Yard, task: str) -> None:
    # W16, W20, R5.57
    job = yard.submit(task, "run", 30.0, timeout=60)
    frozen = yard.start()
    wait_until(lambda: yard.marks("run"))
    processes = tree(frozen.pid)[1:]
    yard.start()
    yard.freeze(frozen, whole_tree=False)
    wait_until(lambda: len(spans(yard.folder, "run")) == 2)
    assert not any(alive(pid) for pid in processes)
    assert_no_overlap(spans(yard.folder, "run"))
    os.kill(frozen.pid, signal.SIGCONT)
    wait_until(lambda: any(alive(pid) for pid in children(frozen.pid)))  # It begins anew.
    assert frozen.running
    job.cancel()


def test_a_worker_whose_server_is_refused_and_then_silent_ends_its_work_in_time(tmp_path: Path) -> None:
    # W20, N1
    shop = Shop(tmp_path)
    shop.serve()
    try:
        with LossyProxy(shop.port) as link:
            pace = ("--heartbeat", "2", "--dead-after", "4")
            cut = shop.start(*pace, HEADWAY_SERVER=f"http://127.0.0.1:{link.port}")
            job = shop.submit("exclusive", "run", 30.0, timeout=60)
            wait_until(lambda: shop.marks("run"))
            link.call(link.proxy.refuse)
            shop.start(*pace)
            wait_until(lambda: any("lease.renewal_failed" in line["event"] for line in shop.events()))
            link.call(link.proxy.go_silent)
            wait_until(lambda: len(spans(shop.folder, "run")) == 2)
            assert_no_overlap(spans(shop.folder, "run"))
            assert cut.wait(30) == 1
            job.cancel()
    finally:
        shop.close()
