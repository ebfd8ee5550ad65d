"""Durable jobs while the server of transient jobs is frozen."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from headway.stores.open import open_store
from headway.stores.split import optional
from tests.conformance.builders import a_job, claim, register, submit
from tests.servers import Valkey


@pytest.mark.parametrize("how", ["freeze", "kill"])
async def test_durable_jobs_start_soon_while_the_transient_server_is_away(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One exchange waits for the server, all that follow do not.
    monkeypatch.setattr(optional, "TIMEOUT", 2.0)
    server = Valkey(tmp_path / "server", 'save ""')
    server.start()
    store = open_store(f"sqlite:///{tmp_path}/headway.db", transient=server.url)
    await store.open()
    try:
        await register(store, slots=50)
        getattr(server, how)()
        began = time.monotonic()
        for _ in range(20):
            [job] = await submit(store, a_job(lane="high"))
            assert [lease.job_id for lease in await claim(store, free=1)] == [job]
        # Twenty questions of 2 s each would have taken 40 s.
        assert time.monotonic() - began < 20
    finally:
        await store.close()
        server.kill()
