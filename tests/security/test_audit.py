"""The audit: actions of operators in order, bounded in number and age."""

from __future__ import annotations

import asyncio

from headway.security.audit import AUDIT, RETENTION_MS, SEGMENT, AuditRecord, read_audit, record
from headway.stores.base import Document, Store
from headway.stores.memory import MemoryStore
from headway.testing.clock import ManualClock


async def test_what_was_done_is_read_newest_first(store: Store, clock: ManualClock) -> None:
    # S-35
    for number in range(5):
        await record(store, who="aaaaaaaaaa", what="policy.put", target="policy", before=number, after=number + 1)
    found = await read_audit(store)
    assert [(entry.before, entry.after) for entry in found] == [(4, 5), (3, 4), (2, 3), (1, 2), (0, 1)]
    assert found[0] == AuditRecord(at=clock(), who="aaaaaaaaaa", what="policy.put", target="policy", before=4, after=5)
    assert await read_audit(store, limit=2) == found[:2]


async def test_too_many_entries_go_the_oldest_first(store: Store) -> None:
    # S-35
    for number in range(4 * SEGMENT + 1):
        await record(store, who="local", what="pause", target=f"{number}", now_at=1 + number, kept=2 * SEGMENT)
    found = [int(entry.target) for entry in await read_audit(store, limit=1_000)]
    assert found == list(range(4 * SEGMENT, 2 * SEGMENT - 1, -1))
    assert len(await store.read(AUDIT)) == 4  # Two segments that are full, one with the last entry, and the head.


async def test_old_entries_go_with_the_segment_that_holds_them(store: Store) -> None:
    # S-35
    for _ in range(SEGMENT):
        await record(store, who="local", what="pause", target="old", now_at=1)
    for _ in range(SEGMENT + 1):
        await record(store, who="local", what="pause", target="new", now_at=RETENTION_MS + 2)
    assert {entry.target for entry in await read_audit(store, limit=1_000)} == {"new"}


async def test_callers_do_not_push_out_what_operators_did(store: Store) -> None:
    # S-35
    await record(store, who="aaaaaaaaaa", what="policy.put", target="version 1", now_at=1)
    for number in range(6 * SEGMENT):
        await record(
            store, who="bbbbbbbbbb", what="task.cancel", target="x", now_at=2 + number, group="callers", kept=SEGMENT
        )
    found = await read_audit(store, limit=1_000)
    assert (found[-1].what, found[-1].who) == ("policy.put", "aaaaaaaaaa")
    assert len(found) <= 1 + 2 * SEGMENT
    assert {entry.what for entry in found[:-1]} == {"task.cancel"}


async def test_reading_and_adding_touch_only_the_newest_segments(clock: ManualClock) -> None:
    # S-35
    reads: list[str | None] = []

    class Counting(MemoryStore):
        async def read(self, kind: str, name: str | None = None) -> list[Document]:
            reads.append(name)
            return await super().read(kind, name)

    store = Counting(clock=clock)
    for number in range(10 * SEGMENT):
        await record(store, who="local", what="pause", target=f"{number}", now_at=1)
    assert None not in reads  # Never all of them.
    reads.clear()
    await record(store, who="local", what="pause", target="last", now_at=1)
    assert len(reads) <= 5
    reads.clear()
    assert len(await read_audit(store, limit=10)) == 10
    assert len(reads) <= 5  # The head and the last segment of each group, and one more.


async def test_entries_that_are_added_at_once_are_all_kept(store: Store) -> None:
    # S-35
    await asyncio.gather(
        *(record(store, who=f"{number}", what="pause", target="low", now_at=1) for number in range(60))
    )
    assert sorted(int(entry.who) for entry in await read_audit(store)) == list(range(60))


async def test_of_a_huge_value_the_digest_is_kept(store: Store) -> None:
    await record(store, who="local", what="policy.put", target="policy", after="x" * 100_000, now_at=1)
    ((document,), (entry,)) = await store.read(AUDIT), await read_audit(store)
    assert len(document.body) < 1_000
    assert entry.after["bytes"] == 100_002
