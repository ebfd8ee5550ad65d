"""Real workers: for every outcome of tasks, the counts are right meanwhile and zero at the end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from celery import Celery  # type: ignore[import-untyped]

from headway.integrations.celery import (
    Balancer,
    balancer_of,
    enqueue_bulk,
    get_all_queue_loads,
    increment_running,
)
from tests.integrations.celery.conftest import MakeApp
from tests.integrations.celery.project import make_app
from tests.integrations.celery.workers import StartWorker, eventually, lines, times
from tests.servers import Valkey

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def totals() -> tuple[int, int]:
    """Return the waiting and running tasks of all queues."""
    loads = get_all_queue_loads().values()
    return sum(pending for pending, _ in loads), sum(running for _, running in loads)


def rest(balancer: Balancer, shown: Path | None = None) -> None:
    """Wait until no task waits or runs, and check that none was lost."""
    eventually(lambda: totals() == (0, 0), "rest", lambda: (get_all_queue_loads(), balancer.ledger.figures()))
    assert balancer.ledger.check() == 0
    tally = balancer.ledger.figures().tally
    assert (tally.get("dropped", 0), tally.get("adopted", 0)) == (0, 0), tally


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_every_outcome_is_counted_once(
    app: Celery, balancer: Balancer, start_worker: StartWorker, tmp_path: Path, server: Valkey, pool: str
) -> None:
    # R4.6, R4.14, R4.15, R4.16, R4.35, R4.37
    worker = start_worker(pool=pool, concurrency=2).ready()
    task = {name.removeprefix("project."): value for name, value in app.tasks.items()}
    gate = tmp_path / "gate"
    for _ in range(10):  # Celery fetches four for each slot; what comes later stays in the broker.
        task["hold"].delay(str(gate))
    eventually(lambda: totals() == (8, 2), "two tasks run", lambda: (totals(), worker.log))
    eventually(lambda: server.ask("HLEN", "unacked") == b":8\r\n", "eight are fetched", lambda: worker.log)
    # Some of these will never run.
    revoked = [task["note"].delay(str(tmp_path / "never"), "revoked") for _ in range(3)]
    for _ in range(2):
        task["note"].apply_async((str(tmp_path / "never"), "expired"), expires=0.001)
    app.send_task("project.unheard_of")
    for name in ("fail", "ignore"):
        for _ in range(3):
            task[name].delay()
    task["again"].delay(str(tmp_path / "again"), 2)
    task["reject"].delay(str(tmp_path / "rejected"), False)
    task["reject"].delay(str(tmp_path / "requeued"), True)
    added = task["add"].delay(1, 2)
    assert totals() == (24, 2)
    app.control.revoke([result.id for result in revoked])
    eventually(lambda: "flagged as revoked" in worker.log, "the worker hears of it", lambda: worker.log)
    gate.touch()
    assert added.get(timeout=60) == 3
    eventually(lambda: len(lines(tmp_path / "again")) == 3, "retries", lambda: worker.log)
    eventually(lambda: lines(tmp_path / "requeued") == ["rejected", "back"], "what was rejected", lambda: worker.log)
    rest(balancer)
    assert not (tmp_path / "never").exists()
    assert lines(tmp_path / "rejected") == ["rejected"]
    tally = balancer.ledger.figures().tally
    assert tally["revoked"] == 5
    assert tally["discarded"] == 1
    assert tally["started"] == tally["finished"]
    worker.stop()
    assert balancer.ledger.figures().nodes == {}
    assert "celery.drift" not in worker.log


class Evil:
    """An object that creates a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_a_pickled_message_is_refused_and_counted_off(
    app: Celery, balancer: Balancer, start_worker: StartWorker, tmp_path: Path, server: Valkey, broker: str
) -> None:
    # S-36: whatever is in a message's body, neither a worker nor the ledger unpickles it.
    stranger = make_app(broker, None)
    sent = {"queue": "queue_3", "serializer": "pickle", "ignore_result": True}
    stranger.tasks["project.note"].apply_async((Evil(tmp_path / "evil"), "x"), **sent)
    stranger.close()
    assert balancer.reconcile().adopted == 1  # The ledger reads the message's headers, and counts it.
    assert get_all_queue_loads()["queue_3"] == (1, 0)
    worker = start_worker(pool="threads", concurrency=1).ready()
    eventually(lambda: "untrusted content" in worker.log, "it is refused", lambda: worker.log)
    assert app.tasks["project.add"].delay(1, 2).get(timeout=60) == 3
    eventually(lambda: totals() == (0, 0), "rest", lambda: (totals(), worker.log))
    assert server.ask("HLEN", "unacked") == b":0\r\n"
    assert not (tmp_path / "evil").exists()


