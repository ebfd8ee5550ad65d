"""Commands that take their store from an app."""

from __future__ import annotations

import pytest

from tests.cli.command import Cli, CommandResult

SHOP = """
from headway import Headway

queue = Headway("sqlite:///shop.db", namespace="shop")


@queue.task(name="shop.pack")
def pack(order: int) -> None: ...
"""


@pytest.fixture
def shop(cli: Cli) -> Cli:
    """Return a folder with an app that names its store itself, and one job in that store."""
    (cli.folder / "shop.py").write_text(SHOP)
    cli.call("submit", "shop.pack", "order=7", "--app", "shop.py:queue")
    return cli


def tasks(ran: CommandResult) -> list[str]:
    return [job["task"] for job in ran.json["items"]]


def test_app_and_its_variable_lead_every_command_to_the_store_of_the_app(shop: Cli) -> None:
    assert tasks(shop.call("jobs", "--json", "--app", "shop.py:queue")) == ["shop.pack"]
    (job,) = shop.call("jobs", "--json", HEADWAY_APP="shop.py:queue").json["items"]
    for words in (["status", job["id"]], ["why", job["id"]], ["cancel", job["id"]], ["retry", job["id"]]):
        assert shop.call(*words, HEADWAY_APP="shop.py:queue").out
    for words in (["stats"], ["top", "--once"], ["dlq", "list"], ["workers"], ["policy", "show"], ["pause"], ["resume"],
                  ["migrate"], ["token", "list"]):  # fmt: skip
        shop.call(*words, HEADWAY_APP="shop.py:queue")
    assert "shop.db" in shop.call("migrate", "--app", "shop.py:queue").out
    assert not (shop.folder / "headway.db").exists()


def test_empty_variables_leave_the_app_its_store_and_namespace(shop: Cli) -> None:
    # Compose sets variables to nothing if an environment file has no value.
    found = shop.call("jobs", "--json", HEADWAY_APP="shop.py:queue", HEADWAY_STORE="", HEADWAY_NAMESPACE="")
    assert tasks(found) == ["shop.pack"]


def test_the_app_wins_over_a_default_store_that_lies_in_the_folder(shop: Cli) -> None:
    shop.call("submit", "demo.noop")  # Makes headway.db.
    assert tasks(shop.call("jobs", "--json")) == ["demo.noop"]
    assert tasks(shop.call("jobs", "--json", HEADWAY_APP="shop.py:queue")) == ["shop.pack"]


def test_flags_come_before_the_variables_and_each_store_before_its_app(shop: Cli) -> None:
    other, app = "sqlite:///other.db", "shop.py:queue"
    shop.call("submit", "shop.pack", "order=8", HEADWAY_STORE=other, HEADWAY_APP=app)
    (job,) = shop.call("jobs", "--json", HEADWAY_STORE=other, HEADWAY_APP=app).json["items"]
    assert (job["task"], job["arguments"]) == ("shop.pack", {"order": 8})
    flagged = shop.call("jobs", "--json", "--app", "shop.py:queue", HEADWAY_STORE="sqlite:///other.db").json["items"]
    assert [job["arguments"] for job in flagged] == [{"order": 7}]
    stored = shop.call("jobs", "--json", "--app", "shop.py:queue", "--store", "sqlite:///other.db").json["items"]
    assert [job["arguments"] for job in stored] == [{"order": 8}]


def test_an_app_that_cannot_be_imported_ends_the_command_unless_a_store_is_named(shop: Cli) -> None:
    (shop.folder / "broken.py").write_text("raise RuntimeError('no settings here')\n")
    assert "[cannot_start]" in shop.call("jobs", code=3, HEADWAY_APP="broken.py:app").err
    named = shop.run(
        "jobs", "--json", "--store", "sqlite:///shop.db", "--namespace", "shop", HEADWAY_APP="broken.py:app"
    )
    assert tasks(named) == ["shop.pack"]
    assert named.err.startswith("warning: HEADWAY_APP=broken.py:app cannot be used")


def test_doctor_says_that_a_setting_comes_from_the_app(shop: Cli) -> None:
    settings = shop.call("doctor", "--json", code=1, HEADWAY_APP="shop.py:queue").json["settings"]
    assert settings["store"] == {"value": "sqlite:///shop.db", "source": "shop.py:queue"}
    settings = shop.call(
        "doctor", "--json", code=1, HEADWAY_APP="shop.py:queue", HEADWAY_STORE="sqlite:///shop.db"
    ).json["settings"]
    assert settings["store"] == {"value": "sqlite:///shop.db", "source": "HEADWAY_STORE"}
    assert settings["namespace"] == {"value": "shop", "source": "shop.py:queue"}


def test_an_app_and_a_server_are_not_given_together(shop: Cli) -> None:
    refused = shop.call("jobs", "--app", "shop.py:queue", "--server", "http://127.0.0.1:1", code=2)
    assert "give --server, or --store, --namespace and --app, not both" in refused.err
