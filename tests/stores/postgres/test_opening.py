"""Opening and migrating: an empty schema is filled, an older one needs `headway migrate`, others are not touched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

from headway.core.errors import ConfigError, NotAStore, StoreError, StoreTooNew
from headway.stores.open import open_store
from headway.stores.postgres.address import read_address
from headway.stores.postgres.connections import connect
from headway.stores.postgres.migrate import NEWEST, migrate
from headway.stores.postgres.statements import MIGRATIONS
from tests.conformance.builders import a_job, state_of, submit_one
from tests.conftest import postgres
from tests.stores.postgres.conftest import OpenStore, Outside

SHAPE = """
  SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid
    LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
   WHERE n.nspname = $1 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY 1, 2"""


async def shape(outside: Outside, schema: str) -> list[tuple[object, ...]]:
    """Return all columns and indexes of a schema, without its name."""
    columns = [tuple(row) for row in await outside.fetch(SHAPE, schema)]
    indexes = await outside.fetch("SELECT indexdef FROM pg_indexes WHERE schemaname = $1 ORDER BY 1", schema)
    return [
        tuple(str(value).replace(schema, "") for value in row) for row in [*columns, *(tuple(row) for row in indexes)]
    ]


async def test_a_fresh_database_just_works(open_url: OpenStore, url: str) -> None:
    store = await open_url(url)
    assert await store.schema() == (NEWEST, NEWEST)
    job_id = await submit_one(store)
    again = await open_url(url)
    assert await state_of(again, job_id) == "queued"


async def test_before_the_first_opening_there_is_nothing(url: str) -> None:
    assert await open_store(url).schema() == (None, NEWEST)


@pytest.mark.parametrize("number", [number for number, _ in MIGRATIONS])
async def test_an_older_schema_is_left_to_the_command_and_becomes_as_a_new_one(
    open_url: OpenStore, url: str, schema: str, outside: Outside, number: int
) -> None:
    # P14
    connection = await connect(postgres().url)
    await migrate(connection, schema, "here", to=number)
    with pytest.raises(StoreError, match="run `headway migrate`"):
        await open_store(url).open()
    store = open_store(url)
    await store.migrate()  # type: ignore[attr-defined]
    await submit_one(await open_url(url))
    migrated = await shape(outside, schema)
    await connection.execute(f"DROP SCHEMA {schema} CASCADE")
    await migrate(connection, schema, "here")
    assert await shape(outside, schema) == migrated
    await connection.close()


async def test_a_newer_store_is_refused(open_url: OpenStore, url: str, schema: str, outside: Outside) -> None:
    await open_url(url)
    await outside.execute(f"UPDATE {schema}.format SET value = 99 WHERE name = 'oldest_writer'")
    with pytest.raises(StoreTooNew, match="upgrade Headway"):
        await open_store(url).open()


async def test_a_schema_of_another_program_is_left_alone(url: str, schema: str, outside: Outside) -> None:
    await outside.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.theirs (a int)")
    with pytest.raises(NotAStore, match=r"\?schema="):
        await open_store(url).open()


def test_two_processes_may_migrate_at_once(url: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headway", "migrate", "--store", url]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=tmp_path, text=True)
        for _ in range(2)
    ]
    for process in started:
        output, _ = process.communicate(timeout=50)
        assert process.returncode == 0, output
    dry = subprocess.run([*command, "--dry-run"], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert "nothing to do" in dry.stdout


def test_an_address_is_read_and_what_is_wrong_in_it_is_said() -> None:
    address = read_address("postgresql://me:secret@db:5433/app?sslmode=require&schema=jobs&pool=2")
    assert (address.schema, address.pool, address.pgbouncer) == ("jobs", 2, False)
    assert address.url == "postgresql://me:secret@db:5433/app?sslmode=require"
    assert "secret" not in address.shown
    assert address.listen == address.url
    assert read_address("postgresql://db/app?pgbouncer=1").listen is None
    direct = read_address("postgresql://db/app?pgbouncer=1&listen=postgresql://direct/app")
    assert direct.listen == "postgresql://direct/app"
    for wrong, said in {
        "shema=x": "unknown option 'shema'; known are schema, pool, pgbouncer, listen",
        "schema=a;b": "schema is a name",
        "pool=0": "pool is a number",
        "pgbouncer=yes": "pgbouncer is 0 or 1",
        "listen=redis://x": "listen is an address",
    }.items():
        with pytest.raises(ConfigError, match=said):
            read_address(f"postgresql://me:secret@db/app?{wrong}")


@pytest.mark.parametrize(
    "schema",
    ["a'b", 'a"b', "a;b", "a--b c", "a$$b", "1a", "", "a" * 64, "ä", "a\0b", "a%b", "../a", "a.b", "{a}"],
)
def test_a_schema_that_could_be_more_than_a_name_is_refused(schema: str) -> None:  # S-22
    with pytest.raises(ConfigError, match="schema is a name"):
        read_address(f"postgresql://db/app?schema={quote(schema)}")


def test_a_password_in_place_of_a_port_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError, match="what follows the host's colon is a port") as caught:
        read_address("postgresql://me@db:hunter2/app")
    assert "hunter2" not in str(caught.value)


async def test_what_an_operator_wants_to_know(open_url: OpenStore, url: str) -> None:
    facts = await (await open_url(url.replace("postgres@", "postgres:secret@"))).describe()
    assert "secret" not in str(facts)
    assert facts["server"].startswith("PostgreSQL 1")
    assert "fsync=off" in facts["durability"]


async def test_a_name_with_odd_letters_is_quoted(outside: Outside, open_url: OpenStore) -> None:
    name = "Odd-Name1"
    await outside.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE')
    store = await open_url(f"{postgres().url}?schema={name}")
    job = a_job()
    await submit_one(store, job)
    assert await state_of(store, job.job_id) == "queued"
    await outside.execute(f'DROP SCHEMA "{name}" CASCADE')
