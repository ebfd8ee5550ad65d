"""Names in keys and scripts: keys stay in the store's own space, and no text becomes code."""

from __future__ import annotations

import json
import re
import uuid

from headway.core.policy.document import BUILT_IN, Keep
from headway.core.policy.retry import Raised, Returned, judge
from headway.stores.base import Exchange, JobQuery, Store
from headway.testing.clock import ManualClock
from tests.conformance.builders import BOOM, a_job, claim, end, register, submit
from tests.servers import Valkey
from tests.stores.redis.conftest import OpenStore, everything

NAMES = [
    "{}", "{x}:{y}", "a:b", "*", "?", "[a-z]", "h[^x]llo", "\\", "'", '"', "]]", "--", "\r\n", "$", "%s", "#!lua",
    "redis.call('FLUSHALL')", "return 1", "{headway:other}:job", "é😀",
]  # fmt: skip


async def use(store: Store, name: str) -> None:
    """Use a store with this name in place of every word."""
    await register(store, name, offers=(name,))
    jobs = [
        a_job(
            task=name, lane=name, tenant=name, needs=(name,), trace_id=name, unique_key=name if first else None,
            idempotency_key=name if first else None, payload=json.dumps([name]).encode(), limits=(name,),
            due_at=None if number < 2 else 4_000_000_000_000, max_retries=0,
        )
        for number, first in enumerate((True, False, False))
    ]  # fmt: skip
    await submit(store, *jobs)
    leases = await claim(store, name, offers=(name,))
    assert len(leases) == 2
    await store.exchange(Exchange(name, finished=[judge(Returned(b"null"), leases[0], BUILT_IN)]))
    await end(store, leases[1], Raised(BOOM))
    await store.write("kind", name, b"{}")
    assert {job.task for job in await store.find(JobQuery(task=name))} == {name}
    await store.stats()
    await store.snapshot()


async def test_when_a_job_is_forgotten_nothing_of_it_is_left(server: Valkey, open_url: OpenStore) -> None:
    # R3.61
    clock = ManualClock()
    store = await open_url(server.url, clock=clock)
    await register(store)
    mark = "remember-me"
    job = a_job(
        task=mark, payload=b'["remember-me"]', tenant=mark, idempotency_key=mark, unique_key=mark, trace_id=mark,
        idempotency_ms=1_000,
    )  # fmt: skip
    [job_id] = await submit(store, job)
    short = uuid.UUID(job_id).bytes
    held = everything(server)
    assert mark.encode() in held
    assert short in held or job_id.encode() in held
    [lease] = await claim(store)
    await end(store, lease)
    assert (await store.get([job_id]))[0] is not None  # R3.87: it is kept for a while, for a client that comes back.
    clock.advance(40 * 86_400)
    while await store.prune(Keep(completed_ms=1_000)):
        pass
    assert await store.get([job_id]) == [None]
    left = everything(server)
    assert mark.encode() not in left
    assert short not in left
    assert job_id.encode() not in left


async def test_whatever_names_hold_keys_stay_in_the_stores_own_space(server: Valkey, open_url: OpenStore) -> None:
    # S-23
    server.ask("SET", "headway:other", "untouched")
    store = await open_url(f"{server.url}?prefix=mine", "space")
    await store.stats()
    library = server.ask("FUNCTION", "LIST", "LIBRARYNAME", "*")[:200]  # Its name is made of its text.
    server.ask("CONFIG", "RESETSTAT")
    for name in NAMES:
        await use(store, name)
    asked = set(re.findall(r"cmdstat_([\w|]+):", server.ask("INFO", "commandstats").decode()))
    assert "fcall" in asked
    assert not asked & {"keys", "scan", "sscan", "hscan", "zscan", "eval", "evalsha", "flushall", "flushdb", "sort"}
    assert server.ask("FUNCTION", "LIST", "LIBRARYNAME", "*")[:200] == library
    keys = re.findall(rb"\$\d+\r\n(.*?)\r\n", server.ask("KEYS", "*"))
    assert {key for key in keys if not key.startswith(b"{mine:space}")} == {b"headway:other"}
    assert len(keys) > 5
    assert server.ask("GET", "headway:other").endswith(b"untouched\r\n")
