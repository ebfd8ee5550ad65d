"""The way to a server for code without an event loop: one connection, which threads share and which survives forks."""

from __future__ import annotations

import contextlib
import os
import random
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import hiredis

from headway.core.errors import StoreError, StoreUnavailable
from headway.stores.redis.address import RedisAddress
from headway.stores.redis.connection import Endpoint, Login, pack
from headway.stores.redis.library import Library
from headway.stores.redis.sockets import MORE, new_reader, plug_in, read_reply

PATIENCE = 5.0  # Seconds that a call is repeated before it is given up.
BACKOFF = 0.05
OLDEST_SERVER = 7
PAUSE = 1.0  # Seconds until a connection that failed is tried again by calls that only notify.
TOLD_MAX = 10_000  # Unanswered commands that are kept for a server that is away; then the oldest are given up.
LINGER = 0.02  # Seconds that something may wait for company that is not urgent,
LATE_MAX = 100  # and how much company.
MASTER_CHECK = 1.0  # Seconds between two questions to the Sentinels whether the master is still the same.
DRAIN_AT = 32  # Unanswered commands after which their replies are looked for.
_SOON = ("LOADING", "BUSY", "MASTERDOWN", "READONLY", "NOREPLICAS", "UNBLOCKED", "MISCONF", "ERR max number of clients")

Word = bytes | str | int
Words = Sequence[Word]


