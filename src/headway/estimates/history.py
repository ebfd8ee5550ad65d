"""The history of finished jobs for estimates: run times and arrivals, in one document for each lane."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from math import floor, log2
from operator import itemgetter
from typing import NamedTuple

import msgspec

from headway.core.distributions import (
    BUCKETS_PER_DOUBLING,
    SHORTEST,
    Arrivals,
    Model,
    ModelData,
    bucket,
    decay,
    merge,
    middle,
)
from headway.core.lease import Lease
from headway.stores.base import Document, Store

LEARNED = "learned"  # The kind of these documents. Their names are lanes.
PUBLISH_EVERY = 30.0  # Seconds between publications of one process, to spare the store writes.
PUBLISH_SOON = 1.0  # Seconds between publications while little is known of a task. The more is known, the longer:
PUBLISH_LATER = 0.06  # Seconds for each known job, so that a task of which all is known has ``PUBLISH_EVERY``.
READ_EVERY = 0.5  # Seconds between reads by processes that estimate. A server makes a forecast at most every second.
AGED_EVERY = 10.0  # Seconds after which arrivals count less even though no worker has published any.
RARE = 0.01  # The part of all runs below which a bucket does not count as usual.
SURPRISE = BUCKETS_PER_DOUBLING  # Buckets beyond the usual ones, from which a run time is a surprise.
TASK_JOBS = 500.0  # Jobs that the sketch of a task counts for at most, so that it follows changes.
LANE_JOBS = 2_000.0  # Jobs that the mix of a lane counts for at most.
TASKS_MAX, TENANTS_MAX = 200, 100  # The most frequent ones are kept, to bound the document.
HOUR_MS = 3_600_000.0  # Arrivals longer ago than this count little.
CHANGED_JOBS = 5  # Runs between two publications before they can show that a task has changed: fewer follow chance.
CHANGED_MOST = 0.9  # The part of them that must be far from the usual ones.
CHANGED_PART = 0.05  # What is known of a task that has changed counts for this part of the new runs.
IRREGULAR_GAPS = 1.0  # Gaps between bursts at random moments that are assumed beside those seen.
WINDOW_MS = 60_000  # Jobs of a tenant in adjacent windows of this length belong to one burst.
SECOND_MS = 1_000
STEADY = 0.5  # The least part of windows with jobs for a steady tenant.
BURST = 10.0  # The least number of jobs at a time for a burst.
PENDING_TENANTS_MAX = 10_000  # Tenants recorded between two publications, to bound memory.
TRIES = 5  # Attempts to write a document that other processes write too. The next publication tries again.

_RAN = itemgetter(*(Lease._fields.index(name) for name in ("lane", "task", "tenant", "started_at", "eligible_at")))


class TaskHistory(msgspec.Struct, array_like=True):
    """A task in a lane: how often it arrives beside the others, the sketch of its run times, and their sum.

    The sum is exact where the sketch knows a run time only to within a tenth. Older releases have not kept it.
    """

    share: float = 0.0
    lengths: dict[int, float] = msgspec.field(default_factory=dict)
    seconds: float = 0.0

    @property
    def count(self) -> float:
        return sum(self.lengths.values())

    @property
    def usual(self) -> range:
        """The buckets of all but the rarest run times, and those near them."""
        rare = RARE * self.count
        frequent = [at for at, count in self.lengths.items() if count >= rare]
        return range(min(frequent) - SURPRISE + 1, max(frequent) + SURPRISE) if frequent else range(0)

    def learn(self, runs: TaskRuns) -> None:
        """Add runs, so that older ones count less."""
        if self._is_changed_by(runs):
            self._fade(sum(runs.lengths.values()) * CHANGED_PART)
        seconds = self.seconds or sum(count * middle(at) for at, count in self.lengths.items())
        whole = merge([self.lengths, runs.lengths])
        jobs, kept = sum(whole.values()), decay(whole, TASK_JOBS)
        self.seconds = round((seconds + runs.seconds) * sum(kept.values()) / jobs, 6)
        self.lengths = {at: round(count, 3) for at, count in kept.items()}
        self.share += sum(runs.lengths.values())

    def _is_changed_by(self, runs: TaskRuns) -> bool:
        """Return whether nearly all of some runs took far longer, or far less, than usual."""
        jobs = sum(runs.lengths.values())
        if not self.lengths or jobs < CHANGED_JOBS:
            return False
        usual = self.usual
        return sum(count for at, count in runs.lengths.items() if at not in usual) >= CHANGED_MOST * jobs

    def _fade(self, most: float) -> None:
        """Reduce the weight of the known runs to that of ``most`` runs."""
        part = min(1.0, most / self.count)
        self.lengths = {at: count * part for at, count in self.lengths.items()}
        self.seconds *= part


class TaskRuns(msgspec.Struct):
    """The runs of a task in a lane since the last publication: how many by bucket, and their seconds together."""

    lengths: dict[int, int] = msgspec.field(default_factory=dict)
    seconds: float = 0.0


class TenantHistory(msgspec.Struct, array_like=True):
    """A tenant in a lane: jobs, windows with jobs, and bursts, as of ``at``. Older jobs count less.

    ``squares``: the sum of squares of the jobs that arrived in each second. ``seconds``: how long its jobs ran.
    ``waits``: how many of its jobs had waited how long, by the number of binary digits of the milliseconds. ``gaps``:
    the number of gaps between the starts of bursts, the sum of their windows, and the sum of squares of these.
    """

    jobs: float = 0.0
    windows: float = 0.0
    bursts: float = 0.0
    last: int = -2  # The number of the last window with jobs.
    at: int = 0
    squares: float = 0.0
    seconds: float = 0.0
    waits: dict[int, float] = msgspec.field(default_factory=dict)
    begun: int = -1  # The number of the first window of the last burst.
    gaps: list[float] = msgspec.field(default_factory=lambda: [0.0, 0.0, 0.0])

    def fade(self, at: int) -> None:
        """Reduce all counts to their weight at this moment."""
        if at > self.at:
            part = math.exp((self.at - at) / HOUR_MS) if self.at else 0.0
            self.jobs, self.windows, self.bursts = self.jobs * part, self.windows * part, self.bursts * part
            self.squares *= part
            self.seconds *= part
            self.gaps = [round(value * part, 3) for value in self.gaps]
            self.waits = {bits: left for bits, count in self.waits.items() if (left := round(count * part, 3)) > 0.01}
            self.at = at

    def coming(self, now_at: int, since_at: int) -> Arrivals:
        """Return how the tenant's jobs arrive."""
        part = math.exp(min(0.0, (self.at - now_at) / HOUR_MS))
        seen = _observed(now_at, since_at)
        jobs, windows, bursts = self.jobs * part, self.windows * part, max(1e-9, self.bursts * part)
        size = jobs / bursts
        if windows * WINDOW_MS / 1_000 > STEADY * seen or size < BURST:
            rate = jobs / seen
            # Of jobs that come one by one, as many come in a second with any one of them as on average, and itself.
            batch = max(1.0, self.squares * part / max(1e-9, jobs) - rate)
            return Arrivals(batch, rate / batch)
        # Just after one, half a burst too many would be counted: it is the reason why there is anything to count.
        return Arrivals(size, max(0.0, bursts - 0.5 * part) / seen, steady=False, irregular=self._irregular())

    def begin_burst(self, window: int) -> None:
        """Record that a burst begins in a window."""
        if 0 <= self.begun < window:
            gap = window - self.begun
            self.gaps = [self.gaps[0] + 1, self.gaps[1] + gap, self.gaps[2] + gap * gap]
        self.begun = window

    def _irregular(self) -> float:
        """Return how irregular bursts are, by ``Arrivals.irregular``. A few gaps that were alike may be chance."""
        count, total, squares = self.gaps
        if count <= 0 or total <= 0:
            return 1.0
        found = max(0.0, squares * count / (total * total) - 1.0)
        return min(1.0, (found * count + IRREGULAR_GAPS) / (count + IRREGULAR_GAPS))


