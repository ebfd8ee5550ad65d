"""The registrations of HTTP workers, stored where every server finds them."""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable

import msgspec

from headway.core.errors import WorkerUnknown
from headway.core.job import JobId
from headway.core.log_event import LogEvent
from headway.core.policy.document import BUILT_IN, Policy, reserved_slots
from headway.core.worker import ANY_TASK, TASK, WorkerInfo
from headway.security.tokens import covers
from headway.stores.base import Store

log = logging.getLogger("headway.server")

REGISTERED = "http_worker"
BEATS = "http_beat"  # The number of the last heartbeat. It changes, while a registration never does.
STOPS = "http_stop"  # Jobs that the server has ended, until their worker knows.
CACHED_MAX = 10_000  # Registrations that a process caches.
STOPS_MAX = 1_000
STOP_MS = 60_000  # How long polls and heartbeats name a job that the server has ended.


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """A registered worker. ``token_id``: the token that it must use. ``tasks`` None: it offers any task."""

    worker_id: str
    token_id: str | None
    host: str
    pid: int
    version: str
    slots: int
    reserved: int | None
    capabilities: tuple[str, ...]
    tasks: tuple[str, ...] | None
    lease_ms: int
    confirm_ms: int
    grace_ms: int  # Milliseconds that a job is left alone beyond its timeout: the worker's own report wins.
    registered_at: int
    bound: tuple[str, ...] | None = None  # Patterns of the tasks that its token is for. None: any task.
    plain: bool = False  # It named no tasks.

    def may_run(self, task: str) -> bool:
        """Return whether its token lets it run jobs of a task."""
        return self.bound is None or covers(self.bound, task)

    @property
    def offers(self) -> tuple[str, ...]:
        return (*self.capabilities, *self.task_offers)

    @property
    def task_offers(self) -> tuple[str, ...]:
        return (ANY_TASK,) if self.tasks is None else tuple(sorted(f"{TASK}{name}" for name in self.tasks))

    def reserve(self, policy: Policy) -> int:
        """Return how many slots the worker keeps for the lanes of the reserve.

        A worker that names no tasks may know nothing of lanes. It keeps slots only if it asks for them or if a policy
        sets another reserve than the built-in one.
        """
        default_reserve = self.plain and policy.reserve == BUILT_IN.reserve
        return reserved_slots(policy, self.slots, 0 if self.reserved is None and default_reserve else self.reserved)

    def worker(self, policy: Policy) -> WorkerInfo:
        """Return the worker as stores know it, with the slots that it reserves under this policy."""
        return WorkerInfo(
            worker_id=self.worker_id,
            host=self.host,
            pid=self.pid,
            slots=self.slots,
            reserved=self.reserve(policy),
            offers=self.offers,
            version=self.version,
        )


_encode = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder(Registration)
_read_stops = msgspec.json.Decoder(dict[JobId, int])


class WorkerRegistry:
    """Stores registrations, and caches some of them. They never change."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: OrderedDict[str, Registration] = OrderedDict()
        self.count = 0  # As of the last read of all, plus those added by this process.
        self.tasks: frozenset[str] = frozenset()  # The tasks that those workers know.
        self.of_token: Counter[str | None] = Counter()  # How many of them each token registered.
        self.token_of: dict[str, str | None] = {}  # The token that registered each worker.

    async def add(self, registration: Registration) -> None:
        await self._store.write(REGISTERED, registration.worker_id, _encode(registration))
        self.count += 1
        self.of_token[registration.token_id] += 1
        self.token_of[registration.worker_id] = registration.token_id
        self.tasks |= frozenset(registration.tasks or ())
        self._remember(registration)

    async def find(self, worker_id: str, token_id: str | None) -> Registration:
        """Return a worker's registration.

        Raises ``WorkerUnknown`` if there is none. It does the same if another token registered the worker, so that
        callers cannot probe for ids.
        """
        found = self._known.get(worker_id)
        if found is None:
            documents = await self._store.read(REGISTERED, worker_id)
            if not documents:
                raise WorkerUnknown(worker_id=worker_id)
            found = _read.decode(documents[0].body)
        self._remember(found)
        if found.token_id != token_id:
            log.warning(LogEvent("worker.not_its_own", worker=worker_id, token=token_id))
            raise WorkerUnknown(worker_id=worker_id)
        return found

    async def all(self, live: Collection[str] | None = None) -> list[Registration]:
        """Return all registrations. ``live``: the workers that count for their token."""
        found = [_read.decode(document.body) for document in await self._store.read(REGISTERED)]
        self.count = len(found)
        self.token_of = {one.worker_id: one.token_id for one in found}
        self.of_token = Counter(one.token_id for one in found if live is None or one.worker_id in live)
        self.tasks = frozenset(name for registration in found for name in registration.tasks or ())
        return found

    async def forget(self, worker_id: str) -> None:
        for kind in (STOPS, BEATS, REGISTERED):  # The registration last: after a crash the rest is found by it.
            await self._store.write(kind, worker_id, None)
        self._known.pop(worker_id, None)

    async def is_latest(self, worker_id: str, number: int) -> bool:
        """Record the number of a heartbeat. Return False if a later one has arrived. A repeat is the latest, too."""
        while True:
            known = await self._store.read(BEATS, worker_id)
            version = known[0].version if known else 0
            if known and int(known[0].body) >= number:
                return int(known[0].body) == number
            if await self._store.write(BEATS, worker_id, b"%d" % number, if_version=version) is not None:
                return True

    async def stopped(self, worker_id: str) -> set[JobId]:
        """Return the jobs of a worker that the server has ended lately."""
        documents = await self._store.read(STOPS, worker_id)
        return set(_read_stops.decode(documents[0].body)) if documents else set()

    async def stop(self, worker_id: str, job_ids: Iterable[JobId], now_at: int) -> None:
        """Record that the server has ended these jobs of a worker."""
        while True:
            known = await self._store.read(STOPS, worker_id)
            stops = _read_stops.decode(known[0].body) if known else {}
            kept = list((stops | dict.fromkeys(job_ids, now_at)).items())[-STOPS_MAX:]
            version = known[0].version if known else 0
            if await self._store.write(STOPS, worker_id, _encode(dict(kept)), if_version=version) is not None:
                return

    async def forget_stops(self, now_at: int) -> None:
        """Remove the records of jobs that were ended long enough ago."""
        for document in await self._store.read(STOPS):
            stops = _read_stops.decode(document.body)
            kept = {job_id: ended_at for job_id, ended_at in stops.items() if ended_at + STOP_MS > now_at}
            if len(kept) < len(stops):
                body = _encode(kept) if kept else None
                await self._store.write(STOPS, document.name, body, if_version=document.version)

    def _remember(self, registration: Registration) -> None:
        self._known[registration.worker_id] = registration
        self._known.move_to_end(registration.worker_id)
        if len(self._known) > CACHED_MAX:
            self._known.popitem(last=False)
