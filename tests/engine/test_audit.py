"""The audit: what operators did, in order, bounded in number and age."""

from __future__ import annotations

from headway.core.policy.document import DAY
from headway.engine.audit import AUDIT, KEPT_MS, Entry, prune_audit, read_audit, record
from headway.stores.base import Store
from headway.stores.memory import MemoryStore
from headway.testing.clock import ManualClock


async def test_what_was_done_is_read_newest_first(store: Store, clock: ManualClock) -> None:
    # S-35
    for number in range(5):
        await record(store, who="aaaaaaaaaa", what="policy.put", target="policy", before=number, after=number + 1)
    found = await read_audit(store)
    assert [(entry.before, entry.after) for entry in found] == [(4, 5), (3, 4), (2, 3), (1, 2), (0, 1)]
    assert found[0] == Entry(at=clock(), who="aaaaaaaaaa", what="policy.put", target="policy", before=4, after=5)
    assert await read_audit(store, limit=2) == found[:2]


async def test_too_many_and_too_old_entries_go_the_oldest_first(store: Store) -> None:
    for at in (1, 2, 3 * DAY, 4 * DAY):
        await record(store, who="local", what="pause", target="low", now_at=at)
    assert await prune_audit(store, now_at=KEPT_MS + 3 * DAY) == 2
    assert [entry.at for entry in await read_audit(store)] == [4 * DAY, 3 * DAY]
    assert await prune_audit(store, now_at=4 * DAY, kept=1) == 1
    assert [entry.at for entry in await read_audit(store)] == [4 * DAY]


async def test_the_audit_prunes_itself() -> None:
    store = MemoryStore(clock=ManualClock())
    await record(store, who="local", what="pause", target="low", now_at=1)
    for _ in range(2_000):  # It looks at one in 64: the chance that none of these does is nil.
        await record(store, who="local", what="pause", target="low", now_at=KEPT_MS + 2)
    assert (await read_audit(store, limit=10_000))[-1].at == KEPT_MS + 2


async def test_of_a_huge_value_the_digest_is_kept(store: Store) -> None:
    await record(store, who="local", what="policy.put", target="policy", after="x" * 100_000, now_at=1)
    ((document,), (entry,)) = await store.read(AUDIT), await read_audit(store)
    assert len(document.body) < 1_000
    assert entry.after["bytes"] == 100_002