class TenantUse(NamedTuple):
    """The use of slots by a tenant: jobs, seconds of run time, and waits as in ``TenantHistory``."""

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
    ``carried``: the jobs of that second that are counted already, or were published before.
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
    carried: int = 0

    def close(self) -> ArrivalWindow:
        """Count the jobs of the last second."""
        together = self.carried + self.at_once
        self.jobs += self.at_once
        self.squares += together * together - self.carried * self.carried
        self.carried, self.at_once = together, 0
        return self

    def next(self) -> ArrivalWindow:
        """Return the window that follows a publication. Jobs that came together may end before and after it."""
        return ArrivalWindow(0, 1, 1, self.last, self.last, ends_at=self.ends_at, carried=self.carried)


class LaneHistory(msgspec.Struct, omit_defaults=True):
    """Everything learned about a lane. ``since_at``: when the first process began to record."""

    tasks: dict[str, TaskHistory] = msgspec.field(default_factory=dict)
    tenants: dict[str, TenantHistory] = msgspec.field(default_factory=dict)
    since_at: int = 0


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(LaneHistory).decode


class DurationHistory:
    """Records each finished job, in well under a microsecond, and writes to the store at intervals.

    It publishes within a second while little is known of a task, and after a strong change. ``wake`` is called when
    the next publication is to be earlier than its caller may expect.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, wake: Callable[[], None] | None = None) -> None:
        self._monotonic = monotonic
        self.wake = wake
        self._runs: dict[tuple[str, str], TaskRuns] = {}
        self._before: dict[tuple[str, str], TaskRuns] = {}  # Runs before the first surprise since the last publication.
        self._known: dict[tuple[str, str], _KnownRuns] = {}  # What this process last published, by lane and task.
        self._came = OrderedDict[tuple[str, str | None], ArrivalWindow]()  # A dict takes long to find its first key.
        self._from_at = self._until_at = 0
        self._published = -math.inf
        self._due = math.inf  # When the next publication is due, on the monotonic clock.
        self._surprised = False  # Whether a run time since the last publication was far from the usual ones,
        self._surprise_after = PUBLISH_SOON  # and after how many seconds it is published.

    def note(self, runs: Iterable[tuple[Lease, float]]) -> None:
        """Record for how many seconds jobs have run."""
        same_lane: str | None = None
        same_task: str | None = None
        same_tenant: str | None = None
        noted = TaskRuns()
        came: ArrivalWindow | None = None
        for lease, seconds in runs:
            lane, task, tenant, started_at, eligible_at = _RAN(lease)
            if task != same_task or lane != same_lane:  # Most jobs of a batch are of one task.
                noted = self._runs.get((lane, task)) or self._runs.setdefault((lane, task), TaskRuns())
                same_task, same_lane = task, lane
                came, same_tenant = self._came.get((lane, tenant)), tenant
            elif tenant != same_tenant:
                came, same_tenant = self._came.get((lane, tenant)), tenant
            at = floor(log2(seconds) * BUCKETS_PER_DOUBLING) if seconds > SHORTEST else bucket(seconds)
            if at in noted.lengths:
                noted.lengths[at] += 1
            else:  # Seldom: the first since the last publication.
                noted = self._first(lane, task, at)
            noted.seconds += seconds
            if not eligible_at:  # A transient job.
                continue
            self._until_at = started_at
            if came is not None and eligible_at < came.ends_at:
                came.at_once += 1
            else:
                came = self._another_second(lane, tenant, eligible_at, started_at)
            came.seconds += seconds
            bits = (started_at - eligible_at).bit_length() if started_at > eligible_at else 0
            waits = came.waits
            waits[bits] = waits.get(bits, 0) + 1

    def _first(self, lane: str, task: str, at: int) -> TaskRuns:
        """Count a run, the first in its bucket since the last publication.

        Publish the sooner, the less is known of a task, and soon after a run time that is far from the usual ones.

        Surprises that come again and again are no change, so each of them is published later than the one before.
        """
        known = self._known.get((lane, task))
        after = 0.0 if known is None else PUBLISH_LATER * known.jobs
        due = self._published + min(PUBLISH_EVERY, max(PUBLISH_SOON, after))
        noted = self._runs[lane, task]
        if known is not None and at not in known.usual:
            self._surprised = True
            due = min(due, self._monotonic() + self._surprise_after)
            if noted.lengths and (lane, task) not in self._before:  # Compare the runs from here on with those before.
                self._before[lane, task] = noted
                noted = self._runs[lane, task] = TaskRuns()
        noted.lengths[at] = 1
        if due < self._due:
            self._due = due
            if self.wake is not None:
                self.wake()
        return noted

    @property
    def due_in(self) -> float:
        """Seconds until the next publication is due; infinite if nothing is to be published."""
        return max(0.0, self._due - self._monotonic())

    def _another_second(self, lane: str, tenant: str | None, eligible_at: int, started_at: int) -> ArrivalWindow:
        window = eligible_at // WINDOW_MS
        came = self._came.get((lane, tenant))
        if came is None or (not came.close().jobs and window > came.last):  # Nothing came since the last publication.
            came = self._came[lane, tenant] = ArrivalWindow(first=window)
        came.ends_at = eligible_at // SECOND_MS * SECOND_MS + SECOND_MS
        came.carried, came.at_once = 0, 1
        self._from_at = self._from_at or started_at
        if window > came.last:
            came.windows += 1
            came.bursts += window > came.last + 1
            came.last = window
        if len(self._came) > PENDING_TENANTS_MAX:  # Drop the tenant whose first job is the oldest.
            self._came.popitem(last=False)
        return came

    async def publish(self, store: Store) -> None:
        """Write what was learned to the store, if that is due."""
        if not self._runs or self.due_in > 0:
            return
        self._published, self._due = self._monotonic(), math.inf
        later = min(PUBLISH_EVERY, 2 * self._surprise_after) if self._surprised else self._surprise_after / 2
        self._surprised, self._surprise_after = False, max(PUBLISH_SOON, later)
        for lane in {lane for lane, _ in self._runs}:
            before, runs = (
                {task: noted for (name, task), noted in kept.items() if name == lane}
                for kept in (self._before, self._runs)
            )
            closed = {tenant or "": noted.close() for (name, tenant), noted in self._came.items() if name == lane}
            came = {tenant: noted for tenant, noted in closed.items() if noted.jobs}
            # Forget them first. Jobs that end during the write belong to the next publication.
            self._before = {key: noted for key, noted in self._before.items() if key[0] != lane}
            self._runs = {key: noted for key, noted in self._runs.items() if key[0] != lane}
            self._came = OrderedDict((key, noted) for key, noted in self._came.items() if key[0] != lane)
            self._came.update({(lane, tenant or None): noted.next() for tenant, noted in came.items()})
            try:
                written = await self._publish(store, lane, before, runs, came)
            except BaseException:
                self._take_back(lane, (before, runs), came)
                raise
            if not written:
                self._take_back(lane, (before, runs), came)

    async def _publish(
        self,
        store: Store,
        lane: str,
        before: Mapping[str, TaskRuns],
        runs: Mapping[str, TaskRuns],
        came: Mapping[str, ArrivalWindow],
    ) -> bool:
        """Add to the document of a lane. Return False if other processes always won."""
        for _ in range(TRIES):
            notes, version = LaneHistory(since_at=self._from_at), 0
            for document in await store.read(LEARNED, lane):
                notes, version = _decode(document.body), document.version
            learn(notes, before, {}, self._until_at)
            learn(notes, runs, came, self._until_at)
            if await store.write(LEARNED, lane, _encode(notes), if_version=version) is not None:
                known = {(name, task): of for (name, task), of in self._known.items() if name != lane}
                self._known = known | {(lane, task): _KnownRuns(of.count, of.usual) for task, of in notes.tasks.items()}
                return True
        return False

    def _take_back(
        self, lane: str, unwritten: Iterable[Mapping[str, TaskRuns]], came: Mapping[str, ArrivalWindow]
    ) -> None:
        """Keep what could not be written, beside what was recorded meanwhile, for the next publication."""
        for task, noted in (pair for runs in unwritten for pair in runs.items()):
            newer = self._runs.get((lane, task)) or TaskRuns()
            lengths = {at: int(count) for at, count in merge([noted.lengths, newer.lengths]).items()}
            self._runs[lane, task] = TaskRuns(lengths, noted.seconds + newer.seconds)
        for tenant, window in came.items():
            self._came[lane, tenant or None] = window
        self._due = self._published + PUBLISH_SOON


class _KnownRuns(NamedTuple):
    """The known run times of a task: their number, and the buckets of usual ones."""

    jobs: float
    usual: range


def learn(
    notes: LaneHistory, runs: Mapping[str, TaskRuns], came: Mapping[str, ArrivalWindow], now_at: int
) -> None:  # fmt: skip
    """Add recorded jobs to a lane's history, in which older jobs count less."""
    for task, noted in runs.items():
        notes.tasks.setdefault(task, TaskHistory()).learn(noted)
    shares = sum(task.share for task in notes.tasks.values())
    for known in notes.tasks.values():
        known.share = round(known.share * min(1.0, LANE_JOBS / shares), 3)
    for tenant, new in came.items():
        mine = notes.tenants.setdefault(tenant, TenantHistory())
        mine.fade(now_at)
        mine.jobs = round(mine.jobs + new.jobs, 3)
        if new.first > mine.last + 1:
            mine.begin_burst(new.first)
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
        means={
            lane: {task: known.seconds / known.count for task, known in notes.tasks.items() if known.seconds}
            for lane, notes in lanes.items()
        },
        observed={lane: _observed(now_at, notes.since_at) for lane, notes in lanes.items()},
    )


