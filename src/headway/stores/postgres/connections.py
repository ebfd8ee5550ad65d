"""A pool of connections to one server. Replaces lost connections and translates the driver's errors."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import asyncpg  # type: ignore[import-untyped]
from asyncpg import exceptions as pg

from headway.core.errors import (
    HeadwayError,
    NotAStore,
    PayloadError,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from headway.stores import base
from headway.stores.base import NEXT_CALL_SECONDS

if TYPE_CHECKING:
    from headway.stores.postgres.address import PostgresAddress

T = TypeVar("T")
Connection: TypeAlias = Any  # An asyncpg.Connection, which has no types.
Isolation = Literal["read_committed", "repeatable_read"]

# What to do about a connection that other machines could read.
TLS_HINT = "add sslmode=verify-full to the address, and sslrootcert for a certificate of your own"
CONNECT_WITHIN = 10  # Seconds for one connection to be made.
ANSWER_WITHIN = 20  # Seconds for one statement.
PATIENCE = 60.0  # Seconds over which a verb is repeated at most while the server is away.
CONTESTED = 5  # Times that a verb is repeated after others got in its way.

# What a connection says of itself at the start. Plans are made for few rows, which is what these statements touch.
SETTINGS = {
    "application_name": "headway",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "idle_in_transaction_session_timeout": "60000",
    "jit": "off",
    "tcp_keepalives_idle": "15",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}

_LOST = (
    OSError, TimeoutError, EOFError, pg.PostgresConnectionError, pg.InterfaceError, pg.InternalClientError,
    pg.AdminShutdownError, pg.CrashShutdownError, pg.CannotConnectNowError, pg.IdleInTransactionSessionTimeoutError,
    pg.IdleSessionTimeoutError, pg.ReadOnlySQLTransactionError,
)  # fmt: skip
_CONTESTED = (pg.SerializationError, pg.DeadlockDetectedError, pg.UniqueViolationError, pg.LockNotAvailableError)

# What the driver or the server says of NUL and of lone surrogates.
_UNWRITABLE = (
    pg.CharacterNotInRepertoireError, pg.UntranslatableCharacterError, asyncpg.DataError, UnicodeEncodeError,
)  # fmt: skip

# Whatever may end a listener.
CUT = (OSError, TimeoutError, EOFError, pg.PostgresError, pg.InterfaceError, pg.InternalClientError)

BATCH_ENDED = "HW005"  # The code with which the function submit_graph says that a batch has ended meanwhile.
ServerError: Any = pg.PostgresError
KnownAlready = pg.UniqueViolationError  # A row with this key is there already.


async def connect(url: str, *, pgbouncer: bool = False, within: float = CONNECT_WITHIN) -> Connection:
    """Make one connection. Raises what the driver raises."""
    connection: Connection = await asyncpg.connect(
        url,
        timeout=within,  # pyright: ignore[reportArgumentType]  (a number of seconds; the driver declares int)
        command_timeout=ANSWER_WITHIN,
        # A pooler between hands each transaction to another session: nothing prepared may be expected there.
        statement_cache_size=0 if pgbouncer else 256,
        server_settings=None if pgbouncer else SETTINGS,
    )
    _keep_alive(connection)
    return connection


class Connections:
    """At most this many connections. The one given back last is taken first, so that an idle store keeps few busy."""

    def __init__(self, address: PostgresAddress) -> None:
        self._address = address
        self._idle: list[Connection] = []
        self._room = asyncio.Semaphore(address.pool)
        self._closed = True
        self._gave_up = float("-inf")  # When a call was last given up, on the monotonic clock.

    def open(self, first: Connection) -> None:
        self._idle.append(first)
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        while self._idle:
            with contextlib.suppress(Exception):
                await self._idle.pop().close(timeout=2)

    async def run(self, work: Callable[[Connection], Awaitable[T]], isolation: Isolation | None = None) -> T:
        """Run work on a connection, and repeat it for a bounded time while the server is away or a conflict occurs.

        With ``isolation`` the work runs in a transaction; without, it is one statement. It must be safe to repeat.
        """
        if self._closed:
            raise StoreError(f"the store {self._address.shown} is not open")
        began = time.monotonic()
        patience = self._patience(began)
        deadline = began + patience
        contested = 0
        delay = 0.05
        seen: StoreUnavailable | None = None
        while True:
            try:
                with naming(self._address.shown):
                    async with self._room:
                        return await self._run_once(work, isolation, max(0.1, deadline - time.monotonic()))
            except StoreUnavailable as problem:
                if seen is None or str(problem.__cause__):  # A deadline says less than the problem before it.
                    seen = problem
                if isinstance(problem, StoreBusy):
                    contested += 1
                    if contested > CONTESTED:
                        raise
                elif self._closed or time.monotonic() + delay > (
                    min(deadline, began + base.REFUSED_WITHIN) if _is_refusal(problem.__cause__) else deadline
                ):
                    self._gave_up = time.monotonic()
                    raise seen from seen.__cause__
                await asyncio.sleep(delay * random.uniform(0.5, 1.0))
                delay = min(1.0, delay * 2)

    def _patience(self, now: float) -> float:
        """Return how long a call may wait for a connection. The wait is short if another call has just given up."""
        patience = min(self._address.timeout, PATIENCE)
        return min(patience, NEXT_CALL_SECONDS) if now - self._gave_up < patience else patience

    async def _run_once(
        self, work: Callable[[Connection], Awaitable[T]], isolation: Isolation | None, within: float
    ) -> T:
        connection = self._idle.pop() if self._idle else None
        if connection is None or connection.is_closed():
            connection = await connect(self._address.url, pgbouncer=self._address.pgbouncer, within=within)
        try:
            if self._address.pgbouncer and isolation is None:
                isolation = "read_committed"  # Said each time: nothing that a session was told stays with it.
            if isolation is not None:
                async with connection.transaction(isolation=isolation):
                    value = await work(connection)
            else:
                value = await work(connection)
        except (HeadwayError, pg.PostgresError) as problem:
            self._give_back(connection, lost=isinstance(problem, _LOST))
            raise
        except BaseException:
            connection.terminate()  # It may be in the middle of something.
            raise
        self._give_back(connection, lost=False)
        return value

    def _give_back(self, connection: Connection, *, lost: bool) -> None:
        if lost or self._closed or connection.is_closed() or connection.is_in_transaction():
            connection.terminate()
        else:
            self._idle.append(connection)


@contextlib.contextmanager
def naming(shown: str) -> Iterator[None]:
    """Translate the driver's errors to Headway's errors, which say what to do."""
    facts = {"url": shown}
    try:
        yield
    except HeadwayError:
        raise
    except _CONTESTED as problem:
        raise StoreBusy(f"{shown}: other transactions kept conflicting: {problem}", **facts) from problem
    except pg.QueryCanceledError as problem:
        raise StoreBusy(f"{shown}: the server ended a statement that took too long: {problem}", **facts) from problem
    except pg.TooManyConnectionsError as problem:
        raise StoreUnavailable(
            f"{shown} has no connection left ({problem}); raise its max_connections, or lower pool in the address",
            **facts,
        ) from problem
    except pg.InsufficientResourcesError as problem:
        raise StoreFull(f"{shown} has no room left ({problem}); free some and try again", **facts) from problem
    except (pg.InvalidCatalogNameError, pg.InvalidAuthorizationSpecificationError) as problem:
        raise StoreError(f"{shown} refused the login: {problem}; check HEADWAY_STORE", **facts) from problem
    except pg.InsufficientPrivilegeError as problem:
        raise StoreError(
            f"{shown}: {problem}; grant the role the rights to its schema, or let its owner run `headway migrate`",
            **facts,
        ) from problem
    except (pg.UndefinedTableError, pg.UndefinedFunctionError, pg.InvalidSchemaNameError) as problem:
        raise NotAStore(f"{shown} is not the store it was: {problem}; run `headway migrate`", **facts) from problem
    except (pg.DataCorruptedError, pg.IndexCorruptedError) as problem:
        raise StoreCorrupt(f"{shown} is damaged ({problem}); restore a backup", **facts) from problem
    except _UNWRITABLE as problem:
        raise PayloadError(f"{shown} cannot keep a text with NUL or a lone surrogate: {problem}", **facts) from problem
    except _LOST as problem:
        what = str(problem) or "no answer in time"
        raise StoreUnavailable(f"{shown} cannot be reached just now: {what}", **facts) from problem
    except pg.PostgresError as problem:
        raise StoreError(f"{shown}: {problem}", **facts) from problem


def _is_refusal(problem: BaseException | None) -> bool:
    """Return whether nothing listens at an address; with several addresses the text alone says so."""
    return isinstance(problem, ConnectionRefusedError) or f"[Errno {errno.ECONNREFUSED}]" in str(problem)


def _keep_alive(connection: Connection) -> None:
    """Set TCP options by which the system detects a dead server within half a minute."""
    transport = getattr(connection, "_transport", None)
    wire = transport.get_extra_info("socket") if transport is not None else None
    if wire is None or wire.family not in (socket.AF_INET, socket.AF_INET6):
        return
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}
    for name, value in options.items():
        if hasattr(socket, name):
            wire.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
