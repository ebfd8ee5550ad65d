"""The ledger: which tasks wait and run in which queue. Each verb is one function call on the server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

from headway.core.errors import ConfigError
from headway.integrations.celery.ledger_client import CommandArgument, LedgerClient
from headway.integrations.celery.options import Measure
from headway.stores.redis.address import RedisAddress, read_redis_address
from headway.stores.redis.library import Library, join_scripts

FORMAT = 1  # The version of the keys of a ledger.
_PARTS = ("common", "counting", "running", "query", "broker", "register")
PAGE = 500
MESSAGES = 100  # Messages that the server reads in one call, which takes it about a millisecond.


@cache
def library() -> Library:
    """Join the scripts. Servers may hold the libraries of several versions beside each other."""
    return join_scripts(__name__.rpartition(".")[0], _PARTS, f"headway_celery_{FORMAT}")


class CountedTask(NamedTuple):
    """A task to be counted. ``fixed`` names its queue, else it goes to the least loaded of ``among`` (() for all)."""

    member: str
    name: str
    user: str = ""
    fixed: str = ""
    among: tuple[int, ...] = ()


class CountedMessage(NamedTuple):
    """A task to be counted, the end of its list's name, and its message before and after the queue's name."""

    entry: CountedTask
    ending: str
    before: str
    behind: str

    def sent_to(self, queue: str) -> CountedMessage:
        """Return the same message for a fixed queue."""
        return self._replace(entry=self.entry._replace(fixed=queue))


class TaskRun(NamedTuple):
    """A run of a task. Queue ('' if it is not balanced), name and user are for a task that no sender counted."""

    lease: str
    queue: str = ""
    name: str = ""
    user: str = ""


class QueueLoad(NamedTuple):
    """The load of one queue. ``read``: whether a live worker reads it, None if no worker is known."""

    queue: str
    pending: int
    running: int
    work_ms: int
    read: bool | None
    oldest_ms: int | None  # Milliseconds that its oldest task has waited.


class LedgerStats(NamedTuple):
    """Totals, the busiest users, and the nodes."""

    tally: dict[str, int]
    users: dict[str, int]
    nodes: dict[str, int]


def member_of(task_id: str, retries: object) -> str:
    """Return the name of a message in the ledger. A retry is another message of the same task."""
    return f"{task_id}/{retries or 0}"


def lease_of(member: str, node: str) -> str:
    """Return the name of a run. A member may run on two nodes, if the broker delivers it twice."""
    return f"{member}@{node}"


def member_in(lease: str) -> str:
    return lease.partition("@")[0]


class Ledger:
    """The counts of one process's queues. Forks and threads may share it. Every verb may be repeated.

    Verbs raise ``StoreUnavailable`` when the server has been away for some seconds. ``start`` and ``finish`` never do,
    because the client does not wait for their replies. It repeats these commands until the server has answered.
    """

    def __init__(self, place: RedisAddress, prefix: str, *, key_prefix: str = "") -> None:
        self.prefix = prefix
        self.place = place
        self.errors = 0  # Failed counts since this process started.
        self.trouble = ""  # The reason of the last failure.
        self._key = f"{key_prefix}headway:celery:{prefix}"
        self._client = LedgerClient(place, library(), "known", self._note)
        self.close, self.flush = self._client.close, self._client.flush

    @classmethod
    def at(cls, url: str, prefix: str) -> Ledger:
        """Return the ledger at an address in Headway's notation. Raises ``ConfigError``."""
        place = read_redis_address(url)
        if place.cluster:
            raise ConfigError("a ledger is on one server, or behind Sentinels, not in a cluster")
        return cls(place, prefix)

    def _note(self, trouble: str, count: int) -> None:
        self.errors += count
        self.trouble = trouble

    # ------------------------------------------------------------------ tasks

    def choose(self, *, queues: int, measure: Measure) -> str:
        """Return the least loaded queue that a worker reads. Ties go to the lowest number."""
        return _text(self._client.call("choose", self._key, measure, queues, self.prefix, ""))

    def reserve(self, count: int, *, queues: int, measure: Measure, lease_ms: int) -> str:
        """Choose a queue and count this many tasks there by hand, in one step."""
        return _text(self._client.call("choose", self._key, measure, queues, self.prefix, "", count, lease_ms))

    def count(
        self, entries: Sequence[CountedTask], *, queues: int, measure: Measure, together: bool = False
    ) -> list[str]:
        """Choose a queue for each task and count it there, all in one step."""
        words: list[CommandArgument] = [measure, queues, self.prefix, int(together)]
        for entry in entries:
            words += (entry.member, _tidy(entry.name), _tidy(entry.user), entry.fixed, _numbers(entry.among))
        return [_text(queue) for queue in self._client.call("count", self._key, *words)]

    def push(
        self,
        parcels: Sequence[CountedMessage],
        *,
        queues: int,
        measure: Measure,
        key_prefix: str,
        together: bool = False,
    ) -> list[str]:
        """Count tasks and add their messages to the lists of a broker on the same server, all or none."""
        words: list[CommandArgument] = [measure, queues, self.prefix, int(together), key_prefix]
        for (member, name, user, fixed, among), ending, before, behind in parcels:
            words += (member, _tidy(name), _tidy(user), fixed, _numbers(among), ending, before, behind)
        return [_text(queue) for queue in self._client.call("push", self._key, *words)]

    def uncount(self, members: Iterable[str], why: str) -> int:
        """Remove tasks that will not run. Return how many of them waited."""
        return int(self._client.call("uncount", self._key, why, *members))

    def uncount_soon(self, members: Iterable[str], why: str) -> None:
        """Remove tasks without waiting for the reply."""
        self._client.send("uncount", self._key, why, *members)

    def start(self, run: TaskRun) -> None:
        """Record that a task runs. The command is sent some milliseconds later."""
        self._client.send_batched("runs", self._key, _words("start", run), name=run.lease)

    def finish(self, run: TaskRun, *, took_ms: int | None = None, again: bool = False) -> None:
        """Record that a run has ended. A short run needs only this command.

        ``took_ms``: how long the run took, if the ledger is to learn it. ``again`` puts the task back into its queue.
        """
        what = "ran" if self._client.cancel_batched(run.lease) else "finish"
        learn = "" if took_ms is None else str(took_ms)
        self._client.send_batched("runs", self._key, _words(what, run, learn, int(again)))

    # ------------------------------------------------------------------ by hand

    def add_counts(self, queue: str, *, waiting: int = 0, running: int = 0, lease_ms: int = 60_000) -> tuple[int, int]:
        """Count without a task for ``lease_ms``, or remove such counts. Return how many tasks wait and run."""
        kind, by = ("promised", waiting) if waiting else ("claimed", running)
        found = self._client.call("by_hand", self._key, kind, queue, by, lease_ms)
        return int(found[0]), int(found[1])

    def reset(self, queues: Iterable[str]) -> int:
        """Remove all counts by hand and compute the loads again. Return how many counts were removed."""
        return int(self._client.call("reset", self._key, *queues))

    # ------------------------------------------------------------------ nodes

    def renew(
        self, node: str, queues: Sequence[str], *, lease_ms: int, reconcile_ms: int, held: Sequence[str] = ()
    ) -> tuple[bool, list[str]]:
        """Renew a node. Return whether it must reconcile now, and its leases."""
        found = self._client.call("renew", self._key, node, lease_ms, reconcile_ms, len(queues), *queues, *held)
        return bool(found[0]), [_text(lease) for lease in found[1:]]

    def leave(self, node: str) -> None:
        """Remove a node and end its runs."""
        self._client.call("leave", self._key, node)

    # ------------------------------------------------------------------ reading

    def loads(self, queues: Sequence[str] = ()) -> list[QueueLoad]:
        """Read the loads of all queues at one moment: the named ones, then all others that are known."""
        now_at, *found = self._client.call("loads", self._key, *queues)
        return [
            QueueLoad(
                _text(queue),
                int(pending),
                int(running),
                int(work_ms),
                None if read < 0 else bool(read),
                now_at - oldest_at if oldest_at else None,
            )
            for queue, pending, running, work_ms, read, oldest_at in found
        ]

    def figures(self, *, users: int = 20) -> LedgerStats:
        tally, busiest, nodes = self._client.call("figures", self._key, users)
        return LedgerStats(_pairs(tally), _pairs(busiest), _pairs(nodes))

    def check(self) -> int:
        """Return how many counts differ between two sets, or between a number and its set."""
        return int(self._client.call("check", self._key))

    def waiting(self, queue: str) -> Iterator[tuple[str, int]]:
        """Iterate over the members that wait in a queue, and for how many ms each has been counted."""
        first = 0
        while True:
            now_at, *found = self._client.call("waiting", self._key, queue, first, first + PAGE - 1)
            for member, counted_at in zip(found[::2], found[1::2], strict=True):
                yield _text(member), now_at - counted_at
            if len(found) < 2 * PAGE:
                return
            first += PAGE

    def leases(self) -> list[str]:
        return [_text(lease) for lease in self._client.call("leases", self._key)]

    def held(self) -> list[str]:
        return [_text(member) for member in self._client.call("held", self._key)]

    # ------------------------------------------------------------------ beside a broker on the same server

    def listed(self, key: str) -> Iterator[tuple[str, str]]:
        """Iterate over the messages of a list: member and task name. A message that stays there is never skipped."""
        first = 0
        while True:
            length, *found = self._client.call("listed", self._key, key, first, first + MESSAGES - 1)
            for member, name in zip(found[::2], found[1::2], strict=True):
                yield _text(member), _text(name)
            first += MESSAGES
            if first >= length:
                return

    def unacked(self, key: str) -> Iterator[tuple[str, str, str]]:
        """Iterate over the messages that workers have not acknowledged: member, task name, queue."""
        cursor = "0"
        while True:
            following, *found = self._client.call("unacked", self._key, key, cursor)
            for member, name, queue in zip(found[::3], found[1::3], found[2::3], strict=True):
                yield _text(member), _text(name), _text(queue)
            cursor = _text(following)
            if cursor == "0":
                return

    def length(self, keys: Iterable[str]) -> int:
        """Count the messages of some lists."""
        return sum(int(self._client.ask("LLEN", key)) for key in keys)

    def known(self, members: Sequence[str]) -> list[bool]:
        """Return whether each member waits."""
        found: list[bool] = []
        for first in range(0, len(members), PAGE):
            found += map(bool, self._client.call("known", self._key, *members[first : first + PAGE]))
        return found

    def adopt(self, found: Iterable[tuple[str, str, str]]) -> int:
        """Count as waiting the tasks that the broker has and no sender counted: member, queue, task name."""
        words = [word for member, queue, name in found for word in (member, queue, _tidy(name), "")]
        return int(self._client.call("adopt", self._key, *words)) if words else 0


def _text(word: bytes) -> str:
    return word.decode(errors="surrogateescape")


def _tidy(text: str) -> str:
    """Remove tabs, which separate names and users in the ledger."""
    return text.replace("\t", " ").encode(errors="replace").decode()


def _words(what: str, run: TaskRun, learn: str = "", again: int = 0) -> tuple[CommandArgument, ...]:
    return what, run.lease, run.queue, _tidy(run.name), _tidy(run.user), learn, again


def _numbers(among: Sequence[int]) -> str:
    return ",".join(map(str, among))


def _pairs(words: Sequence[bytes | int]) -> dict[str, int]:
    return {_text(name): int(number) for name, number in zip(words[::2], words[1::2], strict=True)}  # type: ignore[arg-type]