def test_killed_processes_leave_nothing_running(
    app: Celery, balancer: Balancer, start_worker: StartWorker, tmp_path: Path, server: Valkey
) -> None:
    # R4.36, R4.35: a child by its own hand, one by revoke, then a whole worker.
    first = start_worker(more=("--prefetch-multiplier", "1")).ready()
    second = start_worker(more=("--prefetch-multiplier", "1")).ready()
    app.tasks["project.die"].delay()
    doomed = app.tasks["project.hold"].delay(str(tmp_path / "doomed"))
    # It may have died before anybody was told that it had begun.
    eventually(lambda: totals() == (0, 1), "one is dead", lambda: first.log + second.log)
    eventually(lambda: len(lines(tmp_path / "doomed.began")) == 1, "the task runs")
    app.control.revoke(doomed.id, terminate=True, signal="SIGKILL")
    rest(balancer)
    path = tmp_path / "lost"
    for _ in range(8):
        app.tasks["project.hold"].delay(str(path))
    eventually(lambda: totals() == (4, 4), "four tasks run", lambda: (totals(), first.log, second.log))
    first.kill()
    eventually(lambda: totals() == (4, 2), "the dead worker's tasks end", totals)
    path.touch()
    # What it had fetched and not begun still waits: the broker will hand it out again, in an hour by default.
    eventually(lambda: totals() == (int(server.ask("HLEN", "unacked")[1:]), 0), "rest", totals)
    assert totals()[0] <= 2
    assert balancer.ledger.figures().tally["lost"] in (2, 3)
    assert balancer.ledger.check() == 0


def test_what_a_dead_worker_held_waits_again_and_is_run_again(
    make: MakeApp, start_worker: StartWorker, tmp_path: Path, server: Valkey
) -> None:
    # R4.37: late acknowledgement, so the broker hands the task out again.
    conf = {
        "task_acks_late": True,
        "broker_transport_options": {
            "visibility_timeout": 6, "unacked_restore_interval": 1, "unacked_restore_throttle": 1,
        },
    }  # fmt: skip
    app = make(conf=conf)
    first = start_worker(conf=conf, concurrency=1).ready()
    path = tmp_path / "gate"
    app.tasks["project.hold"].delay(str(path))
    eventually(lambda: totals() == (0, 1), "it runs", lambda: first.log)
    first.kill()
    second = start_worker(conf=conf, concurrency=1).ready()
    path.touch()
    eventually(lambda: len(lines(tmp_path / "gate.began")) == 2, "it runs again", lambda: (totals(), second.log))
    ledger = balancer_of(app).ledger
    eventually(lambda: ledger.figures().tally.get("finished") == 1, "rest", lambda: (totals(), second.log))
    assert totals() == (0, 0)
    tally = ledger.figures().tally
    assert tally["lost"] == 1
    assert tally["started"] == tally["finished"] + tally["lost"] == 2
    assert balancer_of(app).ledger.check() == 0


