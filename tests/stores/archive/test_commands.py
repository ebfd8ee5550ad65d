"""Commands read the history as they read the store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headway.core.job import PAYLOAD_VERSION, State
from headway.core.policy.retry import Returned
from headway.maintenance.archiver import Archiver
from headway.stores.base import Store
from tests.cli.command import Cli, CommandResult
from tests.conformance.builders import a_job, claim_one, end, register, submit_one
from tests.conftest import ADDRESSES, postgres

pytestmark = pytest.mark.parametrize("store_name", ["redis"])


async def test_status_and_jobs_tell_of_what_the_store_has_forgotten(
    store: Store, chore: Archiver, store_name: str, tmp_path: Path
) -> None:
    # R5.102
    await register(store)
    gone = await submit_one(store, a_job(payload=PAYLOAD_VERSION + b'{"account":7}'))
    await end(store, await claim_one(store), Returned(PAYLOAD_VERSION + b"42"))
    await chore()
    await store.purge([State.COMPLETED], [gone])
    waiting = await submit_one(store, a_job(payload=PAYLOAD_VERSION + b"{}"))
    cli, address = Cli(tmp_path), ADDRESSES[store_name](tmp_path)

    def run(*words: str) -> CommandResult:
        return cli.run(*words, HEADWAY_STORE=address, HEADWAY_HISTORY=postgres().url)

    def ask() -> None:
        told = run("status", gone, "--args").out
        assert "completed" in told
        assert "account" in told
        assert run("status", gone, "--json").json["result"] == 42
        assert "finished" in run("status", gone, "--follow").out
        page = run("jobs", "--limit", "1", "--json").json
        assert [job["id"] for job in page["items"]] == [waiting]
        page = run("jobs", "--before", page["next_cursor"], "--json").json
        assert [job["id"] for job in page["items"]] == [gone]
        cli.run("status", gone, code=1, HEADWAY_STORE=address)

    await asyncio.to_thread(ask)
