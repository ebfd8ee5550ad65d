"""The ledger's client of its Redis server, for code without an event loop. Threads share one connection.

Celery's redis extra brings redis-py, but a push through it takes 67 us of the client's CPU instead of 32 us. It also
has no ``send``: a command whose reply is read later, and which is repeated if the connection is lost before.
"""

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
from typing import Any

from headway.core.errors import StoreError, StoreUnavailable
from headway.stores.redis.address import RedisAddress
from headway.stores.redis.connection import Endpoint, Login, pack
from headway.stores.redis.library import Library
from headway.stores.redis.sockets import INCOMPLETE, ReplyError, new_reader, open_socket, read_reply

RETRY_SECONDS = 5.0  # Seconds for which a call is repeated, and a publisher waits, while the server is unavailable.
BACKOFF = 0.05  # Seconds before the first repetition, doubled each time up to one second.
OLDEST_SERVER = 7  # The first major version of Redis with functions.
RECONNECT_SECONDS = 1.0  # Between two attempts to connect for commands that no caller waits for.
UNANSWERED_MAX = 10_000  # Commands kept for a server that is away, some megabytes. Beyond it the oldest are dropped.
BATCH_SECONDS = 0.02  # How long a batched command waits for others. Short enough for loads to be current.
BATCH_MAX = 100  # Commands in one batch, about a millisecond of the server's time.
MASTER_CHECK = 1.0  # Seconds between queries to the Sentinels. A replaced master loses all writes that it accepts.
READ_REPLIES_AT = 32  # Unanswered commands after which their replies are read.
_SOON = ("LOADING", "BUSY", "MASTERDOWN", "READONLY", "NOREPLICAS", "UNBLOCKED", "MISCONF", "ERR max number of clients")

CommandArgument = bytes | str | int
Arguments = Sequence[CommandArgument]


