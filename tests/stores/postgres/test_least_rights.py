"""The store with a role that may change rows but not create tables."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import asyncpg  # type: ignore[import-untyped]
import psycopg
import pytest

from headway.core.policy.document import DAY, Keep
from headway.stores.base import Store
from headway.stores.open import open_store
from headway.testing.clock import ManualClock
from tests.conformance import test_cancel, test_documents, test_finish
from tests.conformance.builders import claim_one, end, register, submit_one
from tests.conftest import empty_schema, postgres
from tests.stores.postgres.test_days import days

# As in docs/how-to/run-on-postgresql.md.
GRANTS = """
CREATE ROLE {role} LOGIN;
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role};
GRANT USAGE, SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA {schema} TO {role};
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {role};
"""


@pytest.fixture(scope="module")
def granted() -> Iterator[tuple[str, str]]:
    """Yield a schema that its owner has created, and a role with the rights that the documentation lists."""
    name = f"test_{uuid4().hex[:12]}"

    async def migrate() -> None:
        store = open_store(f"{postgres().url}?schema={name}")
        await store.open()
        await store.close()

    asyncio.run(migrate())
    with psycopg.connect(postgres().url, autocommit=True) as owner:
        owner.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        owner.execute(GRANTS.format(role=name, schema=name).encode())
        yield name, f"{postgres().url.replace('postgres@', f'{name}@')}?schema={name}"
        owner.execute(f"DROP SCHEMA {name} CASCADE; DROP OWNED BY {name}; DROP ROLE {name}".encode())


@pytest.fixture
async def store(granted: tuple[str, str], clock: ManualClock) -> AsyncIterator[Store]:
    schema, url = granted
    with psycopg.connect(postgres().url, autocommit=True) as owner:
        empty_schema(owner, schema)
    found = open_store(url, clock=clock)
    await found.open()
    yield found
    await found.close()


async def test_the_role_cannot_make_tables(granted: tuple[str, str]) -> None:  # S-30
    schema, url = granted
    connection = await asyncpg.connect(url.partition("?")[0])
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await connection.execute(f"CREATE TABLE {schema}.other (x int)")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await connection.execute(f"DROP TABLE {schema}.job")
    await connection.close()


async def test_every_day_has_its_table_past_any_midnight(
    store: Store, granted: tuple[str, str], clock: ManualClock
) -> None:
    # S-30
    schema, url = granted
    outside = await asyncpg.connect(postgres().url)
    seen: set[str] = set()
    for _ in range(4):
        clock.advance(ms=10 * DAY)
        again = open_store(url, clock=clock)  # Another process, whose turn it is to see to the tables.
        await again.open()
        await again.prune(Keep())
        await register(again)
        await submit_one(again)
        await end(again, await claim_one(again))
        assert await outside.fetchval(f"SELECT count(*) FROM {schema}.outcome_any_day") == 0
        now = await days(outside, schema)
        assert len(now) >= 3
        assert min(now) not in seen  # The days before are dropped with their jobs.
        seen = set(now)
        await again.close()
    await outside.close()


# What every store does, under that role.  S-30
for _module in (test_finish, test_cancel, test_documents):
    globals().update({name: test for name, test in vars(_module).items() if name.startswith("test_")})
