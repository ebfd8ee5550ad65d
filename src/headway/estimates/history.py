"""What workers learn from finished jobs for estimates: run times and arrivals, in one document for each lane."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from math import floor, log2
from operator import itemgetter
from typing import NamedTuple

import msgspec

from headway.core.distributions import BUCKETS_PER_DOUBLING, SHORTEST, Arrivals, Model, ModelData, bucket, decay, merge
from headway.core.lease import Lease
from headway.stores.base import Store

LEARNED = "learned"  # The kind of these documents. Their names are lanes.
PUBLISH_EVERY = 30.0  # Seconds between publications of one process, to spare the store writes.
PUBLISH_FIRST_EVERY = 5.0  # Seconds between publications while a lane has fewer jobs than this:
LITTLE = 200.0  # Jobs.
READ_EVERY = 10.0  # Seconds between reads by processes that estimate. Learned data changes slowly.
TASK_JOBS = 500.0  # Jobs that the sketch of a task counts for at most, so that it follows changes.
LANE_JOBS = 2_000.0  # Jobs that the mix of a lane counts for at most.
TASKS_MAX, TENANTS_MAX = 200, 100  # The most frequent ones are kept, to bound the document.
HOUR_MS = 3_600_000.0  # Arrivals longer ago than this count little.
WINDOW_MS = 60_000  # Jobs of a tenant in adjacent windows of this length belong to one burst.
SECOND_MS = 1_000
STEADY = 0.5  # The least part of windows with jobs for a steady tenant.
BURST = 10.0  # The least number of jobs at a time for a burst.
PENDING_TENANTS_MAX = 10_000  # Tenants recorded between two publications, to bound memory.
TRIES = 5  # Attempts to write a document that other processes write too. The next publication tries again.

_RAN = itemgetter(*(Lease._fields.index(name) for name in ("lane", "task", "tenant", "started_at", "eligible_at")))


class TaskHistory(msgspec.Struct, array_like=True):
    """A task in a lane: how often it arrives beside the others, and the sketch of its run times."""

    share: float = 0.0
    lengths: dict[int, float] = msgspec.field(default_factory=dict)


class TenantHistory(msgspec.Struct, array_like=True):
    """A tenant in a lane: jobs, windows with jobs, and bursts, as of ``at``. Older jobs count less.

    ``squares``: the sum of squares of the jobs that arrived in each second. ``seconds``: how long its jobs ran.
    ``waits``: how many of its jobs had waited how long, by the number of binary digits of the milliseconds.
    """

    jobs: float = 0.0
    windows: float = 0.0
    bursts: float = 0.0
    last: int = -2  # The number of the last window with jobs.
    at: int = 0
    squares: float = 0.0
    seconds: float = 0.0
    waits: dict[int, float] = msgspec.field(default_factory=dict)

    def fade(self, at: int) -> None:
        """Reduce all counts to their weight at this moment."""
        if at > self.at:
            part = math.exp((self.at - at) / HOUR_MS) if self.at else 0.0
            self.jobs, self.windows, self.bursts = self.jobs * part, self.windows * part, self.bursts * part
            self.squares *= part
            self.seconds *= part
            self.waits = {bits: left for bits, count in self.waits.items() if (left := round(count * part, 3)) > 0.01}
            self.at = at

    def coming(self, now_at: int, since_at: int) -> Arrivals:
        """Return how the tenant's jobs arrive."""
        part = math.exp(min(0.0, (self.at - now_at) / HOUR_MS))
        seen = max(float(WINDOW_MS), HOUR_MS * (1 - math.exp(min(0.0, (since_at - now_at) / HOUR_MS)))) / 1_000
        jobs, windows, bursts = self.jobs * part, self.windows * part, max(1e-9, self.bursts * part)
        size = jobs / bursts
        if windows * WINDOW_MS / 1_000 > STEADY * seen or size < BURST:
            rate = jobs / seen
            # Of jobs that come one by one, as many come in a second with any one of them as on average, and itself.
            batch = max(1.0, self.squares * part / max(1e-9, jobs) - rate)
            return Arrivals(batch, rate / batch)
        # Just after one, half a burst too many would be counted: it is the reason why there is anything to count.
        return Arrivals(size, max(0.0, bursts - 0.5 * part) / seen, steady=False)