class LedgerClient:
    """Calls the functions of a library on the current master.

    ``call`` waits for the reply. ``send`` does not: the client reads the reply later, and sends the command again if
    the connection is lost before. ``send_batched`` gathers commands for some milliseconds and sends them as one. The
    server may execute any of them twice, so functions must allow that. Commands keep their order.

    ``probe`` names a function that changes nothing when it is called without arguments. The client calls ``failed`` for
    sent commands that the server refused, or that were dropped.
    """

    def __init__(self, place: RedisAddress, library: Library, probe: str, failed: Callable[[str, int], None]) -> None:
        self._place = place
        self._library = library
        self._probe = probe
        self._failed = failed
        self._lock = threading.RLock()  # Guards all that follows.
        self._pid = os.getpid()
        self._socket: socket.socket | None = None
        self._reader = new_reader()
        self._unanswered: deque[bytes] = deque()  # Packed commands, the oldest first. Some may not be sent yet.
        self._batch: dict[object, Arguments] = {}  # By name: the words of each command in the next batch,
        self._batch_call = "", ""  # and the function that gets them, with its key.
        self._retry_at = 0.0
        self._address: Endpoint | None = None
        self._found_at = 0.0  # When the Sentinels were last asked, on the monotonic clock.
        self._batch_started = threading.Event()
        self._batch_thread: threading.Thread | None = None

    def call(self, function: str, key: str, *args: CommandArgument) -> Any:
        """Return the reply of a function. Raises ``StoreUnavailable`` after ``RETRY_SECONDS``, else ``StoreError``."""
        return self.ask("FCALL", f"{self._library.name}_{function}", 1, key, *args)

    def ask(self, *words: CommandArgument) -> Any:
        """Return the reply to a command, which must be safe to repeat."""
        command = pack(words)
        until, delay = time.monotonic() + RETRY_SECONDS, BACKOFF
        self._after_fork()
        while True:
            with self._lock:
                try:
                    self._follow_master()
                    sock = self._socket or self._connect()
                    batch = self._take_batch()
                    self._unanswered += batch
                    sock.sendall(b"".join((*batch, command)))
                    self._read_unanswered()
                    return self._read()
                except ReplyError as problem:
                    self._handle(problem)
                    trouble: Exception = problem
                except OSError as problem:
                    self._disconnect()
                    trouble = problem
            if time.monotonic() > until:
                raise StoreUnavailable(f"the server at {self._place.shown} does not answer: {trouble}") from trouble
            time.sleep(delay * random.uniform(0.5, 1.5))
            delay = min(1.0, delay * 2)

    def send(self, function: str, key: str, *args: CommandArgument) -> None:
        """Send a call, now or when the server is back. Never waits for the reply, never raises."""
        self._after_fork()
        with self._lock:
            self._send(*self._take_batch(), self._command(function, key, args))

    def send_batched(self, function: str, key: str, words: Arguments, *, name: str | None = None) -> None:
        """Send a call within ``BATCH_SECONDS``. All calls of that time become one, which gets their words in order.

        Until then, ``cancel_batched`` can withdraw the call by its ``name``.
        """
        self._after_fork()
        with self._lock:
            batch = self._batch
            if batch and (self._batch_call != (function, key) or len(batch) >= BATCH_MAX):
                self._send(*self._take_batch())
            self._batch_call = function, key
            batch[name or object()] = words
            if self._batch_thread is None:
                self._batch_thread = threading.Thread(target=self._send_batches, name="headway-batches", daemon=True)
                self._batch_thread.start()
            if not self._batch_started.is_set():
                self._batch_started.set()

    def cancel_batched(self, name: str) -> bool:
        """Withdraw a batched call. Return False if it was sent already."""
        self._after_fork()
        with self._lock:
            return self._batch.pop(name, None) is not None

    def flush(self) -> None:
        """Wait until the server has answered all commands. Raises ``StoreUnavailable``."""
        self.ask("PING")

    def close(self) -> None:
        """Disconnect. The next command connects again."""
        self._after_fork()
        with self._lock:
            self._send(*self._take_batch())
            self._disconnect()
            self._batch_thread = None
            self._batch_started.set()

    # ------------------------------------------------------------------ sending

    def _send_batches(self) -> None:
        """Run in a thread. The first call of a batch wakes it, and it ends with the process or with ``close``."""
        mine = threading.current_thread()
        while self._batch_thread is mine:
            self._batch_started.wait()
            self._batch_started.clear()
            time.sleep(BATCH_SECONDS)
            with self._lock:
                if self._batch_thread is mine:
                    self._send(*self._take_batch())

    def _take_batch(self) -> list[bytes]:
        if not self._batch:
            return []
        command = self._command(*self._batch_call, [word for words in self._batch.values() for word in words])
        self._batch.clear()
        return [command]

    def _command(self, function: str, key: str, args: Arguments) -> bytes:
        return pack(("FCALL", f"{self._library.name}_{function}", 1, key, *args))

    def _send(self, *commands: bytes) -> None:
        if not commands:
            return
        self._unanswered += commands
        if len(self._unanswered) > UNANSWERED_MAX:
            for _ in range(len(self._unanswered) - UNANSWERED_MAX):
                self._unanswered.popleft()
                self._failed("the server is away for too long", 1)
            self._disconnect()  # Otherwise replies to dropped commands would match the wrong ones.
        try:
            self._follow_master()
            if self._socket is not None:
                self._socket.sendall(b"".join(commands))
                if len(self._unanswered) >= READ_REPLIES_AT:
                    self._read_available()
            elif time.monotonic() >= self._retry_at:
                self._connect()  # This sends all unanswered commands.
        except (OSError, ReplyError, StoreError):
            self._disconnect()
            self._retry_at = time.monotonic() + RECONNECT_SECONDS

    # ------------------------------------------------------------------ replies

    def _read(self) -> Any:
        """Return the next reply. Raises ``OSError``, or the reply itself if it is an error."""
        return read_reply(self._connected(), self._reader)

    def _read_unanswered(self) -> None:
        """Wait for the replies to all commands that were sent before."""
        while self._unanswered:
            try:
                self._record_reply(self._read())
            except ReplyError as problem:
                self._record_reply(problem)

    def _record_reply(self, reply: Any) -> None:
        """Match a reply with the oldest unanswered command."""
        if isinstance(reply, ReplyError):
            if "Function not found" in str(reply):  # Reconnecting loads the library and repeats all commands.
                raise ConnectionError("the functions are gone")
            if str(reply).startswith(_SOON):
                raise ConnectionError(str(reply))
            self._failed(str(reply), 1)
        self._unanswered.popleft()

    def _read_available(self) -> None:
        """Read the replies that have arrived, without waiting for more."""
        sock, poll = self._connected(), select.poll()
        poll.register(sock, select.POLLIN)
        if poll.poll(0):
            data = sock.recv(65_536)
            if not data:
                raise ConnectionError("the server has closed the connection")
            self._reader.feed(data)
        while self._unanswered and (reply := self._reader.gets()) is not INCOMPLETE:
            self._record_reply(reply)

    def _handle(self, problem: ReplyError) -> None:
        """Prepare to repeat the command. Raises ``StoreError`` for an error that would come again."""
        message = str(problem)
        if "Function not found" in message:
            self._load()
        elif message.startswith(_SOON):
            self._disconnect()
        else:
            raise StoreError(f"the server answered with: {message}") from problem

    # ------------------------------------------------------------------ connecting

    def _connect(self) -> socket.socket:
        """Connect, load the library if it is missing, and send all unanswered commands."""
        login = self._place.login
        address = self._address = self._find()
        self._found_at = time.monotonic()
        try:
            self._socket, self._reader = open_socket(address, login), new_reader()
            server = self._login(login)
            if int(server[b"version"].partition(b".")[0]) < OLDEST_SERVER:
                raise StoreError(f"{address} is too old; use Redis {OLDEST_SERVER} or later, or any Valkey")
            if server[b"role"] != b"master":
                raise ConnectionError(f"{address} is a replica")
            self._check_library()
            if self._unanswered:
                self._socket.sendall(b"".join(self._unanswered))
        except ReplyError as problem:
            self._disconnect()
            if str(problem).startswith(_SOON):
                raise ConnectionError(str(problem)) from problem
            raise StoreError(f"{address} refused the login: {problem}") from problem
        except BaseException:
            self._disconnect()
            raise
        return self._socket

    def _login(self, login: Login) -> Any:
        words: list[CommandArgument] = ["HELLO", "3"]
        if login.password is not None:
            words += ["AUTH", login.username or "default", login.password]
        sock = self._connected()
        sock.sendall(pack((*words, "SETNAME", "headway")))
        reply = self._read()
        if login.database:
            sock.sendall(pack(("SELECT", login.database)))
            self._read()
        return reply

    def _check_library(self) -> None:
        """Call the probe, and load the library if the server does not know it."""
        self._connected().sendall(self._command(self._probe, "headway:probe", ()))
        try:
            self._read()
        except ReplyError as problem:
            if "Function not found" not in str(problem):
                raise
            self._load()

    def _load(self) -> None:
        """Load the library. Two clients may do so at once."""
        self._connected().sendall(pack(("FUNCTION", "LOAD", "REPLACE", self._library.text)))
        self._read()

    def _follow_master(self) -> None:
        """Leave a master that was replaced. It accepts writes for about ten seconds more, and loses all of them."""
        now = time.monotonic()
        if self._socket is None or self._place.master is None or now - self._found_at < MASTER_CHECK:
            return
        self._found_at = now
        with contextlib.suppress(OSError):  # While no Sentinel answers, none replaces the master either.
            if self._find() != self._address:
                self._disconnect()

    def _find(self) -> Endpoint:
        place = self._place
        if place.master is None:
            return place.addresses[0]
        trouble: Exception | None = None
        for sentinel in place.addresses:
            try:
                found = _ask_once(sentinel, place.watch, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", place.master)
            except (OSError, ReplyError) as problem:
                trouble = problem
                continue
            if found is not None:
                return Endpoint(found[0].decode(), int(found[1]))
        raise ConnectionError(f"no Sentinel knows the master {place.master!r}: {trouble or 'none watches it'}")

    def _connected(self) -> socket.socket:
        if self._socket is None:
            raise ConnectionError("there is no connection")
        return self._socket

    def _disconnect(self) -> None:
        sock, self._socket = self._socket, None
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.close()

    def _after_fork(self) -> None:
        """Leave the connection, the lock and the commands of the parent process to it."""
        if self._pid != os.getpid():
            self._lock = threading.RLock()
            self._socket = None  # This closes only our copy of its descriptor.
            self._unanswered.clear()
            self._batch.clear()
            self._batch_started, self._batch_thread = threading.Event(), None
            self._pid = os.getpid()


def _ask_once(address: Endpoint, login: Login, *words: str) -> Any:
    """Ask a Sentinel. Raises ``OSError``, ``ReplyError``."""
    commands: list[tuple[CommandArgument, ...]] = [words]
    if login.password is not None:
        commands.insert(0, ("AUTH", login.username or "default", login.password))
    reader = new_reader()
    with open_socket(address, login) as sock:
        sock.sendall(b"".join(map(pack, commands)))
        return [read_reply(sock, reader) for _ in commands][-1]
