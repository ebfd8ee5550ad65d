"""The way to the server that holds a namespace: finds it, stays connected, repeats a call until it is answered."""

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
from headway.stores import base
from headway.stores.base import AWAY_WITHIN, TIMEOUT
from headway.stores.redis.connection import CONNECT_TIMEOUT, Endpoint, Hear, Login, RedisConnection, Unanswered
from headway.stores.redis.library import library

log = logging.getLogger("headway.redis")

PATIENCE = 60.0  # Seconds that a call is repeated at most, whatever its time limit is.
BACKOFF = 0.02
BACKOFF_MAX = 1.0
OLDEST_SERVER = 7
# What a server says that will serve again in a moment, and whether another one may by then. While a slot moves to
# another node, the old one answers with ASK or TRYAGAIN: see ``Cluster.keys``.
_SOON = (
    "LOADING", "BUSY", "ASK", "TRYAGAIN", "NOREPLICAS", "MASTERDOWN", "CLUSTERDOWN", "READONLY", "UNBLOCKED",
    "MISCONF", "ERR max number of clients",
)  # fmt: skip
_ELSEWHERE = ("READONLY", "MASTERDOWN", "CLUSTERDOWN")
_REFUSED = ("NOAUTH", "WRONGPASS", "NOPERM")

Words = Sequence[bytes | str | int]


class Discovery(Protocol):
    """Knows where the server is that may be written to."""

    replaceable: bool  # Whether another server may take its place.

    async def find(self) -> Endpoint:
        """Return its address. Raises ``OSError``."""
        ...

    def moved(self, address: Endpoint) -> None:
        """A server said that another one holds the namespace."""
        ...

    def keys(self, key: str) -> Words:
        """Return what a call of a function declares: how many keys, and which."""
        ...

    def refused(self, address: Endpoint) -> None:
        """Take note that a server which was found does not serve."""
        ...

    def join(self, follower: Follower) -> None:
        """Call the follower whenever the server is replaced. Joining twice is joining once."""
        ...

    async def leave(self, follower: Follower) -> None:
        """Call the follower no more."""
        ...


class Follower(Protocol):
    """What holds connections to a server that may be replaced."""

    def hold(self) -> None:
        """Send nothing more: the server is being replaced, and what it takes from now on may be lost."""
        ...

    def go_on(self) -> None:
        """Send again: the server was not replaced."""
        ...

    def switch(self, address: Endpoint) -> None:
        """Leave every server but this one, and send again."""
        ...


class _StaticDiscovery:
    """What a guide has to say whose server is not replaced by another while connections to it stand."""

    def refused(self, address: Endpoint) -> None: ...

    def join(self, follower: Follower) -> None: ...

    async def leave(self, follower: Follower) -> None: ...


class SingleServer(_StaticDiscovery):
    """One server, always the same."""

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
    """The node that holds a slot, as told by any node that was ever heard of."""

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
            problem = ConnectionError(f"it knows no node that holds slot {self._slot}")
        raise ConnectionError(f"no node of the cluster helps: {problem}")

    def moved(self, address: Endpoint) -> None:
        self._nodes = _first(address, self._nodes)

    def keys(self, key: str) -> Words:
        """Declare a key that never exists too: while a slot's keys go to another node one by one, functions would find
        some of theirs and miss others, so they must not run at all. Servers run none that declares a missing key then.
        """
        return 2, key, f"{key}.never"


