"""Documents: small named values that are written only over the version that the writer has read."""

from __future__ import annotations

import asyncio

from headway.stores.base import Document, Store


async def test_a_document_is_read_as_it_was_written(store: Store) -> None:
    body = bytes(range(256))
    assert await store.write("policy", "main", body) == 1
    assert await store.read("policy", "main") == [Document("policy", "main", 1, body)]


async def test_what_was_never_written_is_not_there(store: Store) -> None:
    assert await store.read("policy") == await store.read("policy", "main") == []


async def test_documents_of_a_kind_come_by_name(store: Store) -> None:
    for kind, name in (("cron", "b"), ("cron", "a"), ("task", "c")):
        await store.write(kind, name, name.encode())
    assert await store.read("cron") == [Document("cron", "a", 1, b"a"), Document("cron", "b", 1, b"b")]
    assert await store.read("cron", "c") == []


async def test_each_write_gives_the_next_version(store: Store) -> None:
    assert [await store.write("policy", "main", body) for body in (b"1", b"2", b"2")] == [1, 2, 3]
    assert await store.read("policy") == [Document("policy", "main", 3, b"2")]


async def test_a_write_over_another_version_is_refused(store: Store) -> None:
    await store.write("policy", "main", b"1")
    await store.write("policy", "main", b"2")
    assert await store.write("policy", "main", b"3", if_version=1) is None
    assert await store.write("policy", "main", b"3", if_version=3) is None
    assert await store.read("policy") == [Document("policy", "main", 2, b"2")]
    assert await store.write("policy", "main", b"3", if_version=2) == 3


async def test_version_zero_means_that_there_is_none_yet(store: Store) -> None:
    assert await store.write("policy", "main", b"1", if_version=1) is None
    assert await store.write("policy", "main", b"1", if_version=0) == 1
    assert await store.write("policy", "main", b"2", if_version=0) is None
    assert await store.read("policy") == [Document("policy", "main", 1, b"1")]


async def test_a_document_without_a_body_is_removed(store: Store) -> None:
    await store.write("policy", "main", b"1")
    assert await store.write("policy", "main", None, if_version=7) is None
    assert await store.write("policy", "main", None, if_version=1) == 2
    assert await store.read("policy") == []
    assert await store.write("policy", "main", b"new", if_version=0) is not None


async def test_an_empty_body_is_a_body(store: Store) -> None:
    await store.write("policy", "main", b"")
    assert await store.read("policy") == [Document("policy", "main", 1, b"")]


async def test_of_many_writers_over_one_version_one_wins(store: Store) -> None:
    await store.write("policy", "main", b"0")
    answers = await asyncio.gather(*(store.write("policy", "main", bytes([n]), if_version=1) for n in range(20)))
    assert sorted(answer for answer in answers if answer is not None) == [2]
    [document] = await store.read("policy")
    assert document.body == bytes([answers.index(2)])
