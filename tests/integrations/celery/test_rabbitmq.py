"""RabbitMQ from Debian's package as the broker, with the ledger on Redis."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery  # type: ignore[import-untyped]
from kombu import pools

from headway.integrations.celery import balancer_of, enqueue_bulk, get_all_queue_loads
from headway.integrations.celery.reconcile import ReconcileReport
from tests.integrations.celery.project import make_app
from tests.integrations.celery.workers import FAST, CeleryWorker, eventually
from tests.servers import Valkey, free_port

pytestmark = pytest.mark.proof

CLEAN = ReconcileReport(drift=0, dropped=0, adopted=0, stranded=())


class RabbitMQ:
    """A broker of its own on loopback."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}//"
        name = f"headway{self.port}@localhost"
        self._environment = os.environ | {
            "HOME": str(folder),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": name,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
        }
        self._log = folder / "out.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        began = len(self.said)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                ["/usr/lib/rabbitmq/bin/rabbitmq-server"],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        eventually(lambda: "completed with" in self.said[began:], "the broker", lambda: self.said)

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def kill(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


@pytest.fixture
def rabbit(tmp_path: Path) -> Iterator[RabbitMQ]:
    if shutil.which("rabbitmq-server") is None:
        pytest.skip("RabbitMQ is not installed here (Debian: rabbitmq-server)")
    folder = tmp_path / "rabbit"
    folder.mkdir()
    broker = RabbitMQ(folder)
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture
def options(server: Valkey) -> dict[str, Any]:
    return FAST | {"store": f"{server.url}/3"}


@pytest.fixture
def app(rabbit: RabbitMQ, options: dict[str, Any]) -> Iterator[Celery]:
    app = make_app(rabbit.url, options, {"result_backend": None})
    app.set_current()
    yield app
    balancer_of(app).ledger.close()
    pools.reset()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_the_ledger_stays_true_beside_rabbitmq(
    app: Celery, rabbit: RabbitMQ, options: dict[str, Any], tmp_path: Path, pool: str
) -> None:
    # R4.34, R4.35, R4.36, R4.37, R4.38: revoked, failing, killed, and a broker that is killed too.
    balancer, task = balancer_of(app), app.tasks
    ledger = balancer.ledger
    conf = {"result_backend": None, "task_acks_late": True, "worker_proc_alive_timeout": 60}

    def start(name: str) -> CeleryWorker:
        return CeleryWorker(rabbit.url, tmp_path, pool=pool, name=name, options=options, conf=conf).ready()

    def totals() -> tuple[int, int]:
        loads = get_all_queue_loads().values()
        return sum(pending for pending, _ in loads), sum(running for _, running in loads)

    for number in range(400):
        task["project.fail" if number % 20 == 0 else "project.ignore"].delay()
    enqueue_bulk([task["project.ignore"].s() for _ in range(400)])
    revoked = task["project.ignore"].apply_async(countdown=5)
    assert totals() == (801, 0)
    assert balancer.reconcile() == CLEAN
    workers = [start("first"), start("second")]
    app.control.revoke(revoked.id)
    try:
        eventually(lambda: ledger.figures().tally.get("finished", 0) > 100, "some are done", totals)
        workers[0].kill()
        workers[0] = start("third")
        eventually(lambda: totals() == (0, 0), "rest", lambda: (totals(), workers[0].log[-2_000:]))
        rabbit.kill()
        rabbit.start()
        for _ in range(200):
            task["project.ignore"].delay()
        eventually(lambda: totals() == (0, 0), "rest after the broker's death", lambda: (totals(), workers[0].log))
        time.sleep(2 * float(FAST["reconcile"]))
        assert totals() == (0, 0)
        assert ledger.check() == 0
        tally = ledger.figures().tally
        assert tally["revoked"] == 1
        print(f"{pool}: {tally}")
    finally:
        for worker in workers:
            worker.kill()
