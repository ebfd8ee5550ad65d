"""Several processes publish crons from a source that changes."""

from __future__ import annotations

from headway.policy_store.catalogue import CRONS, CronDocument, publish_crons, read_crons
from headway.stores.memory import MemoryStore


def cron(expression: str, entry: str | None = "row") -> CronDocument:
    return CronDocument(
        task="send", entry=entry, expression=expression, tz="UTC", catch_up="skip", overlap="allow", lane="medium",
        max_retries=0, timeout_ms=1_000, payload=b"{}",
    )  # fmt: skip


async def expressions(store: MemoryStore) -> dict[str, str]:
    return {cron.name: cron.expression for cron, _ in await read_crons(store)}


async def test_a_process_with_an_older_view_does_not_undo_a_newer_one() -> None:
    store = MemoryStore(clock=lambda: 0)
    await publish_crons(store, [cron("0 * * * *")], set(), 1)
    seen = await store.read(CRONS)
    await publish_crons(store, [cron("5 * * * *")], {"send.row"}, 2)
    await publish_crons(store, [cron("0 * * * *")], {"send.row"}, 3, found=seen)
    await publish_crons(store, [], {"send.row"}, 3, found=seen)
    assert await expressions(store) == {"send.row": "5 * * * *"}
    await publish_crons(store, [], {"send.row"}, 4)
    await publish_crons(store, [cron("0 * * * *")], {"send.row"}, 5, found=seen)
    assert await expressions(store) == {}


async def test_crons_of_one_task_are_told_apart_by_their_entries() -> None:
    store = MemoryStore(clock=lambda: 0)
    await publish_crons(store, [cron("0 * * * *", "a"), cron("5 * * * *", "b"), cron("9 * * * *", None)], set(), 1)
    assert await expressions(store) == {"send": "9 * * * *", "send.a": "0 * * * *", "send.b": "5 * * * *"}
    await publish_crons(store, [], {"send"}, 2)
    assert set(await expressions(store)) == {"send.a", "send.b"}