class TenantUse(NamedTuple):
    """What a tenant had: jobs, seconds of run time, and waits as in ``TenantHistory``."""

    jobs: float = 0.0
    seconds: float = 0.0
    waits: Mapping[int, float] = {}

    def waited(self, part: float) -> float | None:
        """Return a quantile of the waits in seconds, as if the waits in each bucket were spread evenly."""
        wanted, below = part * sum(self.waits.values()), 0.0
        for bits, count in sorted(self.waits.items()):
            if below + count >= wanted and count:
                begins, ends = (1 << bits) >> 1, 1 << bits
                return round((begins + (ends - begins) * (wanted - below) / count) / 1_000, 3)
            below += count
        return None


class ArrivalWindow(msgspec.Struct):
    """The arrivals of a tenant in a lane since the last publication.

    ``first``: the first window with jobs. ``at_once``: the uncounted jobs of the second that ends at ``ends_at``.
    """

    jobs: int = 0
    windows: int = 0
    bursts: int = 0
    first: int = 0
    last: int = -2
    squares: int = 0
    ends_at: int = 0
    at_once: int = 0
    seconds: float = 0.0
    waits: dict[int, int] = msgspec.field(default_factory=dict)

    def close(self) -> ArrivalWindow:
        """Count the jobs of the last second."""
        self.jobs += self.at_once
        self.squares += self.at_once * self.at_once
        self.at_once = 0
        return self


class LaneHistory(msgspec.Struct, omit_defaults=True):
    """Everything learned about a lane. ``since_at``: when the first process began to record."""

    tasks: dict[str, TaskHistory] = msgspec.field(default_factory=dict)
    tenants: dict[str, TenantHistory] = msgspec.field(default_factory=dict)
    since_at: int = 0


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(LaneHistory).decode


class DurationHistory:
    """Records each finished job, in well under a microsecond, and writes to the store at intervals."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lengths: dict[tuple[str, str], dict[int, int]] = {}
        self._came = OrderedDict[tuple[str, str | None], ArrivalWindow]()  # A dict takes long to find its first key.
        self._from_at = self._until_at = 0
        self._published = -math.inf
        self._publish_after = PUBLISH_FIRST_EVERY

    def note(self, runs: Iterable[tuple[Lease, float]]) -> None:
        """Record for how many seconds jobs have run."""
        same: tuple[str, str, str | None] | None = None
        lengths: dict[int, int] = {}
        came: ArrivalWindow | None = None
        for lease, seconds in runs:
            lane, task, tenant, started_at, eligible_at = _RAN(lease)
            if same != (lane, task, tenant):  # Most jobs of a batch are of one kind.
                same = (lane, task, tenant)
                lengths = self._lengths.get((lane, task)) or self._lengths.setdefault((lane, task), {})
                came = self._came.get((lane, tenant))
            at = floor(log2(seconds) * BUCKETS_PER_DOUBLING) if seconds > SHORTEST else bucket(seconds)
            lengths[at] = lengths[at] + 1 if at in lengths else 1
            if not eligible_at:  # A transient job.
                continue
            self._until_at = started_at
            if came is not None and eligible_at < came.ends_at:
                came.at_once += 1
            else:
                came = self._another_second(lane, tenant, eligible_at, started_at)
            came.seconds += seconds
            bits = (started_at - eligible_at).bit_length() if started_at > eligible_at else 0
            came.waits[bits] = came.waits.get(bits, 0) + 1

    def _another_second(self, lane: str, tenant: str | None, eligible_at: int, started_at: int) -> ArrivalWindow:
        window = eligible_at // WINDOW_MS
        came = self._came.setdefault((lane, tenant), ArrivalWindow(first=window)).close()
        came.ends_at = eligible_at // SECOND_MS * SECOND_MS + SECOND_MS
        came.at_once = 1
        self._from_at = self._from_at or started_at
        if window > came.last:
            came.windows += 1
            came.bursts += window > came.last + 1
            came.last = window
        if len(self._came) > PENDING_TENANTS_MAX:  # Drop the tenant whose first job is the oldest.
            self._came.popitem(last=False)
        return came

    async def publish(self, store: Store) -> None:
        """Write what was learned to the store, unless that was done a moment ago."""
        now = self._monotonic()
        if not self._lengths or now - self._published < self._publish_after:
            return
        self._published = now
        known = math.inf
        for lane in {lane for lane, _ in self._lengths}:
            lengths = {task: noted for (name, task), noted in self._lengths.items() if name == lane}
            came = {tenant or "": noted.close() for (name, tenant), noted in self._came.items() if name == lane}
            jobs = await self._publish(store, lane, lengths, came)
            if jobs is not None:
                known = min(known, jobs)
                self._lengths = {key: noted for key, noted in self._lengths.items() if key[0] != lane}
                self._came = OrderedDict((key, noted) for key, noted in self._came.items() if key[0] != lane)
        self._publish_after = PUBLISH_FIRST_EVERY if known < LITTLE else PUBLISH_EVERY

    async def _publish(
        self, store: Store, lane: str, lengths: Mapping[str, dict[int, int]], came: Mapping[str, ArrivalWindow]
    ) -> float | None:
        """Add to the document of a lane. Return how many jobs it holds, or None if other processes always won."""
        for _ in range(TRIES):
            notes, version = LaneHistory(since_at=self._from_at), 0
            for document in await store.read(LEARNED, lane):
                notes, version = _decode(document.body), document.version
            learn(notes, lengths, came, self._until_at)
            if await store.write(LEARNED, lane, _encode(notes), if_version=version) is not None:
                return sum(task.share for task in notes.tasks.values())
        return None


def learn(
    notes: LaneHistory, lengths: Mapping[str, Mapping[int, int]], came: Mapping[str, ArrivalWindow], now_at: int
) -> None:
    """Add recorded jobs to a lane's history, in which older jobs count less."""
    for task, noted in lengths.items():
        known = notes.tasks.setdefault(task, TaskHistory())
        whole = decay(merge([known.lengths, noted]), TASK_JOBS)
        known.lengths = {at: round(count, 3) for at, count in whole.items()}
        known.share += sum(noted.values())
    shares = sum(task.share for task in notes.tasks.values())
    for known in notes.tasks.values():
        known.share = round(known.share * min(1.0, LANE_JOBS / shares), 3)
    for tenant, new in came.items():
        mine = notes.tenants.setdefault(tenant, TenantHistory())
        mine.fade(now_at)
        mine.jobs = round(mine.jobs + new.jobs, 3)
        mine.windows = round(mine.windows + new.windows - (new.first <= mine.last), 3)
        mine.bursts = round(mine.bursts + new.bursts - (new.first <= mine.last + 1), 3)
        mine.squares = round(mine.squares + new.squares, 3)
        mine.last = max(mine.last, new.last)
        mine.seconds = round(mine.seconds + new.seconds, 3)
        mine.waits = merge([mine.waits, new.waits])
    if len(notes.tasks) > TASKS_MAX:
        often = sorted(notes.tasks.items(), key=lambda pair: pair[1].share, reverse=True)
        notes.tasks = dict(often[:TASKS_MAX])
    if len(notes.tenants) > TENANTS_MAX:
        many = sorted(notes.tenants.items(), key=lambda pair: (pair[1].jobs, pair[1].at), reverse=True)
        notes.tenants = dict(many[:TENANTS_MAX])


