"""What a call costs the server, in commands: it must not grow with what waits."""

from __future__ import annotations

import re
import threading

from headway import Headway
from headway.stores.redis.store import RedisStore
from tests.conformance.builders import a_job, claim, claimed_ids, register, submit
from tests.servers import Valkey


def commands(server: Valkey) -> int:
    """How many commands the server has carried out, those inside functions included."""
    found = re.search(rb"total_commands_processed:(\d+)", server.ask("INFO", "stats"))
    assert found is not None
    return int(found[1])


async def cost_of_a_claim(store: RedisStore, server: Valkey) -> int:
    before = commands(server)
    assert len(await claim(store, free=5)) == 5
    return commands(server) - before


async def test_a_claim_costs_the_same_however_many_wait(store: RedisStore, server: Valkey) -> None:
    # R5.103
    await register(store, slots=100)
    await submit(store, *(a_job() for _ in range(10)))
    few = await cost_of_a_claim(store, server)
    for _ in range(5):
        await submit(store, *(a_job() for _ in range(1_000)))
    assert await cost_of_a_claim(store, server) <= few


async def test_a_batch_costs_hardly_more_than_one(store: RedisStore, server: Valkey) -> None:
    # R5.103
    await submit(store, a_job())
    before = commands(server)
    await submit(store, a_job(), a_job())
    two = commands(server) - before
    before = commands(server)
    await submit(store, *(a_job() for _ in range(500)))
    assert commands(server) - before <= two


async def test_a_claim_takes_exactly_as_many_as_it_may(store: RedisStore) -> None:
    # R5.55
    await register(store, slots=100)
    await submit(store, *(a_job() for _ in range(20)))
    assert len(await claimed_ids(store, free=7)) == 7
    assert (await store.stats()).lanes["medium"].waiting == 13


def test_threads_submit_each_on_a_connection_of_its_own(server: Valkey) -> None:
    # R2.46
    with Headway(server.url) as app:

        @app.task(name="reports.export")
        def export(number: int) -> int:
            return number

        export.enqueue(0)  # The long way, which learns where the server is.
        threads = [threading.Thread(target=lambda: [export.enqueue(n) for n in range(50)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert app.stats().lanes["medium"].waiting == 201
        for _ in range(3):  # Cut off, they go the long way, and then the short one again.
            server.ask("CLIENT", "KILL", "TYPE", "normal")
            assert export.enqueue(1).status() == "queued"
        assert app.stats().lanes["medium"].waiting == 204
