"""Reconciling the ledger with the broker: it drops counts without a message, and adopts messages without a count."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery  # type: ignore[import-untyped]
from kombu import pools

from headway.integrations.celery import Balancer, balancer_of, enqueue_bulk, get_all_queue_loads, get_queue_load
from headway.integrations.celery.ledger import TaskRun, lease_of
from headway.integrations.celery.metrics import metrics_text
from headway.integrations.celery.reconcile import BrokerScan, Reconciler, ReconcileReport
from tests.integrations.celery.conftest import MakeApp
from tests.integrations.celery.project import make_app
from tests.servers import Valkey

CLEAN = ReconcileReport(drift=0, dropped=0, adopted=0, stranded=())


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.integrations.celery.reconcile.PAUSE", 0.0)
    monkeypatch.setattr("headway.integrations.celery.reconcile.GRACE_MS", 0)


def pending() -> int:
    return sum(waiting for waiting, _ in get_all_queue_loads().values())


def test_a_true_ledger_is_left_alone(app: Celery, balancer: Balancer) -> None:
    # R4.38
    for number in range(30):
        app.tasks["project.add"].apply_async((number, 1), priority=number % 10)
    app.tasks["project.add"].apply_async((1, 1), countdown=60)
    assert balancer.reconcile() == CLEAN
    assert pending() == 31


def test_what_is_gone_from_the_broker_is_dropped(app: Celery, balancer: Balancer, server: Valkey) -> None:
    # R4.35, R4.38: a purge, as an example.
    for _ in range(40):
        app.tasks["project.add"].delay(1, 1)
    server.ask("DEL", "queue_3")
    assert balancer.reconcile() == CLEAN._replace(dropped=2)
    app.control.purge()
    assert balancer.reconcile() == CLEAN._replace(dropped=38)
    assert pending() == 0
    assert balancer.ledger.check() == 0


def test_what_nobody_counted_is_adopted(broker: str, app: Celery, balancer: Balancer) -> None:
    # R4.32, R4.43: a producer without install.
    bare = make_app(broker, None)
    bare.tasks["project.add"].apply_async((1, 1), queue="queue_5")
    bare.tasks["project.add"].apply_async((1, 1), queue="celery")
    assert pending() == 0
    assert balancer.reconcile() == CLEAN._replace(adopted=1)
    assert get_queue_load("queue_5") == (1, 0)
    assert balancer.reconcile() == CLEAN


def test_what_workers_hold_waits(app: Celery, balancer: Balancer, server: Valkey) -> None:
    # R4.37
    app.tasks["project.add"].delay(1, 1)
    text = server.ask("RPOP", "queue_0").split(b"\r\n", 1)[1].removesuffix(b"\r\n").decode()
    server.ask("HSET", "unacked", "tag", f'[{text}, "", "queue_0"]')
    assert balancer.reconcile() == CLEAN
    balancer.ledger.uncount([member for member, _ in balancer.ledger.waiting("queue_0")], "lost")
    assert balancer.reconcile() == CLEAN._replace(adopted=1)
    assert get_queue_load("queue_0") == (1, 0)
    server.ask("DEL", "unacked")
    assert balancer.reconcile() == CLEAN._replace(dropped=1)


def test_what_runs_and_is_not_acknowledged_does_not_wait(app: Celery, balancer: Balancer, server: Valkey) -> None:
    # R4.37: late acknowledgement.
    app.tasks["project.add"].delay(1, 1)
    [(member, _)] = balancer.ledger.waiting("queue_0")
    text = server.ask("RPOP", "queue_0").split(b"\r\n", 1)[1].removesuffix(b"\r\n").decode()
    server.ask("HSET", "unacked", "tag", f'[{text}, "", "queue_0"]')
    balancer.ledger.start(TaskRun(lease_of(member, "node"), "queue_0", "x"))
    assert balancer.reconcile() == CLEAN
    assert get_queue_load("queue_0") == (0, 1)


def test_one_look_is_not_believed(balancer: Balancer) -> None:
    looks = iter([BrokerScan({"a/0": "queue_0"}, {"b/0": ("queue_1", "t")}), BrokerScan({}, {})])

    class Changing:
        def scan(self, loads: object) -> BrokerScan:
            return next(looks)

    assert Reconciler(balancer.ledger, balancer.rules, Changing()).run() == CLEAN
    assert pending() == 0


def test_numbers_that_somebody_wrote_are_written_anew(app: Celery, balancer: Balancer, server: Valkey) -> None:
    # R4.38, R4.45
    app.tasks["project.add"].delay(1, 1)
    server.ask("SET", "queue:queue_0:pending", "500")
    assert balancer.ledger.check() == 1
    assert "headway_celery_drift 1" in metrics_text(balancer.ledger, balancer.rules.names)
    assert balancer.reconcile().drift == 1
    assert server.ask("GET", "queue:queue_0:pending") == b"$1\r\n1\r\n"
    assert "headway_celery_drift 0" in metrics_text(balancer.ledger, balancer.rules.names)


def test_many_messages_are_read_in_pages(app: Celery, balancer: Balancer, server: Valkey) -> None:
    # R4.28
    enqueue_bulk((app.tasks["project.ignore"].s() for _ in range(250)), bulk="together")
    server.ask("LPOP", "queue_0")
    server.ask("RPOP", "queue_0")
    assert balancer.reconcile() == CLEAN._replace(dropped=2)


def test_a_key_prefix_of_the_broker_is_respected(make: MakeApp, server: Valkey) -> None:
    app = make(conf={"broker_transport_options": {"global_keyprefix": "shop:"}})
    app.tasks["project.add"].delay(1, 1)
    assert server.ask("GET", "shop:queue:queue_0:pending") == b"$1\r\n1\r\n"
    assert server.ask("LLEN", "shop:queue_0") == b":1\r\n"
    assert balancer_of(app).reconcile() == CLEAN


@pytest.fixture
def other(server: Valkey, tmp_path: Path) -> Iterator[Celery]:
    """Yield an app whose broker is not a Redis server, as with RabbitMQ. Files replace the broker."""
    folder = tmp_path / "broker"
    folder.mkdir()
    conf = {
        "broker_transport_options": {
            "data_folder_in": str(folder),
            "data_folder_out": str(folder),
            "control_folder": str(folder / "control"),
        },
        "result_backend": None,
    }
    app = make_app("filesystem://", {"store": f"{server.url}/3"}, conf)
    app.set_current()
    yield app
    balancer_of(app).ledger.close()
    pools.reset()  # type: ignore[no-untyped-call]


def test_other_brokers_have_their_ledger_on_redis(other: Celery, server: Valkey) -> None:
    for _ in range(40):
        other.tasks["project.ignore"].delay()
    balancer = balancer_of(other)
    assert balancer.post is None
    assert pending() == 40
    assert balancer.reconcile() == CLEAN
    other.control.purge()
    assert balancer.reconcile() == CLEAN._replace(dropped=40)


def test_what_workers_of_other_brokers_hold_is_not_dropped(other: Celery) -> None:
    for _ in range(20):
        other.tasks["project.ignore"].delay()
    balancer = balancer_of(other)
    held = [member for member, _ in balancer.ledger.waiting("queue_4")]
    other.control.purge()
    balancer.ledger.renew("node", [], lease_ms=60_000, reconcile_ms=60_000, held=held)
    assert balancer.reconcile().dropped == 19
    assert get_queue_load("queue_4") == (1, 0)
