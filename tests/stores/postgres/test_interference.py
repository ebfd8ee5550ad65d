"""Effects of other sessions, roles and settings on a store: verbs are repeated, refused as a whole, or unaffected."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import asyncpg  # type: ignore[import-untyped]
import pytest

from headway.core.errors import StoreBusy, StoreError, StoreUnavailable
from headway.core.job import State
from headway.core.lease import ReportStatus
from headway.core.policy.document import LimitRule, Policy
from headway.policy_store.rule_documents import write_rules
from headway.stores.base import JobQuery
from headway.stores.postgres import connections
from headway.stores.postgres.statements import FUNCTIONS_VERSION
from tests.conformance.builders import a_job, ask, beat, claim, claim_one, end, register, state_of, submit, submit_one
from tests.stores.postgres.conftest import OpenStore, Outside
from tests.stores.postgres.test_trouble import drain

SERIALIZATION, DEADLOCK, READ_ONLY = "40001", "40P01", "25006"
WAIT_FOR_THIS = "SELECT count(*) FROM pg_stat_activity WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid))"


@asynccontextmanager
async def raising(outside: Outside, schema: str, table: str, code: str, times: int) -> AsyncIterator[None]:
    """Make the next statements that write to a table fail with a code, this many times."""
    # A sequence is not rolled back, so it counts failures too.
    await outside.execute(f"""
        CREATE SEQUENCE {schema}.failures;
        CREATE FUNCTION {schema}.fail() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
          IF nextval('{schema}.failures') <= {times} THEN
            RAISE EXCEPTION 'injected' USING ERRCODE = '{code}';
          END IF;
          RETURN NULL;
        END $$;
        CREATE TRIGGER fail BEFORE INSERT OR UPDATE OR DELETE ON {schema}.{table}
          FOR EACH STATEMENT EXECUTE FUNCTION {schema}.fail();
    """)
    try:
        yield
        assert await outside.fetchval(f"SELECT last_value FROM {schema}.failures") >= times
    finally:
        await outside.execute(f"DROP FUNCTION {schema}.fail CASCADE; DROP SEQUENCE {schema}.failures")


@asynccontextmanager
async def a_role(outside: Outside, name: str, *settings: str) -> AsyncIterator[None]:
    await outside.execute(f"CREATE ROLE {name} LOGIN")
    try:
        for setting in settings:
            await outside.execute(f"ALTER ROLE {name} SET {setting}")
        yield
    finally:
        await outside.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


GRANTS = """
    GRANT USAGE ON SCHEMA {schema} TO {role};
    GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role};
    GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO {role};
    GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {role};
