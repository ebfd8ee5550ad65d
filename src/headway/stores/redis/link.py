"""The way to the server that holds a namespace: finds it, stays connected, repeats a call until it is answered."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol

import hiredis

from headway.core.errors import StoreBusy, StoreError, StoreFull, StoreUnavailable
from headway.stores.redis.connection import Address, Connection, Hear, Login
from headway.stores.redis.library import library

PATIENCE = 5.0  # Seconds that a call is repeated before it is given up.
BACKOFF = 0.02
BACKOFF_MAX = 1.0
# What a server says that will serve again in a moment, and whether another one may by then.
_SOON = ("LOADING", "BUSY", "TRYAGAIN", "NOREPLICAS", "MASTERDOWN", "CLUSTERDOWN", "READONLY", "UNBLOCKED")
_ELSEWHERE = ("READONLY", "MASTERDOWN", "CLUSTERDOWN")
_REFUSED = ("NOAUTH", "WRONGPASS", "NOPERM")


class Guide(Protocol):
    """Knows where the server is that may be written to."""

    async def find(self) -> Sequence[Address]:
        """Give the addresses to try, best first. Raises ``OSError``."""
        ...

    def moved(self, address: Address) -> None:
        """A server said that another one holds the namespace."""
        ...


class Fixed:
    """One server, always the same."""

    def __init__(self, address: Address) -> None:
        self._address = address

    async def find(self) -> Sequence[Address]:
        return [self._address]

    def moved(self, address: Address) -> None:
        raise StoreError(f"{self._address} is a node of a cluster; write redis+cluster://{self._address}")


class Sentinel:
    """The master of a name, as most recently told by a Sentinel."""

    def __init__(self, sentinels: Sequence[Address], master: str, login: Login) -> None:
        self._sentinels = list(sentinels)
        self._master = master
        self._login = login

    async def find(self) -> Sequence[Address]:
        problem: Exception | None = None
        for sentinel in list(self._sentinels):
            try:
                link = await Connection.open(sentinel, self._login, _deaf, _unmourned)
                try:
                    found = await link.send("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._master)
                finally:
                    link.close()
                    await link.closed()
            except (OSError, hiredis.ReplyError) as failed:
                problem = failed
                continue
            if found is not None:
                self._sentinels.remove(sentinel)
                self._sentinels.insert(0, sentinel)  # It answered: ask it first next time.
                return [Address(found[0].decode(), int(found[1]))]
        raise ConnectionError(f"no Sentinel knows the master {self._master!r}: {problem or 'it is watched by none'}")

    def moved(self, address: Address) -> None:
        raise StoreError("the master is a node of a cluster; write redis+cluster://")


class Cluster:
    """The node that holds a namespace's slot: learned from those that do not."""

    def __init__(self, seeds: Sequence[Address]) -> None:
        self._nodes = list(seeds)

    async def find(self) -> Sequence[Address]:
        return list(self._nodes)

    def moved(self, address: Address) -> None:
        self._nodes = [address, *(node for node in self._nodes if node != address)]


class Link:
    """Calls functions on the server, whichever it is now. Belongs to one loop."""

    def __init__(self, guide: Guide, login: Login, hear: Hear, joined: Callable[[Connection], None]) -> None:
        self._guide = guide
        self._login = login
        self._hear = hear
        self._joined = joined
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None
        self._closed = False
        self.lost: Callable[[], None] = lambda: None

    @property
    def connection(self) -> Connection | None:
        """The connection, if there is one now."""
        return self._connection if self._connection is not None and self._connection.open_ else None

    async def call(self, function: str, key: str, *args: bytes | str | int) -> Any:
        """Call a function of the library. It is repeated if its reply is lost, so it must be safe to repeat."""
        return await self.ask("FCALL", f"{library().name}_{function}", 1, key, *args)

    async def ask(self, *words: bytes | str | int) -> Any:
        """Send a command until it is answered. Raises ``StoreError`` and its kin."""
        connection = self._connection
        if connection is not None and connection.open_:  # The usual case: no timer, no task.
            try:
                return await self._answer(connection, words)
            except (OSError, hiredis.ReplyError) as problem:
                await self._heed(problem, words)
        until = asyncio.get_running_loop().time() + PATIENCE
        delay = BACKOFF
        while True:
            try:
                return await self._answer(await self.connect(), words)
            except (OSError, hiredis.ReplyError) as problem:
                if self._closed:
                    raise StoreUnavailable("the store was closed") from problem
                again_at_once = await self._heed(problem, words)
                if asyncio.get_running_loop().time() > until:
                    self._give_up(problem)
            if not again_at_once:
                await asyncio.sleep(delay * random.uniform(0.5, 1.5))
                delay = min(BACKOFF_MAX, delay * 2)

    async def _answer(self, connection: Connection, words: Sequence[bytes | str | int]) -> Any:
        try:
            async with asyncio.timeout(PATIENCE):
                return await connection.send(*words)
        except TimeoutError:
            connection.close()  # Whatever comes late would be taken for the reply to something else.
            raise ConnectionError(f"{connection.address} did not answer within {PATIENCE:.0f} s") from None

    async def connect(self) -> Connection:
        """Give the connection; make one if there is none. Callers that come meanwhile wait for the same one."""
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
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        if self._connection is not None:
            connection = self._connection
            connection.close()
            await connection.closed()

    # ------------------------------------------------------------------ connecting

    def _connected(self, task: asyncio.Task[Connection]) -> None:
        self._connecting = None
        if not task.cancelled():
            task.exception()  # Seen: whoever waited for it was told.

    async def _connect(self) -> Connection:
        problem: Exception = ConnectionError("there is no address to try")
        for address in await self._guide.find():
            try:
                made = await Connection.open(address, self._login, self._hear, self._left)
                role = await made.send("ROLE")
                if role[0] != b"master":
                    made.close()
                    raise ConnectionError(f"{address} is a replica")
            except (OSError, hiredis.ReplyError) as failed:
                if str(failed).startswith(_REFUSED):
                    raise
                problem = failed
                continue
            self._connection = made
            self._joined(made)
            return made
        raise problem

    def _left(self, connection: Connection) -> None:
        if connection is self._connection:
            self._connection = None
            if not self._closed:
                self.lost()

    def _leave(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # ------------------------------------------------------------------ what goes wrong

    async def _heed(self, problem: Exception, words: Sequence[bytes | str | int]) -> bool:
        """Do what a problem calls for. Tells whether to try again at once; raises what will not pass."""
        if not isinstance(problem, hiredis.ReplyError):
            return False
        said = str(problem)
        if "Function not found" in said:
            await self._load()
            return True
        if said.startswith("MOVED"):
            host, _, port = said.split()[2].rpartition(":")
            self._guide.moved(Address(host or (self._connection.address.host if self._connection else ""), int(port)))
            self._leave()
            return True
        if said.startswith(_ELSEWHERE):
            self._leave()
        if said.startswith((*_SOON, "ASK")):
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
                await connection.send("FUNCTION", "LOAD", "REPLACE", library().text)
            except hiredis.ReplyError as problem:
                if not str(problem).startswith(_SOON):
                    raise StoreError(f"the server did not take Headway's functions: {problem}") from problem

    def _give_up(self, problem: Exception) -> NoReturn:
        if str(problem).startswith("BUSY"):
            raise StoreBusy(f"another script holds the server: {problem}") from problem
        raise StoreUnavailable(f"the store does not answer: {problem}") from problem


def _deaf(_channel: bytes, _text: bytes) -> None: ...


def _unmourned(_connection: Connection) -> None: ...