class BlockingClient:
    """Calls functions of a library, whichever server holds it now.

    ``call`` waits for its reply. ``tell`` only sends: its reply is read later, and it is sent again if the connection
    is lost before; so does ``tell_late``, once in a while. So all may be carried out twice, and functions must bear
    that; what is told keeps its order.
    ``probe`` names a function that may be called without arguments and changes nothing. ``failed`` hears of commands
    that were told and refused, or given up.
    """

    def __init__(self, place: RedisAddress, library: Library, probe: str, failed: Callable[[str, int], None]) -> None:
        self._place = place
        self._library = library
        self._probe = probe
        self._failed = failed
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._plug: socket.socket | None = None
        self._reader = new_reader()
        self._told: deque[bytes] = deque()  # Sent or not, but not answered; oldest first.
        self._late: dict[object, Words] = {}  # What is to be told once it has lingered, by its name,
        self._late_call = "", ""  # and the function that is called for it, with its key.
        self._retry_at = 0.0
        self._address: Endpoint | None = None
        self._found_at = 0.0  # When the Sentinels were last asked where the master is, on the monotonic clock.
        self._lingering = threading.Event()
        self._lingerer: threading.Thread | None = None

    def call(self, function: str, key: str, *args: Word) -> Any:
        """Return a function's answer. Raises ``StoreUnavailable`` after seconds of trying, ``StoreError`` at once."""
        return self.ask("FCALL", f"{self._library.name}_{function}", 1, key, *args)

    def ask(self, *words: Word) -> Any:
        """Return a command's answer; it must be safe to repeat."""
        command = pack(words)
        until, delay = time.monotonic() + PATIENCE, BACKOFF
        self._after_fork()
        while True:
            with self._lock:
                try:
                    self._follow_master()
                    plug = self._plug or self._connect()
                    late = self._take_late()
                    self._told += late
                    plug.sendall(b"".join((*late, command)))
                    self._hear_told()
                    return self._read()
                except hiredis.ReplyError as problem:
                    self._heed(problem)
                    trouble: Exception = problem
                except OSError as problem:
                    self._leave()
                    trouble = problem
            if time.monotonic() > until:
                self._give_up(trouble)
            time.sleep(delay * random.uniform(0.5, 1.5))
            delay = min(1.0, delay * 2)

    def tell(self, function: str, key: str, *args: Word) -> None:
        """Let a function be carried out, now or when the server is back. Never waits for it, never raises."""
        self._after_fork()
        with self._lock:
            self._tell(*self._take_late(), self._command(function, key, args))

    def tell_late(self, function: str, key: str, words: Words, *, name: str | None = None) -> None:
        """The same, a few milliseconds later: once for all that is told meanwhile, their words one after the other.

        By its ``name`` it may be taken back.
        """
        self._after_fork()
        with self._lock:
            late = self._late
            if late and (self._late_call != (function, key) or len(late) >= LATE_MAX):
                self._tell(*self._take_late())
            self._late_call = function, key
            late[name or object()] = words
            if self._lingerer is None:
                self._lingerer = threading.Thread(target=self._linger, name="headway-linger", daemon=True)
                self._lingerer.start()
            if not self._lingering.is_set():
                self._lingering.set()

    def take_back(self, name: str) -> bool:
        """Do not tell what was to be told late; gives False if it is too late for that."""
        self._after_fork()
        with self._lock:
            return self._late.pop(name, None) is not None

    def _linger(self) -> None:
        """Woken when something is to be told late; ends with the process, or when the link is closed."""
        mine = threading.current_thread()
        while self._lingerer is mine:
            self._lingering.wait()
            self._lingering.clear()
            time.sleep(LINGER)
            with self._lock:
                if self._lingerer is mine:
                    self._tell(*self._take_late())

    def _take_late(self) -> list[bytes]:
        if not self._late:
            return []
        command = self._command(*self._late_call, [word for words in self._late.values() for word in words])
        self._late.clear()
        return [command]

    def _command(self, function: str, key: str, args: Words) -> bytes:
        return pack(("FCALL", f"{self._library.name}_{function}", 1, key, *args))

    def _tell(self, *commands: bytes) -> None:
        if not commands:
            return
        self._told += commands
        if len(self._told) > TOLD_MAX:
            for _ in range(len(self._told) - TOLD_MAX):
                self._told.popleft()
                self._failed("the server is away for too long", 1)
            self._leave()  # Otherwise their replies would be taken for others'.
        try:
            self._follow_master()
            if self._plug is not None:
                self._plug.sendall(b"".join(commands))
                if len(self._told) >= DRAIN_AT:
                    self._drain()
            elif time.monotonic() >= self._retry_at:
                self._connect()  # This sends all that was told.
        except (OSError, hiredis.ReplyError, StoreError):
            self._leave()
            self._retry_at = time.monotonic() + PAUSE

    def flush(self) -> None:
        """Wait until all that was told is answered. Raises ``StoreUnavailable``."""
        self.ask("PING")

    def close(self) -> None:
        """Leave the server. A later call connects again."""
        self._after_fork()
        with self._lock:
            self._tell(*self._take_late())
            self._leave()
            self._lingerer = None
            self._lingering.set()

    # ------------------------------------------------------------------ replies

    def _read(self) -> Any:
        """Read the next reply. Raises ``OSError``, or the reply itself if it is an error."""
        return read_reply(self._plugged(), self._reader)

    def _hear_told(self) -> None:
        """Read the replies to all that was told before."""
        while self._told:
            self._hear_one()

    def _hear_one(self) -> None:
        try:
            self._note(self._read())
        except hiredis.ReplyError as problem:
            self._note(problem)

    def _note(self, reply: Any) -> None:
        """Take a reply for that to what was told first of all that is not answered."""
        if isinstance(reply, hiredis.ReplyError):
            if "Function not found" in str(reply):  # All that was told is sent again once it is loaded.
                raise ConnectionError("the functions are gone")
            if str(reply).startswith(_SOON):
                raise ConnectionError(str(reply))
            self._failed(str(reply), 1)
        self._told.popleft()

    def _drain(self) -> None:
        """Read what has come by now, without waiting for more."""
        plug, poll = self._plugged(), select.poll()
        poll.register(plug, select.POLLIN)
        if poll.poll(0):
            data = plug.recv(65_536)
            if not data:
                raise ConnectionError("the server has closed the connection")
            self._reader.feed(data)
        while self._told and (reply := self._reader.gets()) is not MORE:
            self._note(reply)

    def _heed(self, problem: hiredis.ReplyError) -> None:
        said = str(problem)
        if "Function not found" in said:
            self._load()
        elif said.startswith(_SOON):
            self._leave()
        else:
            raise StoreError(f"the server answered with: {said}") from problem

    def _give_up(self, problem: Exception) -> NoReturn:
        raise StoreUnavailable(f"the server at {self._place.shown} does not answer: {problem}") from problem

    # ------------------------------------------------------------------ connecting

    def _connect(self) -> socket.socket:
        """Connect, see that the functions are there, send what was told and is not answered."""
        login = self._place.login
        address = self._address = self._find()
        self._found_at = time.monotonic()
        try:
            self._plug, self._reader = plug_in(address, login), new_reader()
            said = self._greet(login)
            if int(said[b"version"].partition(b".")[0]) < OLDEST_SERVER:
                raise StoreError(f"{address} is too old; Redis {OLDEST_SERVER} or any Valkey is needed")
            if said[b"role"] != b"master":
                raise ConnectionError(f"{address} is a replica")
            self._see_to_functions()
            if self._told:
                self._plug.sendall(b"".join(self._told))
        except hiredis.ReplyError as problem:
            self._leave()
            if str(problem).startswith(_SOON):
                raise ConnectionError(str(problem)) from problem
            raise StoreError(f"{address} refuses us: {problem}") from problem
        except BaseException:
            self._leave()
            raise
        return self._plug

    def _greet(self, login: Login) -> Any:
        words: list[Word] = ["HELLO", "3"]
        if login.password is not None:
            words += ["AUTH", login.username or "default", login.password]
        plug = self._plugged()
        plug.sendall(pack((*words, "SETNAME", "headway")))
        said = self._read()
        if login.database:
            plug.sendall(pack(("SELECT", login.database)))
            self._read()
        return said

    def _see_to_functions(self) -> None:
        """Call the probe, a function that does nothing; load the library if it is not there."""
        self._plugged().sendall(pack(("FCALL", f"{self._library.name}_{self._probe}", 1, "headway:probe")))
        try:
            self._read()
        except hiredis.ReplyError as problem:
            if "Function not found" not in str(problem):
                raise
            self._load()

    def _load(self) -> None:
        """Load the library; two may do so at once."""
        self._plugged().sendall(pack(("FUNCTION", "LOAD", "REPLACE", self._library.text)))
        self._read()

    def _follow_master(self) -> None:
        """Leave a master that was replaced: it takes writes for ten seconds more, and all of them are lost."""
        now = time.monotonic()
        if self._plug is None or self._place.master is None or now - self._found_at < MASTER_CHECK:
            return
        self._found_at = now
        with contextlib.suppress(OSError):  # While no Sentinel answers, none replaces the master either.
            if self._find() != self._address:
                self._leave()

    def _find(self) -> Endpoint:
        place = self._place
        if place.master is None:
            return place.addresses[0]
        trouble: Exception | None = None
        for sentinel in place.addresses:
            try:
                found = _ask_once(sentinel, place.watch, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", place.master)
            except (OSError, hiredis.ReplyError) as problem:
                trouble = problem
                continue
            if found is not None:
                return Endpoint(found[0].decode(), int(found[1]))
        raise ConnectionError(f"no Sentinel knows the master {place.master!r}: {trouble or 'it is watched by none'}")

    def _plugged(self) -> socket.socket:
        if self._plug is None:
            raise ConnectionError("there is no connection")
        return self._plug

    def _leave(self) -> None:
        plug, self._plug = self._plug, None
        if plug is not None:
            with contextlib.suppress(OSError):
                plug.close()

    def _after_fork(self) -> None:
        """Forget the parent's connection, its lock and what it told: they are not ours."""
        if self._pid != os.getpid():
            self._lock = threading.RLock()
            self._plug = None  # Only our copy of its descriptor is closed by this.
            self._told.clear()
            self._late.clear()
            self._lingering, self._lingerer = threading.Event(), None
            self._pid = os.getpid()


def _ask_once(address: Endpoint, login: Login, *words: str) -> Any:
    """Ask a server that only knows the way. Raises ``OSError``, ``hiredis.ReplyError``."""
    commands: list[tuple[Word, ...]] = [words]
    if login.password is not None:
        commands.insert(0, ("AUTH", login.username or "default", login.password))
    reader = new_reader()
    with plug_in(address, login) as plug:
        plug.sendall(b"".join(map(pack, commands)))
        return [read_reply(plug, reader) for _ in commands][-1]
