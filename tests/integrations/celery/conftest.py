"""An empty server for broker and ledger, apps on it, and workers that end with the test."""

from __future__ import annotations

import atexit
import functools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery  # type: ignore[import-untyped]
from kombu import pools

from headway.integrations.celery import Balancer, balancer_of
from tests.integrations.celery.project import make_app
from tests.integrations.celery.workers import FAST, CeleryWorker, StartWorker
from tests.servers import Valkey

MakeApp = Callable[..., Celery]


@functools.cache
def _server() -> Valkey:
    server = Valkey(Path(tempfile.mkdtemp(prefix="headway-celery-")), 'save ""')
    server.start()
    atexit.register(server.discard)
    return server


@pytest.fixture
def server() -> Valkey:
    """Return the shared server, emptied."""
    server = _server()
    server.ask("FLUSHALL")
    return server


@pytest.fixture
def broker(server: Valkey) -> str:
    return f"{server.url}/0"


@pytest.fixture
def make(broker: str) -> Iterator[MakeApp]:
    """Yield a function that makes apps with queues. Their connections are closed at the end."""
    made: list[Celery] = []

    def make_one(url: str = broker, conf: dict[str, Any] | None = None, **options: Any) -> Celery:
        app = make_app(url, FAST | options, conf)
        made.append(app)
        app.set_current()
        return app

    yield make_one
    for app in made:
        close(app)


def close(app: Celery) -> None:
    """Close all connections of an app."""
    balancer_of(app).ledger.close()
    pools.reset()  # type: ignore[no-untyped-call] # They are shared by all apps with the same broker.
    backend = app.backend
    consumer = getattr(backend, "result_consumer", None)
    if consumer is not None:
        consumer.stop()
    client = getattr(backend, "client", None)
    if client is not None:
        client.close()
        client.connection_pool.disconnect()
    app.close()


@pytest.fixture
def app(make: MakeApp) -> Celery:
    return make()


@pytest.fixture
def balancer(app: Celery) -> Balancer:
    app.conf.broker_url  # noqa: B018 - lets its settings be read, and so the queues be declared
    return balancer_of(app)


@pytest.fixture
def start_worker(broker: str, tmp_path: Path) -> Iterator[StartWorker]:
    """Yield a function that starts workers on the test's broker."""
    started: list[CeleryWorker] = []

    def start(**more: Any) -> CeleryWorker:
        worker = CeleryWorker(more.pop("broker", broker), tmp_path, name=f"w{len(started)}", **more)
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.kill()
