"""Fixtures of all tests: the stores, a manual clock, and the seed of random tests."""

from __future__ import annotations

import atexit
import functools
import gc
import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from itertools import islice
from pathlib import Path
from typing import TypeVar

import psycopg
import pytest
from hypothesis import HealthCheck, settings

from headway.stores import base
from headway.stores import open as opening
from headway.stores.base import Clock, Store
from headway.stores.open import open_store
from headway.stores.split import optional
from headway.stores.split.store import SplitStore
from headway.stores.sqlite.own_file import OwnFile
from headway.testing.clock import ManualClock
from tests.certificates import make_certificate
from tests.deferred import defer_submits
from tests.servers import PgBouncer, Postgres, Server, Valkey
from tests.shared_file import DEFERRED, SCHEME, open_hasty_shared_file, open_shared_file

# How long an example takes says how busy the machine is, not whether it holds.
settings.register_profile("headway", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("headway")

# A machine that is busy with tests may keep a submit waiting, or start a server again, for longer than callers would.
base.REFUSED_WITHIN = 10.0
optional.TIMEOUT = 10.0
opening.TIMEOUT = 20.0  # type: ignore[attr-defined]
os.environ.setdefault("HEADWAY_STORE_TIMEOUT", "20")

AnyServer = TypeVar("AnyServer", bound=Server)
OpenStore = Callable[[str], Awaitable[Store]]


def _memory(_folder: Path, namespace: str, clock: Clock) -> Store:
    return open_store("memory://", namespace, clock=clock)


def _sqlite(folder: Path, namespace: str, clock: Clock) -> Store:
    return open_store(_sqlite_address(folder), namespace, clock=clock)


def _hasty_sqlite(folder: Path, namespace: str, clock: Clock) -> Store:
    return open_store(_hasty_sqlite_address(folder), namespace, clock=clock)


def _sqlite_address(folder: Path) -> str:
    """Return the address of an empty store file, copied because to make one syncs the disk a dozen times."""
    path = folder / "headway.db"
    if not path.exists():
        path.write_bytes(_empty_store_file())
    return f"sqlite:///{path}"


def _hasty_sqlite_address(folder: Path) -> str:
    """Return an address where what is written need not survive a power cut."""
    return f"{_sqlite_address(folder)}?synchronous=normal"


@functools.cache
def _empty_store_file() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "headway.db"
        OwnFile(path, "normal").prepare().close()
        return path.read_bytes()


def _postgres(folder: Path, namespace: str, clock: Clock) -> Store:
    _wipe_postgres(str(folder))
    return open_store(postgres().url, namespace, clock=clock)


def _pgbouncer(folder: Path, namespace: str, clock: Clock) -> Store:
    return open_store(_pgbouncer_address(folder), namespace, clock=clock)


def _pgbouncer_address(folder: Path) -> str:
    if PgBouncer.program() is None:
        pytest.skip("PgBouncer is not installed here (Debian: pgbouncer)")
    _wipe_postgres(str(folder))
    return pgbouncer().url


@functools.lru_cache(maxsize=1)
def _wipe_postgres(_folder: str) -> None:
    """Empty the shared schema for the next test, which is quicker than to make another one."""
    try:
        empty_schema(_wiper())
    except psycopg.OperationalError:  # A test has ended its session.
        _wiper.cache_clear()
        empty_schema(_wiper())


@functools.cache
def _wiper() -> psycopg.Connection:
    connection = psycopg.connect(postgres().url, autocommit=True)
    atexit.register(connection.close)
    return connection


# Where the numbers of jobs begin, and what is remembered of the clock: the next test has another one.
_RESET = (
    "SELECT setval('headway.sequence', 1, false)",
    "SELECT setval('headway.clock_ahead', 0), setval('headway.clock_reached', 0)",
)


def empty_schema(connection: psycopg.Connection, schema: str = "headway") -> None:
    found = connection.execute(
        "SELECT c.relname FROM pg_class c WHERE c.relnamespace = to_regnamespace(%s) AND c.relkind IN ('r', 'p')"
        " AND NOT c.relispartition AND c.relname <> 'format'",
        [schema],
    ).fetchall()
    if found:
        emptied = [f'DELETE FROM {schema}."{name}"' for (name,) in found]
        reset = [statement.replace("headway.", f"{schema}.") for statement in _RESET]
        connection.execute("; ".join([*emptied, *reset]).encode())


@functools.cache
def valkey() -> Valkey:
    """Yield the Valkey server that most tests share. Each of them has a prefix of its own there."""
    return _started(Valkey(_server_folder("valkey"), 'save ""'))


@functools.cache
def postgres() -> Postgres:
    """Yield the shared PostgreSQL server. Each test has namespaces or a schema of its own there."""
    return _started(Postgres(_server_folder("postgres")))


@functools.cache
def pgbouncer() -> PgBouncer:
    """Yield a pooler in front of the shared PostgreSQL server."""
    return _started(PgBouncer(_server_folder("pgbouncer"), postgres()))


def _server_folder(name: str) -> Path:
    return Path(tempfile.mkdtemp(prefix=f"headway-{name}-"))


def _started(server: AnyServer) -> AnyServer:
    server.start()
    atexit.register(server.discard)
    return server


def _redis(folder: Path, namespace: str, clock: Clock) -> Store:
    return open_store(_redis_address(folder), namespace, clock=clock)


def _redis_address(folder: Path) -> str:
    prefix = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    return f"{valkey().url}?prefix={prefix}"


def _postgres_address(folder: Path) -> str:
    _wipe_postgres(str(folder))
    return postgres().url


# A store joins the conformance tests with one line here: a folder of its own, a namespace and a clock make it.
STORES: dict[str, Callable[[Path, str, Clock], Store]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "redis": _redis,
    "postgres": _postgres,
}
# SQLite through another library, PostgreSQL through a pooler, and Redis with deferred submits.
SHARED_FILES: dict[str, Callable[[Path, str, Clock], Store]] = {
    "shared_file": open_shared_file,
    "pgbouncer": _pgbouncer,
    "deferred": lambda folder, namespace, clock: defer_submits(_redis(folder, namespace, clock)),
}

# Two stores as one, for durable and for transient jobs: they are held to the conformance tests too.
PAIRS: dict[str, Callable[[Path, str, Clock], Store]] = {
    "memory+memory": lambda _folder, namespace, clock: SplitStore(
        open_store("memory://", namespace, clock=clock), lambda: open_store("memory://", namespace, clock=clock)
    ),
    "sqlite+redis": lambda folder, namespace, clock: open_store(
        _hasty_sqlite_address(folder), namespace, transient=_redis_address(folder), clock=clock
    ),
}

# The same for tests that write much: what is written need not survive a power cut.
HASTY_STORES = STORES | SHARED_FILES | {"shared_file": open_hasty_shared_file, "sqlite": _hasty_sqlite}

# Where other processes find the same store. What is written there need not survive a power cut either.
ADDRESSES: dict[str, Callable[[Path], str]] = {
    "memory": lambda _folder: "memory://",
    "sqlite": _hasty_sqlite_address,
    "redis": _redis_address,
    "postgres": _postgres_address,
    "shared_file": lambda folder: f"{SCHEME}{folder}",
    "pgbouncer": _pgbouncer_address,
    "deferred": lambda folder: f"{DEFERRED}{_redis_address(folder)}",
}


# Combinations of parts that are tested by themselves run all conformance tests only in `make proof`,
LONG_WAYS: tuple[str, ...] = ("shared_file", "sqlite+redis", "pgbouncer", "deferred")
# and two of them always run these, which use all statements that write.
CENTRAL = frozenset(
    {"test_submit", "test_claim", "test_finish", "test_renew", "test_recover", "test_cancel", "test_amend"}
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("headway")
    known = sorted(STORES | SHARED_FILES | PAIRS)
    group.addoption("--store", choices=known, help="run the conformance tests on this store alone")
    group.addoption("--seed", type=int, default=7, help="where random tests start")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    named = any(mark.args[0] == "store_name" for mark in metafunc.definition.iter_markers("parametrize"))
    if "store_name" in metafunc.fixturenames and not named:
        wanted: str | None = metafunc.config.getoption("--store")
        conforming = metafunc.definition.path.parent.name == "conformance"
        # Long tests use a shared file only on request, because its statements are those of SQLite.
        shared_files = SHARED_FILES if wanted or not metafunc.definition.get_closest_marker("slow") else {}
        paired = {} if metafunc.definition.get_closest_marker("one_store") else PAIRS
        others = shared_files | paired if conforming else {}
        names = [name for name in (*STORES, *others) if wanted in (None, name)]
        rest = set(LONG_WAYS) if wanted is None else set()
        if metafunc.definition.path.stem in CENTRAL:
            rest -= {"shared_file", "deferred"}
        marks = dict.fromkeys(rest, pytest.mark.proof)
        metafunc.parametrize("store_name", [pytest.param(name, marks=marks.get(name, ())) for name in names])


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Keep the order of files, and choose the folder of all tests if servers run as another user than these tests.

    pytest-xdist would run the files with the most tests first, and those with long tests last.
    Each session of pytest closes its usual folder to other users. So a session that a test or another developer starts
    would take a server's files away.
    """
    config.option.loadscopereorder = False
    if os.geteuid() == 0 and config.option.basetemp is None:
        config.option.basetemp = folder = tempfile.mkdtemp(prefix="headway-tests-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


@pytest.fixture
def seed(pytestconfig: pytest.Config) -> int:
    """Return the seed of random tests. The same number repeats a failure."""
    number = pytestconfig.getoption("--seed")
    assert isinstance(number, int)
    return number


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def open_namespace(store_name: str, tmp_path: Path, clock: ManualClock) -> AsyncIterator[OpenStore]:
    """Yield a function that opens namespaces side by side, on stores that can have several."""
    async with AsyncExitStack() as stack:

        async def open_one(namespace: str) -> Store:
            store = (STORES | SHARED_FILES | PAIRS)[store_name](tmp_path, namespace, clock)
            await store.open()
            stack.push_async_callback(store.close)
            return store

        yield open_one


@pytest.fixture
async def store(open_namespace: OpenStore) -> Store:
    """Return an empty open store. Each test runs on every kind."""
    return await open_namespace("default")


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """Remove the logging that commands inside a test have set up, so that the next test starts afresh."""
    logger = logging.getLogger("headway")
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers, logger.level, logger.propagate = before


# The files that take longest begin first, so that no process is left alone with one of them at the end.
LONGEST = (
    "conformance/test_histories.py", "conformance/test_workflow_histories.py", "faults/", "upgrades/",
    "worker/test_http_backend_live.py", "docs/test_site.py", "sessions/", "web/", "simulation/", "integrations/",
    "worker/", "examples/", "cli/test_operating.py", "cli/test_up.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put one other file after each long one. It needs the processor while long ones wait for real processes."""
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    others = iter([name for name in files if _turn(name) == len(LONGEST)])
    order: list[str] = []
    for name in sorted((name for name in files if _turn(name) < len(LONGEST)), key=_turn):
        order += [name, *islice(others, 1)]
    items[:] = [item for name in (*order, *others) for item in files[name]]


def _turn(file: str) -> int:
    place = file.removeprefix("tests/")
    return next((turn for turn, name in enumerate(LONGEST) if place.startswith(name)), len(LONGEST))


def pytest_collection_finish() -> None:
    """Keep long-lived objects out of garbage collection, which would block every loop for a third of a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a self-signed certificate for 127.0.0.1, with its key in the same file."""
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    key, made = make_certificate(path.parent, path.name)
    path.write_text(key.read_text() + made.read_text())
    return path
