"""A long run: forty thousand tasks, some revoked or failing, while workers are killed."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest
from celery import Celery  # type: ignore[import-untyped]

from headway.integrations.celery import balancer_of, get_all_queue_loads
from tests.integrations.celery.conftest import MakeApp
from tests.integrations.celery.workers import CeleryWorker, StartWorker
from tests.servers import Valkey

pytestmark = pytest.mark.proof

TASKS = 40_000
PATIENCE = 1_800
CONF = {
    "worker_proc_alive_timeout": 60,
    "broker_transport_options": {
        "visibility_timeout": 15, "unacked_restore_interval": 1, "unacked_restore_throttle": 1,
    },
}  # fmt: skip


def depth(server: Valkey) -> int:
    """Return the number of messages in the broker."""
    lists = sum(int(server.ask("LLEN", f"queue_{number}")[1:]) for number in range(20))
    return lists + int(server.ask("HLEN", "unacked")[1:])


@pytest.mark.parametrize("pool, late", [("prefork", True), ("threads", False)])
def test_after_forty_thousand_tasks_and_random_kills_the_ledger_equals_a_recount(
    make: MakeApp, start_worker: StartWorker, tmp_path: Path, server: Valkey, seed: int, pool: str, late: bool
) -> None:
    # R4.12, R4.28, R4.34, R4.35, R4.36, R4.37, R4.38
    chance = random.Random(seed)
    app = make(conf=CONF)
    balancer = balancer_of(app)

    def start() -> CeleryWorker:
        return start_worker(pool=pool, conf=CONF | {"task_acks_late": late}, level="ERROR")

    workers = [start(), start()]
    sending = threading.Thread(target=_send, args=(app, chance))
    sending.start()
    began = time.monotonic()
    kills = 0
    while sending.is_alive() or depth(server):
        assert time.monotonic() - began < PATIENCE, (depth(server), get_all_queue_loads())
        time.sleep(chance.uniform(3, 9))
        for queue, (pending, running) in get_all_queue_loads().items():
            assert min(pending, running) >= 0, queue
        assert balancer.ledger.check() == 0
        if sending.is_alive():
            workers.pop(0).kill()
            kills += 1
            workers.append(start())
    for worker in workers:
        worker.stop()
    rest_by = time.monotonic() + 120
    while any(map(any, get_all_queue_loads().values())):
        if time.monotonic() > rest_by:
            break
        # The last worker's lease may outlive it; the next process that looks ends it. Here we are the next.
        balancer.ledger.renew("observer", [], lease_ms=60_000, reconcile_ms=60_000)
        balancer.reconcile()
    assert get_all_queue_loads() == {f"queue_{number}": (0, 0) for number in range(20)}
    assert balancer.ledger.check() == 0
    assert kills >= 3
    tally = balancer.ledger.figures().tally
    print(f"{pool}: {kills} kills, {time.monotonic() - began:.0f} s, {tally}")
    assert tally["counted"] == TASKS


def _send(app: Celery, chance: random.Random) -> None:
    """Send all tasks one by one. Revoke one in a hundred, and again at the end, because killed workers forget it."""
    good, bad = app.tasks["project.ignore"], app.tasks["project.fail"]
    revoked: list[str] = []
    for _ in range(TASKS):
        task = bad if chance.random() < 0.05 else good
        result = task.delay()
        if chance.random() < 0.01:
            app.control.revoke(result.id)
            revoked.append(result.id)
    app.control.revoke(revoked)
