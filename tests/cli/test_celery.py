"""``headway celery``: an operator's view of the queues of a Celery app."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator

import pytest
from celery import Celery  # type: ignore[import-untyped]

from headway.cli import celery as command
from headway.cli.main import main
from headway.integrations.celery import balancer_of
from tests.integrations.celery.conftest import close
from tests.integrations.celery.project import make_app
from tests.servers import Valkey

PATH = "tests.integrations.celery.project"


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    server = Valkey(tmp_path_factory.mktemp("celery"), 'save ""')
    server.start()
    yield server
    server.kill()


@pytest.fixture
def app(server: Valkey) -> Iterator[Celery]:
    """Yield an app with three waiting tasks of two users."""
    app = make_app(f"{server.url}/0", {"by": "user_id"})
    for user in ("ada", "ada", "bob"):
        app.tasks["project.note"].delay("path", "text", user_id=user)
    yield app
    close(app)


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    capsys.readouterr()
    code = main(["celery", *words])
    return code, capsys.readouterr().out


def test_top_shows_queues_users_and_drift(app: Celery, server: Valkey, capsys: pytest.CaptureFixture[str]) -> None:
    # R4.26
    code, shown = said(capsys, "top", "--store", f"{server.url}/0", "--once")
    assert code == 0
    assert "drift 0" in shown
    assert "ada 2  bob 1" in shown
    assert len(re.findall(r"queue_\d+ +1 +0 ", shown)) == 3


def test_top_as_json(app: Celery, server: Valkey, capsys: pytest.CaptureFixture[str]) -> None:
    code, shown = said(capsys, "top", "--store", f"{server.url}/0", "--json")
    values = json.loads(shown)
    assert (code, values["users"], values["drift"]) == (0, {"ada": 2, "bob": 1}, 0)
    assert sum(queue["pending"] for queue in values["queues"]) == 3
    assert values["totals"]["counted"] == 3


def test_metrics_are_printed_and_served(app: Celery, server: Valkey, capsys: pytest.CaptureFixture[str]) -> None:
    # R4.45
    code, shown = said(capsys, "metrics", "--store", f"{server.url}/0")
    assert code == 0
    assert "headway_celery_drift 0\n" in shown
    assert "headway_celery_counted_total 3\n" in shown
    ledger = balancer_of(app).ledger
    command.serve(ledger, ["queue_0"], "127.0.0.1", 0)
    [address] = capsys.readouterr().out.split()
    with urllib.request.urlopen(address) as reply:
        assert b'headway_celery_pending{queue="queue_0"}' in reply.read()


def test_repair_and_reset(
    app: Celery, server: Valkey, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # R4.13, R4.48
    monkeypatch.setattr(f"{PATH}.app", app, raising=False)
    assert said(capsys, "repair", f"{PATH}:app") == (0, "drift 0, dropped 0, adopted 0\n")
    server.ask("SET", "queue:queue_0:running", "7")
    assert main(["celery", "reset", f"{PATH}:app"]) == 2
    assert main(["celery", "reset", f"{PATH}:app", "--yes"]) == 0
    assert server.ask("GET", "queue:queue_0:running") == b"$1\r\n0\r\n"


def test_what_is_called_wrongly(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["celery", "top"]) == 2
    assert main(["celery", "top", "--store", "redis+cluster://a,b"]) == 2
    assert main(["celery", "check", "no_such_module"]) == 2
    assert main(["celery", "repair", "no_such_module"]) == 2
    assert "name a Celery app" in capsys.readouterr().err