"""


# ---------------------------------------------------------------------- failures that ask to be repeated


@pytest.mark.parametrize("code", [SERIALIZATION, DEADLOCK])
@pytest.mark.parametrize("verb, table", [("submit", "job"), ("claim", "lease"), ("finish", "lease")])
async def test_a_verb_that_others_got_in_the_way_of_is_repeated(
    open_url: OpenStore, url: str, outside: Outside, schema: str, verb: str, table: str, code: str
) -> None:
    # P5
    store = await open_url(url)
    await register(store)
    job_id = None if verb == "submit" else await submit_one(store)
    lease = await claim_one(store) if verb == "finish" else None
    async with raising(outside, schema, table, code, 2):
        match verb:
            case "submit":
                job_id = await submit_one(store)
            case "claim":
                lease = await claim_one(store)
            case _:
                assert lease is not None
                assert await end(store, lease) is ReportStatus.OK
    assert job_id is not None
    expected = {"submit": State.QUEUED, "claim": State.EXECUTING, "finish": State.COMPLETED}
    assert await state_of(store, job_id) is expected[verb]
    assert len(await store.find(JobQuery())) == 1
    assert (await store.stats()).totals["submitted"] == 1


async def test_a_verb_that_others_always_get_in_the_way_of_is_refused_whole(
    open_url: OpenStore, url: str, outside: Outside, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # P5
    monkeypatch.setattr(connections, "CONTESTED", 2)
    store = await open_url(url)
    await register(store)
    await submit_one(store)
    async with raising(outside, schema, "lease", SERIALIZATION, 3):
        with pytest.raises(StoreBusy, match="injected"):
            await ask(store)
    [job] = await store.find(JobQuery())
    assert (job.state, job.attempts, job.worker_id) == (State.QUEUED, 0, None)
    lease = await claim_one(store)
    assert await end(store, lease) is ReportStatus.OK


# ---------------------------------------------------------------------- servers that may not be written to


async def test_a_server_that_is_read_only_for_a_while_is_waited_for(
    open_url: OpenStore, url: str, outside: Outside, schema: str
) -> None:
    # P12: as a standby is until it is promoted.
    store = await open_url(url)
    async with raising(outside, schema, "job", READ_ONLY, 2):
        job_id = await submit_one(store)
    assert await state_of(store, job_id) is State.QUEUED


async def test_a_server_that_stays_read_only_is_reported(
    open_url: OpenStore, url: str, outside: Outside, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # P12
    monkeypatch.setattr(connections, "PATIENCE", 0.2)
    store = await open_url(url)
    async with raising(outside, schema, "job", READ_ONLY, 1_000_000):
        with pytest.raises(StoreUnavailable):
            await submit_one(store)
        await outside.execute(f"SELECT setval('{schema}.failures', 1000000)")
    assert await store.find(JobQuery()) == []


async def test_a_role_that_is_read_only_by_default_can_write(open_url: OpenStore, url: str, outside: Outside) -> None:
    # P12: Headway says for its own sessions that they write.
    schema = url.partition("schema=")[2]
    await open_url(url)
    async with a_role(outside, f"reader_{schema}", "default_transaction_read_only = on"):
        await outside.execute(GRANTS.format(schema=schema, role=f"reader_{schema}"))
        store = await open_url(url.replace("postgres@", f"reader_{schema}@"))
        assert await state_of(store, await submit_one(store)) is State.QUEUED
        await store.close()


# ---------------------------------------------------------------------- statements that are ended, sessions that stay


@pytest.mark.parametrize("setting", ["statement_timeout", "lock_timeout"])
async def test_a_statement_that_is_ended_leaves_no_half_move(
    open_url: OpenStore, url: str, outside: Outside, schema: str, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # P13
    monkeypatch.setattr(connections, "CONTESTED", 1)
    owner = await open_url(url)
    role = f"hasty_{schema}"
    async with a_role(outside, role, f"{setting} = '60ms'"):
        await outside.execute(GRANTS.format(schema=schema, role=role))
        store = await open_url(url.replace("postgres@", f"{role}@"))
        other = await asyncpg.connect(url.partition("?")[0])
        try:
            async with other.transaction():
                await other.execute(f"LOCK TABLE {schema}.job IN ACCESS EXCLUSIVE MODE")
                with pytest.raises(StoreBusy):
                    await submit(store, *(a_job() for _ in range(5)))
        finally:
            await other.close()
        assert await owner.find(JobQuery()) == []
        assert len(await submit(store, *(a_job() for _ in range(5)))) == 5
        await store.close()
    assert len(await owner.find(JobQuery())) == 5


async def test_a_session_that_stays_in_a_transaction_holds_nothing_up(
    open_url: OpenStore, url: str, outside: Outside, schema: str
) -> None:
    # P6: its snapshot keeps dead rows; its lock on one job keeps that job alone.
    store = await open_url(url)
    jobs = await submit(store, *(a_job() for _ in range(300)))
    other = await asyncpg.connect(url.partition("?")[0])
    try:
        async with other.transaction(isolation="repeatable_read"):
            await other.fetch(f"SELECT * FROM {schema}.job")
            seen: Counter[str] = Counter()
            await drain(store, "w1", seen)
            assert set(seen) == set(jobs)
            assert set(seen.values()) == {1}
    finally:
        await other.close()
    assert Counter(job.state for job in await store.find(JobQuery(limit=500))) == {State.COMPLETED: 300}


# ---------------------------------------------------------------------- a role that may not change the schema


@pytest.mark.slow
async def test_a_machine_that_freezes_with_many_sessions_holds_the_others_up_for_seconds(
    open_url: OpenStore, url: str, outside: Outside, schema: str
) -> None:
    # One session holds the namespace and the others wait for it. Their clients never send another statement.
    store = await open_url(url)
    await register(store)
    namespace_id = await outside.fetchval(f"SELECT namespace_id FROM {schema}.namespace")
    begin = f"SELECT {schema}.begin_{FUNCTIONS_VERSION}($1, NULL, true)"
    async with AsyncExitStack() as stack:
        sessions: list[Outside] = [await asyncpg.connect(url.partition("?")[0]) for _ in range(4)]
        for session in sessions:
            stack.callback(session.terminate)
            await session.execute("BEGIN")
        await sessions[0].fetchval(begin, namespace_id)
        waits = [asyncio.create_task(session.fetchval(begin, namespace_id)) for session in sessions[1:]]
        while await outside.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted") < len(waits):  # noqa: ASYNC110
            await asyncio.sleep(0)
        began = time.monotonic()
        assert (await beat(store)).state == "active"
        assert time.monotonic() - began < 20
        for problem in await asyncio.gather(*waits, return_exceptions=True):
            assert isinstance(problem, asyncpg.LockNotAvailableError)


async def test_a_role_without_rights_to_the_schema_itself_can_serve(
    open_url: OpenStore, url: str, outside: Outside, schema: str
) -> None:
    # S-30: the owner migrates; the role that serves has the rights that the manual names, and no others.
    await open_url(url)
    role = f"server_{schema}"
    async with a_role(outside, role):
        with pytest.raises(StoreError):
            await open_url(url.replace("postgres@", f"{role}@"))
        await outside.execute(GRANTS.format(schema=schema, role=role))
        store = await open_url(url.replace("postgres@", f"{role}@"))
        jobs = await submit(store, *(a_job() for _ in range(50)))
        seen: Counter[str] = Counter()
        await drain(store, "w1", seen)
        assert set(seen) == set(jobs)
        plain = await asyncpg.connect(url.partition("?")[0].replace("postgres@", f"{role}@"))
        for statement in (
            f"CREATE TABLE {schema}.mine (a int)",
            f"ALTER TABLE {schema}.job ADD b int",
            "CREATE SCHEMA x",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await plain.execute(statement)
        await plain.close()
        await store.close()


async def test_a_blocked_job_that_another_transaction_changes_is_leased_once(
    open_url: OpenStore, url: str, schema: str, outside: Outside
) -> None:
    store = await open_url(url)
    await write_rules(store, Policy(limits={"account": LimitRule(1, by="account")}))
    await register(store)
    job_ids = await submit(store, *(a_job(limits=("account=7",)) for _ in range(3)))
    [first] = await claim(store)
    await end(store, first)
    async with outside.transaction():
        await outside.execute(f"SELECT {schema}.make_fair_{FUNCTIONS_VERSION}(class_id, 0) FROM {schema}.class")
        claimed = asyncio.create_task(claim(store))
        while not await outside.fetchval(WAIT_FOR_THIS):
            assert not claimed.done()
            await asyncio.sleep(0.01)
    [second] = await claimed
    assert await outside.fetch(f"SELECT FROM {schema}.ready JOIN {schema}.lease USING (seq)") == []
    await end(store, second)
    [third] = await claim(store)
    assert {first.job_id, second.job_id, third.job_id} == set(job_ids)