def test_a_broker_that_is_restarted_changes_nothing(make: MakeApp, start_worker: StartWorker, tmp_path: Path) -> None:
    # R4.32, R4.38
    own = Valkey(tmp_path / "own", 'save ""', "appendonly yes", "appendfsync always")
    own.start()
    try:
        app = make(f"{own.url}/0")
        for number in range(10):
            app.tasks["project.note"].delay(str(tmp_path / "notes"), str(number))
        own.kill()
        own.start()
        assert totals() == (10, 0)
        worker = start_worker(broker=f"{own.url}/0", pool="threads").ready()
        eventually(lambda: len(lines(tmp_path / "notes")) == 10, "the tasks run", lambda: worker.log)
        path = tmp_path / "gate"
        for _ in range(2):
            app.tasks["project.hold"].delay(str(path))
        eventually(lambda: totals() == (0, 2), "two tasks run", lambda: worker.log)
        own.kill()
        path.touch()  # They end while the store is away.
        eventually(lambda: worker.log.count("succeeded") == 12, "they end", lambda: worker.log)
        own.start()
        eventually(lambda: totals() == (0, 0), "rest", lambda: (get_all_queue_loads(), worker.log))
        assert balancer_of(app).ledger.check() == 0
        worker.kill()
    finally:
        own.kill()


def test_one_users_thousand_tasks_do_not_block_others(
    app: Celery, balancer: Balancer, start_worker: StartWorker, tmp_path: Path
) -> None:
    # R4.1, R4.22, R4.41: a worker with Celery's own settings. Tasks of A take 50 ms; two run at a time.
    path, length = tmp_path / "order", 0.05
    nap = app.tasks["project.nap"]
    enqueue_bulk(nap.s(str(path), "A", length) for _ in range(1_000))
    worker = start_worker(pool="threads").ready()
    eventually(lambda: len(lines(path)) >= 10, "A's tasks run", lambda: worker.log)
    sent_after = len(lines(path))
    nap.delay(str(path), "B", length)
    eventually(lambda: "B" in lines(path), "B's task runs", lambda: worker.log)
    order = [text for _, text in times(path)]
    # Two run and eight are on their way to the worker (Celery fetches four for each slot); one more may be between.
    assert order.index("B") - sent_after <= 16
    worker.kill()


def test_a_worker_reads_only_some_queues_and_the_others_are_not_chosen(
    make: MakeApp, start_worker: StartWorker, tmp_path: Path
) -> None:
    # R4.31, R4.42: a worker with fewer queues than before drains what there is in the others.
    app = make(queues=6)
    for number in range(6):
        app.tasks["project.note"].delay(str(tmp_path / "notes"), str(number))
    worker = start_worker(pool="threads", options={"queues": 4}).ready()
    eventually(lambda: len(lines(tmp_path / "notes")) == 6, "all tasks run", lambda: worker.log)
    assert "celery.draining" in worker.log
    eventually(lambda: totals() == (0, 0), "rest", totals)
    worker.stop()
    some = start_worker(pool="threads", more=("-Q", "queue_1,queue_2")).ready()
    eventually(lambda: bool(balancer_of(app).unread_queues()), "the worker is known", lambda: some.log)
    assert balancer_of(app).unread_queues() == ["queue_0", "queue_3", "queue_4", "queue_5"]
    for number in range(6):
        app.tasks["project.note"].delay(str(tmp_path / "more"), str(number))
    eventually(lambda: len(lines(tmp_path / "more")) == 6, "all tasks run", lambda: some.log)
    increment_running("queue_1")
    app.tasks["project.note"].apply_async((str(tmp_path / "more"), "x"), queue="queue_0")
    eventually(lambda: "celery.stranded" in some.log, "what nobody reads is told", lambda: some.log)
    some.kill()


def test_signals_are_not_lost_in_silence(balancer: Balancer) -> None:
    # R4.32
    from celery import signals

    assert balancer.runs.connected()
    receivers: Any = signals.task_prerun.receivers
    kept = list(receivers)
    try:
        receivers.clear()
        assert not balancer.runs.connected()
    finally:
        receivers[:] = kept