class RedisClient:
    """Calls functions on the server, whichever it is now. Belongs to one loop."""

    def __init__(
        self,
        guide: Discovery,
        login: Login,
        hear: Hear,
        joined: Callable[[RedisConnection], None],
        timeout: float = TIMEOUT,
    ) -> None:
        self._timeout = timeout
        self._gave_up = float("-inf")  # When a call was last given up, on the loop's clock.
        self._guide = guide
        self._login = login
        self._hear = hear
        self._joined = joined
        self._connection: RedisConnection | None = None
        self._connecting: asyncio.Task[RedisConnection] | None = None
        self._closed = False
        self._steady = asyncio.Event()  # Cleared while the server is being replaced: then nothing is sent.
        self._steady.set()
        self.lost: Callable[[], None] = lambda: None

    @property
    def connection(self) -> RedisConnection | None:
        """The connection, if there is one now and it may be written to."""
        made = self._connection
        return made if made is not None and made.open_ and self._steady.is_set() else None

    @property
    def replaceable(self) -> bool:
        return self._guide.replaceable

    def suspect(self) -> None:
        """Leave a server that has been silent for as long as a call may take, so that the next one waits less."""
        made = self._connection
        if made is not None and made.silent >= min(self._timeout, PATIENCE) * 0.9:
            self._gave_up = asyncio.get_running_loop().time()
            self._leave()

    def hold(self) -> None:
        self._steady.clear()

    def go_on(self) -> None:
        self._steady.set()

    def switch(self, address: Endpoint) -> None:
        if self._connection is not None and self._connection.address != address:
            log.warning(LogEvent("store.switched", before=str(self._connection.address), now=str(address)))
            self._leave()
        self._steady.set()

    async def call(self, function: str, key: str, *args: bytes | str | int) -> Any:
        """Call a function of the library. It is repeated if its reply is lost, so it must be safe to repeat."""
        return await self.ask(*self.words_of(function, key, *args))

    def words_of(self, function: str, key: str, *args: bytes | str | int) -> Words:
        """Return the command that calls a function of the library."""
        return ("FCALL", f"{library().name}_{function}", *self._guide.keys(key), *args)

    async def ask(self, *words: bytes | str | int, then: Sequence[Words] = (), once: bool = False) -> Any:
        """Send a command until it is answered. Raises ``StoreError`` and its kin.

        With commands to send right behind it on the same connection, gives all their replies. What must be done
        ``once`` is not sent again after no reply has come: that raises ``Unanswered``.
        """
        connection = self.connection
        seen: Exception | None = None
        if connection is not None:  # The usual case: no task.
            try:
                return await self._answer(connection, words, then)
            except (OSError, hiredis.ReplyError) as problem:
                await self._heed(problem, words, once=once)
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
                again_at_once = await self._heed(problem, words, once=once)
                if str(problem):  # The deadline alone says nothing: the problem before it explains the wait.
                    seen = problem
                waited = base.REFUSED_WITHIN if _is_refusal(problem) else until - began
                if clock() + delay > began + min(waited, until - began):
                    self._gave_up = clock()
                    self._give_up(seen or TimeoutError(f"no answer within {until - began:g} s"))
            if not again_at_once:
                await asyncio.sleep(delay * random.uniform(0.5, 1.5))
                delay = min(BACKOFF_MAX, delay * 2)

    def _patience(self, now: float) -> float:
        """Return how long a call may wait for a connection: not long again if another one has just been given up."""
        patience = min(self._timeout, PATIENCE)
        return min(patience, AWAY_WITHIN) if now - self._gave_up < patience else patience

    async def _answer(self, connection: RedisConnection, words: Words, then: Sequence[Words] = ()) -> Any:
        if then:
            return await asyncio.gather(*(connection.send(*each) for each in (words, *then)))
        return await connection.send(*words)

    async def connect(self) -> RedisConnection:
        """Return the connection; make one if there is none. Callers that come meanwhile wait for the same one."""
        await self._be_steady()
        if self._connection is not None and self._connection.open_:
            return self._connection
        if self._closed:
            raise ConnectionError("the store was closed")
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())
            self._connecting.add_done_callback(self._connected)
        return await asyncio.shield(self._connecting)

    async def close(self) -> None:
        self._closed = True
        self._steady.set()
        await self._guide.leave(self)
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        if self._connection is not None:
            connection = self._connection
            connection.close()
            await connection.closed()

    # ------------------------------------------------------------------ connecting

    async def _be_steady(self) -> None:
        """Wait while the server is being replaced. Raises ``ConnectionError`` if that takes longer than a call may."""
        if not self._steady.is_set():
            try:
                async with asyncio.timeout(PATIENCE):
                    await self._steady.wait()
            except TimeoutError:
                raise ConnectionError("a Sentinel is replacing the master") from None

    def _connected(self, task: asyncio.Task[RedisConnection]) -> None:
        self._connecting = None
        if not task.cancelled():
            task.exception()  # Seen: its waiters were told.

    async def _connect(self) -> RedisConnection:
        self._guide.join(self)
        address = await self._guide.find()
        try:
            made = await RedisConnection.open(address, self._login, self._hear, self._left)
        except ssl.SSLCertVerificationError as problem:
            raise StoreError(
                f"{address} shows a certificate we do not trust; name its maker with ?ca=: {problem}"
            ) from problem
        except OSError:
            self._guide.refused(address)
            raise
        except hiredis.ReplyError as problem:
            if str(problem).startswith(_SOON):
                raise
            raise StoreError(f"{address} refuses us: {problem}") from problem
        if int(made.version.partition(".")[0] or 0) < OLDEST_SERVER:
            made.close()
            raise StoreError(f"{address} is version {made.version}; Redis {OLDEST_SERVER} or any Valkey is needed")
        if made.role != "master":
            made.close()
            self._guide.refused(address)
            raise ConnectionError(f"{address} is a replica")
        self._connection = made
        self._joined(made)
        return made

    def _left(self, connection: RedisConnection) -> None:
        if connection is self._connection:
            self._connection = None
            if not self._closed:
                self.lost()

    def _leave(self) -> None:
        if self._connection is not None:
            self._connection.close()

    # ------------------------------------------------------------------ what goes wrong

    async def _heed(self, problem: Exception, words: Words, *, once: bool = False) -> bool:
        """Do what a problem calls for. Tells whether to try again at once; raises what will not pass."""
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
            self._guide.moved(Endpoint(host or (self._connection.address.host if self._connection else ""), int(port)))
            self._leave()
            return False
        if said.startswith(_ELSEWHERE):
            self._leave()
        if said.startswith(_SOON):
            return False
        if said.startswith("OOM"):
            raise StoreFull(f"the server has reached its maxmemory and takes no more jobs: {said}") from problem
        if said.startswith(_REFUSED):
            raise StoreError(f"the server refuses us: {said}") from problem
        raise StoreError(f"the server answered {words[1] if len(words) > 1 else words[0]!s} with: {said}") from problem

    async def _load(self) -> None:
        """Load the library where it is missing; two may do so at once."""
        with contextlib.suppress(OSError):
            connection = await self.connect()
            try:
                await self._answer(connection, ("FUNCTION", "LOAD", "REPLACE", library().text))
            except hiredis.ReplyError as problem:
                if str(problem).startswith("OOM"):
                    raise StoreFull(f"the server has no room left for Headway's functions: {problem}") from problem
                if not str(problem).startswith(_SOON):
                    raise StoreError(f"the server did not take Headway's functions: {problem}") from problem

    def _give_up(self, problem: Exception) -> NoReturn:
        if str(problem).startswith("BUSY"):
            raise StoreBusy(f"another script holds the server: {problem}") from problem
        raise StoreUnavailable(f"the store does not answer: {problem}") from problem


def _is_refusal(problem: Exception) -> bool:
    """Return whether nothing listens at an address; with several addresses the text alone says so."""
    return isinstance(problem, ConnectionRefusedError) or f"[Errno {errno.ECONNREFUSED}]" in str(problem)


async def ask_once(address: Endpoint, login: Login, *words: str) -> Any:
    """Ask a server that only knows the way. Raises ``OSError``, ``hiredis.ReplyError``."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            connection = await RedisConnection.open(address, login, _deaf, _unmourned)
            try:
                return await connection.send(*words)
            finally:
                connection.close()
                await connection.closed()
    except TimeoutError as problem:
        raise ConnectionError(f"{address} did not answer within {CONNECT_TIMEOUT:g} s") from problem


def _node(said: Sequence[Any], teller: Endpoint) -> Endpoint:
    """Read a node's address; one that does not know its own host is where we found it."""
    host, port = said[:2]
    return Endpoint(host.decode() if host else teller.host, int(port))


def _first(address: Endpoint, addresses: Iterable[Endpoint]) -> list[Endpoint]:
    return [address, *(each for each in addresses if each != address)]


def _deaf(_channel: bytes, _text: bytes) -> None: ...


def _unmourned(_connection: RedisConnection) -> None: ...
