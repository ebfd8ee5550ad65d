"""The archive: every job that ends on Redis reaches it once, whichever process dies on the way."""

from __future__ import annotations

from typing import Any

import asyncpg  # type: ignore[import-untyped]
import pytest

from headway.client.app import Headway
from headway.core.errors import ConfigError, StoreUnavailable
from headway.core.job import JobId, State
from headway.core.policy.document import Keep
from headway.core.policy.retry import Raised, Returned
from headway.maintenance.archiver import Archiver, make_archiver
from headway.stores.base import ArchiveSource, Store
from headway.stores.postgres.archive.archive import PostgresArchive
from headway.testing.clock import ManualClock
from tests.conformance.builders import BOOM, a_job, claim_one, end, register, submit_one
from tests.conftest import OpenStore, postgres

NOTHING_KEPT = Keep(0, 0, 0, 0, 0)


pytestmark = pytest.mark.parametrize("store_name", ["redis"])


async def rows() -> list[Any]:
    connection = await asyncpg.connect(postgres().url)
    try:
        return list(await connection.fetch("SELECT * FROM headway_history ORDER BY finished_at, job_id"))
    finally:
        await connection.close()


def archive_source(store: Store) -> ArchiveSource:
    source = store.abilities.archive_source
    assert source is not None
    return source


async def ended(store: Store, ending: Any = Returned(b"42"), **options: Any) -> JobId:  # noqa: B008  (frozen)
    job_id = await submit_one(store, a_job(**options))
    await end(store, await claim_one(store), ending)
    return job_id


async def test_what_has_ended_is_archived_with_all_that_is_known_of_it(store: Store, chore: Archiver) -> None:
    # R5.102
    await register(store)
    good = await ended(store, tenant="acme")
    bad = await ended(store, Raised(BOOM), max_retries=0)
    await chore()
    [first, second] = await rows()
    assert (first["job_id"], first["state"], first["tenant"], first["result"]) == (good, "completed", "acme", "42")
    assert (second["job_id"], second["state"], second["error_type"]) == (bad, "dead_letter", BOOM.type)
    assert first["finished_at"] >= first["started_at"] >= first["submitted_at"]
    assert '"reason"' in second["attempt_log"]
    assert (first["lane"], first["needs"], second["max_retries"]) == ("medium", [], 0)
    await chore()
    assert chore.archived == 2


async def test_nothing_is_forgotten_before_it_is_archived(store: Store, chore: Archiver) -> None:
    await register(store)
    job_ids = [await ended(store), await ended(store, Raised(BOOM), max_retries=0)]
    assert await store.prune(NOTHING_KEPT) == 0
    await chore()
    assert await store.prune(NOTHING_KEPT) == 2
    assert {row["job_id"] for row in await rows()} == set(job_ids)


async def test_a_batch_whose_mark_was_lost_is_archived_again_and_counts_once(
    store: Store, archive: PostgresArchive
) -> None:
    source = archive_source(store)
    await source.unarchived(10)
    await register(store)
    job_id = await ended(store)
    await archive.add(await source.unarchived(10))  # Then the archiver dies.
    await Archiver(source, archive)()
    assert [row["job_id"] for row in await rows()] == [job_id]
    assert await source.unarchived(10) == []


async def test_a_job_that_ends_anew_meanwhile_is_archived_anew(
    store: Store, archive: PostgresArchive, clock: ManualClock
) -> None:
    source = archive_source(store)
    await source.unarchived(10)
    await register(store)
    job_id = await ended(store, Raised(BOOM), max_retries=0)
    taken = await source.unarchived(10)
    await archive.add(taken)
    clock.advance(seconds=1)
    assert await store.retry([job_id]) == [State.QUEUED]
    await end(store, await claim_one(store), Returned(b"1"))
    await source.archived(taken)  # About the ending before.
    await Archiver(source, archive)()
    assert [(row["job_id"], row["state"]) for row in await rows()] == [(job_id, "completed")]


async def test_an_archiver_that_comes_late_replaces_no_later_ending(
    store: Store, archive: PostgresArchive, clock: ManualClock
) -> None:
    source = archive_source(store)
    await source.unarchived(10)
    await register(store)
    job_id = await ended(store, Raised(BOOM), max_retries=0)
    late = await source.unarchived(10)
    clock.advance(seconds=1)
    await store.retry([job_id])
    await end(store, await claim_one(store), Returned(b"1"))
    await Archiver(source, archive)()
    await archive.add(late)
    assert [(row["job_id"], row["state"]) for row in await rows()] == [(job_id, "completed")]


async def test_while_the_archive_is_away_jobs_wait_for_it(store: Store, chore: Archiver) -> None:
    source = archive_source(store)
    await register(store)
    job_id = await ended(store)
    with pytest.raises(StoreUnavailable, match="wait to be archived"):
        await Archiver(source, PostgresArchive("postgresql://postgres@127.0.0.1:1/none", "default"))()
    await chore()
    assert [row["job_id"] for row in await rows()] == [job_id]


async def test_where_nobody_archives_nothing_is_held(store: Store) -> None:
    source = archive_source(store)
    await register(store)
    await ended(store)
    assert await store.prune(NOTHING_KEPT) == 1
    assert await source.unarchived(10) == []


async def test_namespaces_are_archived_apart(open_namespace: OpenStore, archive: PostgresArchive) -> None:
    one, other = await open_namespace("default"), await open_namespace("other")
    for store in (one, other):
        await archive_source(store).unarchived(10)
        await register(store)
        await ended(store, job_id="00000000-0000-0000-0000-000000000001")
    await Archiver(archive_source(one), archive)()
    assert [row["namespace"] for row in await rows()] == ["default"]
    assert len(await archive_source(other).unarchived(10)) == 1


def test_a_history_is_for_redis_and_in_postgresql(store_name: str) -> None:
    with pytest.raises(ConfigError, match="history is for jobs on Redis"):
        Headway("sqlite:///x.db", history="postgresql://localhost/x")
    with pytest.raises(ConfigError, match="postgresql://"):
        Headway("redis://localhost", history="mysql://localhost/x")


async def test_a_store_that_keeps_ended_jobs_itself_has_no_archivist(store_name: str) -> None:
    from headway.stores.open import open_store

    with pytest.raises(ConfigError, match="keeps ended jobs itself"):
        make_archiver(open_store("memory://"), "postgresql://localhost/x")
