"""Checks of the Compose file without containers: its files, addresses and commands exist.

The servers that it describes work together when its own scripts start them here.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from headway.cli.main import build
from headway.core.errors import StoreError
from headway.core.job import State
from headway.stores.open import open_store
from tests.conformance.builders import claim_one, end, register, state_of, submit_one
from tests.servers import free_port, valkey_program, wait_for

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "deploy/compose.yaml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text()
PASSWORDS = {
    "VALKEY_PASSWORD": "forTheApp",
    "VALKEY_INTERNAL_PASSWORD": "amongServers",
    "SENTINEL_PASSWORD": "forSentinels",
    "POSTGRES_PASSWORD": "forHistory",
}


def filled_in(text: str) -> str:
    """Replace ``${NAME:?why}`` as Compose does."""
    return re.sub(r"\$\{(\w+):\?[^}]*\}", lambda match: PASSWORDS[match[1]], text)


def test_all_parts_are_there() -> None:
    # R5.102
    assert SERVICES.keys() == {
        "api", "worker", "valkey-1", "valkey-2", "sentinel-1", "sentinel-2", "sentinel-3", "postgres",
    }  # fmt: skip


def test_every_service_depends_on_one_that_exists() -> None:
    for service in SERVICES.values():
        for name, wanted in service.get("depends_on", {}).items():
            assert wanted == {"condition": "service_healthy"}
            assert "healthcheck" in SERVICES[name]
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


def test_only_loopback_is_published() -> None:
    for service in SERVICES.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


def test_no_password_has_a_default_or_is_an_argument() -> None:
    # S-29, S-39
    assert set(re.findall(r"\$\{(\w+)", TEXT)) == {*PASSWORDS, "MASTER", "name"}  # A shell's, and the comment's.
    for name in PASSWORDS:
        assert re.findall(rf"\$\{{{name}(?!:\?)", TEXT) == []
    for service in SERVICES.values():
        for line in "\n".join(map(str, service.get("command", ()))).splitlines():
            assert not (line.lstrip().startswith("exec") and "PASSWORD" in line), line
        checked = " ".join(service.get("healthcheck", {}).get("test", ()))
        assert "PASSWORD" not in checked
        assert " -a " not in checked


def test_the_image_copies_files_that_exist_and_is_nobody() -> None:
    for line in re.findall(r"^COPY (?!--)(.*)$", DOCKERFILE, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
    assert re.search(r"^USER headway$", DOCKERFILE, re.MULTILINE)
    assert "HEALTHCHECK" in DOCKERFILE


def test_the_image_installs_by_hash_alone() -> None:
    # S-39
    installs = re.findall(r"pip install ([^\\&\n]*)", DOCKERFILE)
    packages, node, headway = installs
    for install, lock in ((packages, "image.txt"), (node, "web.txt")):
        assert "--require-hashes" in install
        assert install.rstrip().endswith(f"-r requirements/{lock}")
    assert {"--no-deps", "--no-index", "--no-build-isolation"} <= set(headway.split())
    assert set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) == {"${PYTHON_IMAGE}"}


# ---------------------------------------------------------------------- the servers, as the file describes them


class ComposeService:
    """A service of the Compose file. Its own script starts it here, with other ports and paths."""

    def __init__(self, name: str, folder: Path, ports: dict[str, int]) -> None:
        self.name, self.folder, self.port = name, folder, ports[name]
        folder.mkdir()
        service = SERVICES[name]
        script = service["command"][-1].replace("$$", "$").replace("/tmp/", f"{folder}/").replace("/data", str(folder))
        for port in ("6379", "26379"):
            script = script.replace(f'"port {port}"', f'"port {self.port}" "bind 127.0.0.1"')
        script = script.replace("valkey-1 6379", f"127.0.0.1 {ports['valkey-1']}")
        script = script.replace("$MASTER 6379", f"127.0.0.1 {ports['valkey-1']}")
        script = script.replace("replica-announce-ip $NAME", "replica-announce-ip 127.0.0.1")
        given = {key: filled_in(value) for key, value in service["environment"].items()}
        for command, option in (("valkey-server", ""), ("valkey-sentinel", " --sentinel")):
            shim = folder / command
            shim.write_text(f'#!/bin/sh\nexec {valkey_program()} "$1"{option}\n')
            shim.chmod(0o755)
        self.process = subprocess.Popen(
            ["sh", "-c", script],
            env={**given, "PATH": f"{folder}:{os.environ['PATH']}"},
            cwd=folder,
            stdout=subprocess.DEVNULL,
        )


def login(started: ComposeService, *words: str, user: str = "", password: str = "") -> bytes:
    with socket.create_connection(("127.0.0.1", started.port), timeout=5) as connection:
        if password:
            connection.sendall(_command("AUTH", *([user] if user else []), password))
            connection.recv(1_000)
        connection.sendall(_command(*words))
        return connection.recv(100_000)


def _command(*words: str) -> bytes:
    return f"*{len(words)}\r\n".encode() + b"".join(f"${len(w.encode())}\r\n{w}\r\n".encode() for w in words)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[dict[str, ComposeService]]:
    names = [name for name in SERVICES if name.startswith(("valkey", "sentinel"))]
    ports = {name: free_port() for name in names}
    found: dict[str, ComposeService] = {}
    try:
        for name in names:
            found[name] = ComposeService(name, tmp_path / name, ports)
            wait_for(lambda name=name: _answers(found[name]), f"an answer of {name}")  # type: ignore[misc]
        yield found
    finally:
        for one in found.values():
            with contextlib.suppress(ProcessLookupError):
                one.process.send_signal(signal.SIGKILL)
            one.process.wait(30)
        shutil.rmtree(tmp_path, ignore_errors=True)


def _answers(one: ComposeService) -> bool:
    try:
        return login(one, "PING").startswith(b"-NOAUTH")  # It is there, and wants to know who asks.
    except OSError:
        return False


@pytest.mark.slow
async def test_the_servers_of_the_compose_file_work_with_the_rights_that_it_gives(
    started: dict[str, ComposeService],
) -> None:
    # R5.102, S-29
    sentinels = [one for name, one in started.items() if name.startswith("sentinel")]

    def agreed(one: ComposeService) -> bool:
        said = login(one, "INFO", "sentinel", password=PASSWORDS["SENTINEL_PASSWORD"])
        return b"status=ok" in said and b"slaves=1" in said and b"sentinels=3" in said

    for one in sentinels:
        wait_for(lambda one=one: agreed(one), "an agreement of Sentinels")  # type: ignore[misc]
    address = filled_in(SERVICES["api"]["environment"]["HEADWAY_STORE"])
    for one in sentinels:
        address = address.replace(f"{one.name}:26379", f"127.0.0.1:{one.port}")
    store = open_store(address, "default")
    await store.open()
    try:
        await register(store)
        job_id = await submit_one(store)
        await end(store, await claim_one(store))
        assert await state_of(store, job_id) is State.COMPLETED
    finally:
        await store.close()
    app = {"user": "headway", "password": PASSWORDS["VALKEY_PASSWORD"]}
    for words in (
        ("KEYS", "*"),
        ("FLUSHALL",),
        ("CONFIG", "SET", "dir", "/"),
        ("SET", "other", "1"),
        ("ACL", "LIST"),
    ):
        assert login(started["valkey-1"], *words, **app).startswith(b"-NOPERM"), words
    page = (ROOT / "docs/how-to/run-on-redis.md").read_text()
    [documented] = re.findall(r"```\nACL SETUSER headway (.*?)```", page, re.DOTALL)
    rights = {word for word in documented.split() if word.startswith("+")}
    assert set(SERVICES["valkey-1"]["environment"]["RIGHTS"].split()) == rights | {"+config|get"}
    wrong = open_store(address.replace(PASSWORDS["SENTINEL_PASSWORD"], "wrong"), "default")
    with pytest.raises(StoreError):
        await wrong.open()
    await wrong.close()
