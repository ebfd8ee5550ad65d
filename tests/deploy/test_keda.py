"""The KEDA manifest: the requests that KEDA makes of a running server, and the number of Pods that follow."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import yaml  # type: ignore[import-untyped]

from headway import Headway
from headway.security.tokens import create_token
from headway.server.api import headway_api
from tests.conformance.builders import a_job, claim, register
from tests.estimates.lanes import learn_lanes
from tests.server.live import served

MANIFEST = Path(__file__).parents[2] / "deploy/keda/worker.yaml"
DOCUMENTS: list[dict[str, Any]] = list(yaml.safe_load_all(MANIFEST.read_text()))
[AUTHENTICATION, SCALED] = DOCUMENTS
TRIGGERS: list[dict[str, Any]] = SCALED["spec"]["triggers"]
SLOTS = 10


async def ask_as_keda(trigger: dict[str, Any], secret: dict[str, str], address: str) -> float:
    """Read a number as the metrics-api scaler does: one GET with the token of the secret, and a path in the reply."""
    metadata = trigger["metadata"]
    assert metadata["authMode"] == "bearer"
    assert trigger["authenticationRef"] == {"name": AUTHENTICATION["metadata"]["name"]}
    [parameter] = AUTHENTICATION["spec"]["secretTargetRef"]
    assert parameter["parameter"] == "token"
    url = urlsplit(metadata["url"])
    headers = {"Authorization": f"Bearer {secret[parameter['key']]}", "Host": url.netloc}
    async with httpx.AsyncClient() as client:
        answer = await client.get(f"{address}{url.path}?{url.query}", headers=headers)
    assert answer.status_code == 200, answer.text
    value = answer.json()
    for name in metadata["valueLocation"].split("."):
        value = value[name]
    assert type(value) in (int, float)
    return float(value)


def replicas(values: list[float]) -> int:
    """Return the Pods that KEDA and its autoscaler want: none without an active trigger, else the largest average."""
    spec = SCALED["spec"]
    active = [
        value > float(one["metadata"].get("activationTargetValue", 0))
        for value, one in zip(values, TRIGGERS, strict=True)
    ]
    if not any(active):
        return int(spec["minReplicaCount"])
    wanted = max(
        math.ceil(value / float(one["metadata"]["targetValue"])) for value, one in zip(values, TRIGGERS, strict=True)
    )
    return max(1, int(spec["minReplicaCount"]), min(int(spec["maxReplicaCount"]), wanted))


@pytest.fixture
async def app() -> AsyncIterator[Headway]:
    async with Headway("memory://") as app:
        yield app


def test_the_manifest_names_what_it_has() -> None:
    assert [one["kind"] for one in DOCUMENTS] == ["TriggerAuthentication", "ScaledObject"]
    assert {one["type"] for one in TRIGGERS} == {"metrics-api"}
    assert all(isinstance(value, str) for one in TRIGGERS for value in one["metadata"].values())
    assert {one["metadata"]["targetValue"] for one in TRIGGERS} == {str(SLOTS)}


async def test_keda_gets_as_many_pods_as_the_lanes_want(app: Headway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.server.service.FORECAST_AGE", 0.0)
    monkeypatch.setattr("headway.estimates.history.READ_EVERY", -1.0)
    store = await app.client.store()
    secret = {"token": (await create_token(store, ["read"], now_at=1))[1]}
    hosts = [urlsplit(one["metadata"]["url"]).hostname or "" for one in TRIGGERS]

    async with served(headway_api(app, hosts=hosts)) as address:

        async def pods() -> int:
            return replicas([await ask_as_keda(one, secret, address) for one in TRIGGERS])

        assert await pods() == 0
        await store.submit([a_job(lane="low")])  # Nothing is learned yet, but a worker must come to learn it.
        assert await pods() == 1
        await learn_lanes(store, seconds=10.0, lanes=("high", "low"))
        await store.submit([a_job(lane="high") for _ in range(120)])
        from_none = await pods()
        assert 3 <= from_none <= 6  # 120 jobs of 10 s in 30 s need 40 slots.
        await register(store, slots=SLOTS, reserved=0)
        assert len(await claim(store, free=SLOTS)) == SLOTS
        assert await pods() in (from_none, from_none - 1)
        await store.submit([a_job(lane="high") for _ in range(2_000)])
        assert await pods() == SCALED["spec"]["maxReplicaCount"]