def _observed(now_at: int, since_at: int) -> float:
    """Return for how many seconds arrivals were recorded. Those longer ago count less."""
    return max(float(WINDOW_MS), HOUR_MS * (1 - math.exp(min(0.0, (since_at - now_at) / HOUR_MS)))) / 1_000


class HistoryReader:
    """Caches the learned data in one process. It reads the store when it is asked, at most every half second."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._last_read = self._made = -math.inf
        self._lanes: dict[str, tuple[int, LaneHistory]] = {}  # The version of each document, and what it says.
        self._known: Model | None = None

    async def known(self, store: Store, now_at: int) -> Model:
        """Return the learned data, up to half a second old."""
        now = self._monotonic()
        if self._known is None or now - self._last_read > READ_EVERY:
            before, self._last_read = self._last_read, now  # Set before the read, so that concurrent callers share it.
            try:
                documents = await store.read(LEARNED)
            except BaseException:
                self._last_read = before
                raise
            self._known = self._read(documents, now, now_at)
        return self._known

    def _read(self, documents: Iterable[Document], now: float, now_at: int) -> Model:
        """Return the model that documents describe: the last one, if they have not changed for some seconds."""
        lanes: dict[str, tuple[int, LaneHistory]] = {}
        for document in documents:
            version, notes = self._lanes.get(document.name, (None, None))
            if notes is None or version != document.version:
                notes = _decode(document.body)
            lanes[document.name] = (document.version, notes)
        changed = {name: of[0] for name, of in lanes.items()} != {name: of[0] for name, of in self._lanes.items()}
        if self._known is not None and not changed and now - self._made < AGED_EVERY:
            return self._known
        self._lanes, self._made = lanes, now
        return Model(_learned({name: notes for name, (_, notes) in lanes.items()}, now_at))
