"""What can be known of the containers without running them: files, addresses and commands exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from headway.cli.main import build
from headway.stores.open import open_store

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def filled_in(text: str) -> str:
    """Fill in what Compose would: ``${NAME:-default}``."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def test_all_parts_are_there() -> None:
    # R5.102
    assert SERVICES.keys() == {
        "api", "worker", "valkey-1", "valkey-2", "sentinel-1", "sentinel-2", "sentinel-3", "postgres",
    }  # fmt: skip


def test_every_service_depends_on_one_that_exists() -> None:
    for service in SERVICES.values():
        assert set(service.get("depends_on", ())) <= SERVICES.keys()
        assert {volume.partition(":")[0] for volume in service.get("volumes", ())} <= COMPOSE["volumes"].keys()


@pytest.mark.parametrize("name", ["api", "worker"])
def test_its_addresses_lead_to_stores_and_its_commands_can_be_read(name: str) -> None:
    service = SERVICES[name]
    environment = service["environment"]
    store = open_store(filled_in(environment["HEADWAY_STORE"]), "default")
    assert store.abilities.remote
    assert open_store(filled_in(environment["HEADWAY_HISTORY"]), "default").abilities.durable
    _, bound, _ = build().parse_args([str(word) for word in service["command"]])
    assert bound.arguments or bound.kwargs


def test_only_loopback_is_published_and_nothing_has_a_password_of_its_own() -> None:
    for service in SERVICES.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    text = (ROOT / "deploy/compose.yaml").read_text()
    assert set(re.findall(r"PASSWORD:-([^}]*)\}", text)) == {"change-me"}


def test_the_image_copies_files_that_exist_and_is_nobody() -> None:
    text = (ROOT / "deploy/Dockerfile").read_text()
    for line in re.findall(r"^COPY (?!--)(.*)$", text, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
    assert re.search(r"^USER headway$", text, re.MULTILINE)
    assert "HEALTHCHECK" in text
