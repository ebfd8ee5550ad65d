"""The client of the server that holds a namespace. It finds the server, reconnects, and repeats unanswered calls."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import random
import ssl
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, Protocol

import hiredis

from headway.core.errors import StoreBusy, StoreError, StoreFull, StoreUnavailable
from headway.core.log_event import LogEvent
from headway.runtime.bounded_wait import end_tasks
from headway.stores import base
from headway.stores.base import NEXT_CALL_SECONDS, TIMEOUT
from headway.stores.redis.connection import CONNECT_TIMEOUT, Endpoint, Login, OnMessage, RedisConnection, Unanswered
from headway.stores.redis.library import library

log = logging.getLogger("headway.redis")

PATIENCE = 60.0  # Seconds for which a call is repeated at most, even if its timeout is longer.
BACKOFF = 0.02  # Seconds before the first repetition. A server that restarts is often back within 50 ms.
BACKOFF_MAX = 1.0  # Seconds between two repetitions at most, so that a server is found soon after it is back.
OLDEST_SERVER = 7  # The first major version of Redis with functions.
# Errors of a server that is likely to serve again soon, and those after which another server may. While a slot moves
# to another node, the old node answers with ASK or TRYAGAIN: see ``Cluster.keys``.
_SOON = (
    "LOADING", "BUSY", "ASK", "TRYAGAIN", "NOREPLICAS", "MASTERDOWN", "CLUSTERDOWN", "READONLY", "UNBLOCKED",
    "MISCONF", "ERR max number of clients",
)  # fmt: skip
_ELSEWHERE = ("READONLY", "MASTERDOWN", "CLUSTERDOWN")
_REFUSED = ("NOAUTH", "WRONGPASS", "NOPERM")

Words = Sequence[bytes | str | int]


class Discovery(Protocol):
    """Finds the server that accepts writes."""

    replaceable: bool  # Whether another server may take its place.

    async def find(self) -> Endpoint:
        """Return the address of the server. Raises ``OSError``."""
        ...

    def moved(self, address: Endpoint) -> None:
        """Record that another server holds the namespace, as a server replied."""
        ...

    def keys(self, key: str) -> Words:
        """Return the keys that a function call declares: their number, then the keys."""
        ...

    def refused(self, address: Endpoint) -> None:
        """Record that the server at this address does not accept writes."""
        ...

    def add_listener(self, listener: FailoverListener) -> None:
        """Call the listener whenever the server is replaced. Adding it twice has no further effect."""
        ...

    async def remove_listener(self, listener: FailoverListener) -> None:
        """Stop calling the listener."""
        ...


class FailoverListener(Protocol):
    """An owner of connections to a server that may be replaced."""

    def pause(self) -> None:
        """Send nothing: the server is being replaced and may lose what it accepts from now on."""
        ...

    def resume(self) -> None:
        """Send again: the server was not replaced."""
        ...

    def switch(self, address: Endpoint) -> None:
        """Disconnect from every other server, and send again."""
        ...


class _StaticDiscovery:
    """A discovery without failovers: a connection to the server stays valid until it is lost."""

    def refused(self, address: Endpoint) -> None: ...

    def add_listener(self, listener: FailoverListener) -> None: ...

    async def remove_listener(self, listener: FailoverListener) -> None: ...


class SingleServer(_StaticDiscovery):
    """Always the same server."""

    replaceable = False

    def __init__(self, address: Endpoint) -> None:
        self._address = address

    async def find(self) -> Endpoint:
        return self._address

    def moved(self, address: Endpoint) -> None:
        raise StoreError(f"{self._address} is a node of a cluster; write redis+cluster://{self._address}")

    def keys(self, key: str) -> Words:
        return 1, key


class Cluster(_StaticDiscovery):
    """The node that holds a slot, as any known node of the cluster reports."""

    replaceable = True

    def __init__(self, seeds: Sequence[Endpoint], slot: int, login: Login) -> None:
        self._nodes = list(seeds)
        self._slot = slot
        self._login = login._replace(database=0)

    async def find(self) -> Endpoint:
        problem: Exception | None = None
        for node in self._nodes:
            try:
                ranges = await ask_once(node, self._login, "CLUSTER", "SLOTS")
            except (OSError, hiredis.ReplyError) as failed:
                problem = failed
                continue
            held = [(first, last, [_node(each, node) for each in nodes]) for first, last, *nodes in ranges]
            for address in (address for *_, addresses in held for address in addresses):
                if address not in self._nodes:
                    self._nodes.append(address)
            self._nodes = _first(node, self._nodes)
            for first, last, [master, *_] in held:
                if first <= self._slot <= last:
                    return master
            problem = ConnectionError(f"{node} knows no node that holds slot {self._slot}")
        raise ConnectionError(f"no node of the cluster could be asked: {problem}")

    def moved(self, address: Endpoint) -> None:
        self._nodes = _first(address, self._nodes)

    def keys(self, key: str) -> Words:
        """Declare also a key that never exists.

        While a slot moves to another node, key by key, a function would find only some of its keys. A server refuses a
        function that declares a missing key at that time.
        """
        return 2, key, f"{key}.never"


class RedisClient:
    """Calls functions on the current server. Belongs to one event loop."""

    def __init__(
        self,
        discovery: Discovery,
        login: Login,
        on_message: OnMessage,
        on_connect: Callable[[RedisConnection], None],
        timeout: float = TIMEOUT,
    ) -> None:
        self._timeout = timeout
        self._gave_up = float("-inf")  # When a call was last given up, on the loop's clock.
        self._discovery = discovery
        self._login = login
        self._on_message = on_message
        self._on_connect = on_connect
        self._connection: RedisConnection | None = None
        self._connecting: asyncio.Task[RedisConnection] | None = None
        self._closed = False
        self._may_send = asyncio.Event()  # Cleared while the server is being replaced.
        self._may_send.set()
        self.pause, self.resume = self._may_send.clear, self._may_send.set
        self.replaceable = discovery.replaceable
        self.on_disconnect: Callable[[], None] = lambda: None

    @property
    def connection(self) -> RedisConnection | None:
        """The open connection, or None. None also while the server is being replaced."""
        made = self._connection
        return made if made is not None and made.is_open and self._may_send.is_set() else None

    def drop_if_silent(self) -> None:
        """Disconnect from a server that has been silent for as long as a call may take, to shorten the next call."""
        made = self._connection
        if made is not None and made.silent_seconds >= min(self._timeout, PATIENCE) * 0.9:
            self._gave_up = asyncio.get_running_loop().time()
            self._disconnect()

    def switch(self, address: Endpoint) -> None:
        if self._connection is not None and self._connection.address != address:
            log.warning(LogEvent("store.switched", before=str(self._connection.address), now=str(address)))
            self._disconnect()
        self._may_send.set()

    async def call(self, function: str, key: str, *args: bytes | str | int) -> Any:
        """Call a function of the library. The client repeats the call if the reply is lost, which must be safe."""
        return await self.ask(*self.function_call(function, key, *args))

    def function_call(self, function: str, key: str, *args: bytes | str | int) -> Words:
        """Return the command that calls a function of the library."""
        return ("FCALL", f"{library().name}_{function}", *self._discovery.keys(key), *args)

    async def ask(self, *words: bytes | str | int, then: Sequence[Words] = (), once: bool = False) -> Any:
        """Send a command until the server answers. Raises ``StoreError`` and its subclasses.

        The commands in ``then`` follow on the same connection, and the replies to all are returned. A command that must
        be executed ``once`` is not repeated after a lost reply: that raises ``Unanswered``.
        """
        connection = self.connection
        seen: Exception | None = None
        if connection is not None:  # The usual case, without a timeout.
            try:
                return await self._answer(connection, words, then)
            except (OSError, hiredis.ReplyError) as problem:
                await self._handle(problem, words, once=once)
                seen = problem
        clock = asyncio.get_running_loop().time
        began = clock()
        until = began + self._patience(began)
        delay = BACKOFF
        while True:
            try:
                async with asyncio.timeout_at(until):
                    connection = await self.connect()
                return await self._answer(connection, words, then)
            except (OSError, hiredis.ReplyError) as problem:
                if self._closed:
                    raise StoreUnavailable("the store was closed") from problem
                again_at_once = await self._handle(problem, words, once=once)
                if str(problem):  # The deadline has no text. The problem before it explains the wait.
                    seen = problem
                waited = base.REFUSED_WITHIN if _is_refusal(problem) else until - began
                if clock() + delay > began + min(waited, until - began):
                    self._gave_up = clock()
                    self._give_up(seen or TimeoutError(f"no answer within {until - began:g} s"))
            if not again_at_once:
                await asyncio.sleep(delay * random.uniform(0.5, 1.5))
                delay = min(BACKOFF_MAX, delay * 2)

    def _patience(self, now: float) -> float:
        """Return how long a call may wait for a connection, which is short after another call was given up."""
        patience = min(self._timeout, PATIENCE)
        return min(patience, NEXT_CALL_SECONDS) if now - self._gave_up < patience else patience

    async def _answer(self, connection: RedisConnection, words: Words, then: Sequence[Words] = ()) -> Any:
        if then:
            return await asyncio.gather(*(connection.send(*each) for each in (words, *then)))
        return await connection.send(*words)

    async def connect(self) -> RedisConnection:
        """Return the connection, or connect. Concurrent callers share one attempt."""
        await self._wait_for_failover()
        if self._connection is not None and self._connection.is_open:
            return self._connection
        if self._closed:
            raise ConnectionError("the store was closed")
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())
            self._connecting.add_done_callback(self._connected)
        return await asyncio.shield(self._connecting)

    def reopen(self) -> None:
        """Accept calls again after ``close``. The next call connects."""
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        self._may_send.set()
        await self._discovery.remove_listener(self)
        if self._connecting is not None:
            await end_tasks([self._connecting])
        if self._connection is not None:
            connection = self._connection
            connection.close()
            await connection.closed()

    # ------------------------------------------------------------------ connecting

    async def _wait_for_failover(self) -> None:
        """Wait while the server is being replaced. Raises ``ConnectionError`` after ``PATIENCE``."""
        if not self._may_send.is_set():
            try:
                async with asyncio.timeout(PATIENCE):
                    await self._may_send.wait()
            except TimeoutError:
                raise ConnectionError("a Sentinel is replacing the master") from None

    def _connected(self, task: asyncio.Task[RedisConnection]) -> None:
        self._connecting = None
        if not task.cancelled():
            task.exception()  # Retrieved, so that asyncio does not log it: all waiters got it.

    async def _connect(self) -> RedisConnection:
        self._discovery.add_listener(self)
        address = await self._discovery.find()
        try:
            made = await RedisConnection.open(address, self._login, self._on_message, self._on_lost)
        except ssl.SSLCertVerificationError as problem:
            raise StoreError(
                f"cannot verify the certificate of {address}; name the file of its authority with ?ca=: {problem}"
            ) from problem
        except OSError:
            self._discovery.refused(address)
            raise
        except hiredis.ReplyError as problem:
            if str(problem).startswith(_SOON):
                raise
            raise StoreError(f"{address} refused the login: {problem}") from problem
        if int(made.version.partition(".")[0] or 0) < OLDEST_SERVER:
            made.close()
            raise StoreError(f"{address} has version {made.version}; use Redis {OLDEST_SERVER} or later, or any Valkey")
        if made.role != "master":
            made.close()
            self._discovery.refused(address)
            raise ConnectionError(f"{address} is a replica")
        self._connection = made
        self._on_connect(made)
        return made

    def _on_lost(self, connection: RedisConnection) -> None:
        if connection is self._connection:
            self._connection = None
            if not self._closed:
                self.on_disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()

    # ------------------------------------------------------------------ problems

    async def _handle(self, problem: Exception, words: Words, *, once: bool = False) -> bool:
        """React to a problem. Return whether to try again at once. Raises what a repetition would not solve."""
        if not isinstance(problem, hiredis.ReplyError):
            if once and isinstance(problem, Unanswered):
                raise problem
            return False
        said = str(problem)
        if "Function not found" in said:
            await self._load()
            return True
        if said.startswith("MOVED"):
            host, _, port = said.split()[2].rpartition(":")
            if not host and self._connection is not None:
                host = self._connection.address.host
            self._discovery.moved(Endpoint(host, int(port)))
            self._disconnect()
            return False
        if said.startswith(_ELSEWHERE):
            self._disconnect()
        if said.startswith(_SOON):
            return False
        if said.startswith("OOM"):
            raise StoreFull(f"the server has reached its maxmemory and accepts no more jobs: {said}") from problem
        if said.startswith(_REFUSED):
            raise StoreError(f"the server refused the command: {said}") from problem
        raise StoreError(f"the server answered {words[1] if len(words) > 1 else words[0]!s} with: {said}") from problem

    async def _load(self) -> None:
        """Load the library. Two clients may do so at once."""
        with contextlib.suppress(OSError):
            connection = await self.connect()
            try:
                await self._answer(connection, ("FUNCTION", "LOAD", "REPLACE", library().text))
            except hiredis.ReplyError as problem:
                if str(problem).startswith("OOM"):
                    raise StoreFull(f"the server has no room left for Headway's functions: {problem}") from problem
                if not str(problem).startswith(_SOON):
                    raise StoreError(f"the server did not load Headway's functions: {problem}") from problem

    def _give_up(self, problem: Exception) -> NoReturn:
        if str(problem).startswith("BUSY"):
            raise StoreBusy(f"the server is busy with another script: {problem}") from problem
        if str(problem).startswith("MISCONF"):
            raise StoreUnavailable(f"the server accepts no writes: {problem}", writes=False) from problem
        raise StoreUnavailable(f"the store does not answer: {problem}") from problem


def _is_refusal(problem: Exception) -> bool:
    """Return whether no process listens at the address. If a host has several addresses, only the text says so."""
    return isinstance(problem, ConnectionRefusedError) or f"[Errno {errno.ECONNREFUSED}]" in str(problem)


async def ask_once(address: Endpoint, login: Login, *words: str) -> Any:
    """Send one command on a connection of its own. Raises ``OSError``, ``hiredis.ReplyError``."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            connection = await RedisConnection.open(address, login, lambda *_: None, lambda _: None)
            try:
                return await connection.send(*words)
            finally:
                connection.close()
                await connection.closed()
    except TimeoutError as problem:
        raise ConnectionError(f"{address} did not answer within {CONNECT_TIMEOUT:g} s") from problem


def _node(said: Sequence[Any], source: Endpoint) -> Endpoint:
    """Read the address of a node. A node that does not know its own host is at the host that was asked."""
    host, port = said[:2]
    return Endpoint(host.decode() if host else source.host, int(port))


def _first(address: Endpoint, addresses: Iterable[Endpoint]) -> list[Endpoint]:
    return [address, *(each for each in addresses if each != address)]
