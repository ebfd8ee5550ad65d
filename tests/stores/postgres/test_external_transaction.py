"""Submit in a caller's transaction: a rollback removes the jobs, and a commit lets them run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import asyncpg  # type: ignore[import-untyped]
import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from headway import Headway
from headway.core.errors import ConfigError, PayloadError
from headway.stores.base import JobQuery
from tests.conformance.builders import a_job
from tests.conformance.test_hostile_text import HOSTILE, REFUSED, as_submitted, hostile_job
from tests.conftest import postgres
from tests.stores.postgres.conftest import OpenStore, Outside


@pytest.fixture
async def app(url: str) -> AsyncIterator[Headway]:
    made = Headway(store=url)
    made.task(name="add")(_add)
    made.task(name="bill", fair_by="customer")(_bill)
    yield made
    await made.aclose()
    await asyncio.to_thread(made.close)


async def _add(left: int, right: int) -> int:
    return left + right


async def _bill(customer: str) -> None: ...


@pytest.fixture
def engine() -> Iterator[sa.Engine]:
    made = sa.create_engine(postgres().url.replace("postgresql://", "postgresql+psycopg://"))
    yield made
    made.dispose()


async def kept(outside: Outside, url: str) -> int:
    schema = url.partition("schema=")[2]
    return int(await outside.fetchval(f"SELECT count(*) FROM {schema}.job"))


async def test_an_asyncpg_transaction_takes_its_jobs_with_it(app: Headway, url: str, outside: Outside) -> None:
    # R2.72
    add = app.find_task("add")
    connection = await asyncpg.connect(postgres().url)
    undone = connection.transaction()
    await undone.start()
    await add.using(connection=connection).aenqueue(1, 2)
    await undone.rollback()
    assert await kept(outside, url) == 0
    async with connection.transaction():
        job = await add.using(connection=connection).aenqueue(1, 2)
        assert await kept(outside, url) == 0
    assert await job.astatus() == "queued"
    await connection.close()


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_an_sqlalchemy_session_does(app: Headway, url: str, outside: Outside, driver: str) -> None:
    made = create_async_engine(postgres().url.replace("postgresql://", f"postgresql+{driver}://"))
    add = app.find_task("add")
    async with AsyncSession(made) as session:
        await add.using(connection=session).aenqueue(1, 2)
        await session.rollback()
        assert await kept(outside, url) == 0
        jobs = await app.aenqueue_many((add.call(1, n) for n in range(3)), connection=session)
        await session.commit()
    async with made.begin() as connection:
        await add.using(connection=connection).aenqueue(1, 2)
    assert len(jobs) == 3
    assert await kept(outside, url) == 4
    await made.dispose()


async def test_a_psycopg_connection_does(app: Headway, url: str, outside: Outside) -> None:
    add = app.find_task("add")
    async with await psycopg.AsyncConnection.connect(postgres().url) as connection:
        await add.using(connection=connection).aenqueue(1, 2)
        await connection.rollback()
        await add.using(connection=connection).aenqueue(1, 2)
        assert await kept(outside, url) == 0
    assert await kept(outside, url) == 1


async def test_code_without_a_loop_does_too(app: Headway, url: str, outside: Outside, engine: sa.Engine) -> None:
    add = app.find_task("add")

    def work() -> None:
        with psycopg.connect(postgres().url) as connection:
            add.using(connection=connection).enqueue(1, 2)
            connection.rollback()
            add.using(connection=connection).enqueue(1, 2)
        with Session(engine) as session:
            app.enqueue_many([add.call(1, 2), add.call(3, 4)], connection=session)
            session.rollback()
            app.enqueue_many([add.using(connection=session).call(1, 2), add.using(connection=session).call(3, 4)])
            session.commit()
        with engine.begin() as plain:
            add.using(connection=plain).enqueue(5, 6)

    await asyncio.to_thread(work)
    assert await kept(outside, url) == 4


async def test_a_key_that_is_known_does_not_end_the_callers_transaction(
    app: Headway, url: str, outside: Outside
) -> None:
    add = app.find_task("add").using(idempotency_key="once")
    first = await add.aenqueue(1, 2)
    async with outside.transaction():
        again = await add.using(connection=outside).aenqueue(1, 2)
        assert await outside.fetchval("SELECT 1") == 1
    assert again.id == first.id
    assert again.deduplicated
    assert await kept(outside, url) == 1


async def test_jobs_of_tenants_get_their_places_once_they_are_committed(app: Headway, outside: Outside) -> None:
    bill = app.find_task("bill")
    async with outside.transaction():
        await bill.using(connection=outside).aenqueue("acme")
        other = await asyncio.wait_for(bill.aenqueue("zeta"), 5)  # Waits for no other transaction.
    assert await other.astatus() == "queued"


async def test_what_is_no_connection_is_refused(app: Headway, engine: sa.Engine) -> None:
    add = app.find_task("add")
    with pytest.raises(ConfigError, match="known are an asyncpg connection"):
        await add.using(connection=object()).aenqueue(1, 2)
    with psycopg.connect(postgres().url) as connection, pytest.raises(ConfigError, match=r"with enqueue\(\)"):
        await add.using(connection=connection).aenqueue(1, 2)
    with pytest.raises(ConfigError, match="the same connection"):
        await app.aenqueue_many([add.call(1, 2), add.using(connection=engine).call(1, 2)])


async def test_other_stores_refuse_a_connection() -> None:
    app = Headway(store="memory://")
    add = app.task(name="add")(_add)
    with pytest.raises(ConfigError, match="PostgreSQL"):
        await add.using(connection=object()).aenqueue(1, 2)
    await app.aclose()


async def test_a_plain_job_of_a_class_that_tenants_share_waits_for_its_place_too(
    app: Headway, url: str, outside: Outside
) -> None:
    add, bill = app.find_task("add"), app.find_task("bill")
    await add.using(connection=outside).aenqueue(1, 2)  # The short way, as long as tenants do not share the class.
    await bill.aenqueue("acme")
    async with outside.transaction():
        job = await add.using(connection=outside).aenqueue(3, 4)
    assert await job.astatus() == "queued"
    assert await kept(outside, url) == 3
    assert (await app.astats()).totals["submitted"] == 3


async def test_a_job_whose_id_is_known_is_recognised_on_the_short_way(app: Headway, url: str, outside: Outside) -> None:
    add = app.find_task("add")
    call = add.using(connection=outside).call(1, 2)
    first = call.handle((await app.submitter.submit([call], call.task.connection))[0])
    async with outside.transaction():
        again = call.handle((await app.submitter.submit([call], call.task.connection))[0])
        assert await outside.fetchval("SELECT 1") == 1
    assert again.id == first.id
    assert await kept(outside, url) == 1


async def test_blocking_submits_of_plain_jobs_ask_the_store_nothing_else(app: Headway, url: str) -> None:
    add = app.find_task("add")

    def work() -> None:
        with psycopg.connect(postgres().url) as connection:
            mine = add.using(connection=connection)
            mine.enqueue(1, 2)
            store = app.client.opened(app.portal.loop())
            assert store is not None
            app.portal.run(store.close())  # From here on only the caller's own connection works.
            jobs = [mine.enqueue(1, n) for n in range(3)]
            connection.commit()
            found = connection.execute(
                f"SELECT count(*) FROM {url.partition('schema=')[2]}.job WHERE job_id = ANY (%s)".encode(),
                [[job.id for job in jobs]],
            ).fetchone()
            assert found == (3,)

    await asyncio.to_thread(work)


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_hostile_texts_are_kept_as_they_are_inside_a_transaction(
    open_url: OpenStore, url: str, driver: str
) -> None:
    # S-22
    store = await open_url(url)
    await store.submit([a_job()])  # From now on the class is known, and one plain job goes the short way.
    texts = [text for name, text in HOSTILE.items() if name not in REFUSED]
    jobs = [a_job(task=text, trace_id=text) for text in texts]
    jobs += [hostile_job(field, text) for field in ("tenant", "idempotency_key", "unique_key") for text in texts]
    if driver == "asyncpg":
        connection = await asyncpg.connect(postgres().url)
        async with connection.transaction():
            for job in jobs:
                assert await (await store.prepare_submit([job])).arun(connection) is not None
        await connection.close()
    else:
        with psycopg.connect(postgres().url) as blocking:
            for job in jobs:
                assert (await store.prepare_submit([job])).run(blocking) is not None
    found = await store.get([job.job_id for job in jobs])
    assert all(kept is not None and as_submitted(kept, new) for kept, new in zip(found, jobs, strict=True))
    assert {job.job_id for job in await store.find(JobQuery(limit=1_000))} >= {job.job_id for job in jobs}
    for name in REFUSED:
        with pytest.raises(PayloadError):
            await store.prepare_submit([a_job(trace_id=HOSTILE[name])])
