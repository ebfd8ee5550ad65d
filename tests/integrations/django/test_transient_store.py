"""A Redis for the transient jobs of a Django project, between processes that share its address and key."""

# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false
# (Django brings no types.)

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from headway.integrations.django.models import IOJob
from tests.integrations.django.conftest import ROOT, Workers, either, ended, table, wait_until
from tests.integrations.django.shop import tasks
from tests.integrations.django.shop.models import Order
from tests.servers import Valkey

pytestmark = [pytest.mark.xdist_group("django"), pytest.mark.slow, either]

SETTINGS = "tests.integrations.django.settings_redis"
SCRIPT = """
import json, sys
import django
django.setup()
from django.db import transaction
from headway.integrations.django import queue
from tests.integrations.django.shop import tasks

def waiting():
    with transaction.atomic():
        return queue().stats().totals.get("submitted", 0)

order = int(sys.argv[1])
before = waiting()
with transaction.atomic():
    answer = tasks.touch(order)
    inside = waiting() - before
after = waiting() - before
with transaction.atomic():
    tasks.touch(order)
    transaction.set_rollback(True)
print(json.dumps({"answer": answer, "inside": inside, "after": after, "rolled_back": waiting() - before - after}))
"""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Valkey]:
    made = Valkey(tmp_path / "server", 'save ""')
    made.start()
    monkeypatch.setenv("DJANGO_TESTS_REDIS", f"{made.url}/5")
    yield made
    made.kill()


def send(order: Order) -> dict[str, Any]:
    """Send a transient job from another process, in a transaction and in one that is rolled back."""
    said = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(order.pk)],
        check=True,
        capture_output=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "DJANGO_SETTINGS_MODULE": SETTINGS},
        timeout=30,
    )
    found: dict[str, Any] = json.loads(said.stdout.splitlines()[-1])
    return found


def test_transient_jobs_wait_at_redis_for_the_commit_and_for_a_worker(server: Valkey, workers: Workers) -> None:
    # R2.5, R2.8, R2.19, R2.20, R2.46, R2.72
    order = Order.objects.create(article="book")
    assert send(order) == {"answer": None, "inside": 0, "after": 1, "rolled_back": 0}
    assert b"{shop:previews:default}:" in server.ask(
        "EVAL", "redis.call('SELECT', 5); return redis.call('KEYS', '*tr:*')", "0"
    )
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {table('transient')}")
        assert cursor.fetchone()[0] == 0
    worker = workers.start(settings=SETTINGS)
    wait_until(lambda: Order.objects.get(pk=order.pk).handled_by == "touched", worker)
    assert not IOJob.objects.exists()


def test_a_project_goes_on_without_its_redis(server: Valkey, workers: Workers) -> None:
    # R2.1: what is durable is in the database, and needs nothing else.
    worker = workers.start(settings=SETTINGS)
    server.kill()
    assert ended(tasks.add(1), worker).status == "done"
    server.start()
    order = Order.objects.create(article="book")
    send(order)
    wait_until(lambda: Order.objects.get(pk=order.pk).handled_by == "touched", worker)