async def read_tenant_use(store: Store, now_at: int) -> dict[str, TenantUse]:
    """Read what each tenant had in about the last hour, over all lanes. Jobs longer ago count less."""
    found: dict[str, TenantUse] = {}
    for document in await store.read(LEARNED):
        for tenant, known in _decode(document.body).tenants.items():
            known.fade(now_at)
            use = found.setdefault(tenant, TenantUse())
            found[tenant] = TenantUse(
                use.jobs + known.jobs, use.seconds + known.seconds, merge([use.waits, known.waits])
            )
    return found


async def read_learned(store: Store, now_at: int) -> ModelData:
    """Read everything learned, as of this moment of the store's clock."""
    return _learned({document.name: _decode(document.body) for document in await store.read(LEARNED)}, now_at)


def _learned(lanes: Mapping[str, LaneHistory], now_at: int) -> ModelData:
    return ModelData(
        {lane: {task: known.lengths for task, known in notes.tasks.items()} for lane, notes in lanes.items()},
        {
            lane: {tenant: known.coming(now_at, notes.since_at) for tenant, known in notes.tenants.items()}
            for lane, notes in lanes.items()
        },
        {lane: {task: known.share for task, known in notes.tasks.items()} for lane, notes in lanes.items()},
    )


class HistoryReader:
    """Caches the learned data in one process. It reads the store at most every few seconds."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._last_read = -math.inf
        self._known = Model()

    async def known(self, store: Store, now_at: int) -> Model:
        """Return the learned data, up to a few seconds old."""
        now = self._monotonic()
        if now - self._last_read > READ_EVERY:
            self._last_read = now  # Set before the read, so that concurrent callers share it.
            try:
                self._known = Model(await read_learned(store, now_at))
            except BaseException:
                self._last_read = -math.inf
                raise
        return self._known
