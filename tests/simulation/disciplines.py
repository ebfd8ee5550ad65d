"""Other ways to choose the next job, for comparison: plain ones, and those of other queues."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from tests.simulation.workload import LADDER, LANES, SLOTS, Work

Line = deque[Work]


@dataclass(slots=True)
class Running:
    """A running job and the time of its end. ``rung`` is its place on the ladder, if there is one."""

    work: Work
    started: float
    ends: float
    rung: int = 0


class Discipline:
    """Slots, and the jobs that run in them. The base class starts jobs in the order of their arrival."""

    name = "first come, first served"

    def __init__(self) -> None:
        self.running: dict[int, Running] = {}
        self.killed: set[int] = set()
        self._line: Line = deque()

    def add(self, work: Work, now: float) -> None:
        """Add a job to the queue."""
        self._line.append(work)

    def take(self, now: float) -> Work | None:
        """Return the next job for a free slot."""
        return self._line.popleft() if self._line else None

    def make_room(self, now: float) -> None:
        """Do the work that comes before each choice, whether or not a slot is free."""

    def start(self, work: Work, now: float) -> None:
        self.running[work.number] = Running(work, now, now + work.seconds)

    def end(self, work: Work, now: float) -> None:
        del self.running[work.number]


def replay(discipline: Discipline, works: Sequence[Work]) -> list[float]:
    """Run a workload under a discipline. Return the seconds that each job waited, in the order of the workload."""
    starts: dict[int, float] = {}
    for now, arrived in _moments(discipline, works):
        if arrived is not None:
            discipline.add(arrived, now)
        while True:
            discipline.make_room(now)
            chosen = discipline.take(now) if len(discipline.running) < SLOTS else None
            if chosen is None:
                break
            discipline.start(chosen, now)
            starts[chosen.number] = now
    return [starts[work.number] - work.arrives for work in works]


def _moments(discipline: Discipline, works: Sequence[Work]) -> Iterator[tuple[float, Work | None]]:
    """Yield every moment at which a job arrives or ends. Arrivals come first."""
    coming = deque(works)
    while coming or discipline.running:
        first = min(discipline.running.values(), key=lambda job: (job.ends, job.work.number), default=None)
        if coming and (first is None or coming[0].arrives <= first.ends):
            yield coming[0].arrives, coming.popleft()
        elif first is not None:
            discipline.end(first.work, first.ends)
            yield first.ends, None


class StrictPriority(Discipline):
    """Strict priorities: the best lane with work is served first."""

    name = "strict priority"

    def __init__(self) -> None:
        super().__init__()
        self._lanes: dict[str, Line] = {lane: deque() for lane in LANES}

    def add(self, work: Work, now: float) -> None:
        self._lanes[work.lane].append(work)

    def take(self, now: float) -> Work | None:
        return next((line.popleft() for line in self._lanes.values() if line), None)


class AbsoluteAging(Discipline):
    """Once a minute, jobs that have waited too long move to the next better queue. The oldest job starts first."""

    name = "aging, a mover every 60 s"

    EVERY = 60.0
    MOVES = (("low", "medium", 600.0), ("medium", "high", 1_200.0))  # From, to, and after how many seconds.

    def __init__(self) -> None:
        super().__init__()
        self._queues: dict[str, list[tuple[float, int, Work]]] = {lane: [] for lane in LANES}
        self._moved = 0.0

    def add(self, work: Work, now: float) -> None:
        self._move(now)
        heappush(self._queues[work.lane], (work.arrives, work.number, work))

    def take(self, now: float) -> Work | None:
        self._move(now)
        return next((heappop(queue)[2] for queue in self._queues.values() if queue), None)

    def _move(self, now: float) -> None:
        """Make all moves that are due."""
        while self._moved + self.EVERY <= now:
            self._moved += self.EVERY
            for worse, better, age in self.MOVES:
                queue = self._queues[worse]
                while queue and queue[0][0] <= self._moved - age:
                    heappush(self._queues[better], heappop(queue))


@dataclass(slots=True)
class _Loop:
    """A loop that pops a job and then waits for a slot. ``since`` is the start of that wait, if it waits now."""

    most: int
    line: Line = field(default_factory=deque)
    running: int = 0
    since: float | None = None

    def wait(self, now: float) -> None:
        """Start the wait of a loop that has popped a job and has room under its own cap."""
        if not self.line or self.running >= self.most:
            self.since = None
        elif self.since is None:
            self.since = now


class ReservedSlots(Discipline):
    """Two loops: one for high, and one for other lanes with at most six slots. The one that waited longer is next."""

    name = "two of eight reserved, two loops"

    def __init__(self) -> None:
        super().__init__()
        self._high, self._low = _Loop(SLOTS), _Loop(SLOTS - 2)

    def add(self, work: Work, now: float) -> None:
        loop = self._loop(work)
        loop.line.append(work)
        loop.wait(now)

    def take(self, now: float) -> Work | None:
        waiting = [
            (loop.since, loop.line[0].number, loop) for loop in (self._high, self._low) if loop.since is not None
        ]
        if not waiting:
            return None
        _, _, loop = min(waiting, key=lambda entry: entry[:2])
        work = loop.line.popleft()
        loop.running += 1
        loop.since = None  # The next job in hand begins to wait now.
        loop.wait(now)
        return work

    def end(self, work: Work, now: float) -> None:
        super().end(work, now)
        loop = self._loop(work)
        loop.running -= 1
        loop.wait(now)

    def _loop(self, work: Work) -> _Loop:
        return self._high if work.lane == "high" else self._low


class DurationLadder(Discipline):
    """First come, first served, but at most six jobs above three seconds and five above ten run at once.

    What declares no duration queues as the shortest, gets the longest that fits, and is cut down when others wait.
    """

    name = "ladder 8/6/5 with downgrades"

    LIMITS = (SLOTS, 6, 5)
    LENGTHS = tuple(LADDER.values())
    ELASTIC = "default"

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[Line] = [deque() for _ in self.LIMITS]

    def add(self, work: Work, now: float) -> None:
        self._lines[0 if work.rung == self.ELASTIC else list(LADDER).index(work.rung)].append(work)

    def take(self, now: float) -> Work | None:
        able = [line for rung, line in enumerate(self._lines) if line and self._full(rung) is None]
        return min(able, key=_first).popleft() if able else None

    def start(self, work: Work, now: float) -> None:
        super().start(work, now)
        job = self.running.pop(work.number)  # It does not count against the limits it is measured by.
        if work.rung != self.ELASTIC:
            job.rung = list(LADDER).index(work.rung)
        else:
            self._shorten(job, max(rung for rung in range(len(self.LIMITS)) if self._full(rung) is None), now)
        self.running[work.number] = job

    def make_room(self, now: float) -> None:
        """Lower elastic jobs for the first job of the queue. If that frees no slot, skip the rung of that job."""
        passed_over = len(self.LIMITS)
        while True:
            rungs = [rung for rung in range(passed_over) if self._lines[rung]]
            if not rungs:
                return
            full = self._full(min(rungs, key=lambda rung: _first(self._lines[rung])))
            if full is None:
                return
            elastic = [
                job
                for job in self.running.values()
                if job.work.rung == self.ELASTIC and job.rung >= max(full, 1) and job.ends > now
            ]
            if full == 0:
                for job in elastic:
                    self._shorten(job, 0, now)
                return
            if not elastic:
                passed_over = full
                continue
            victim = max(elastic, key=lambda job: (job.rung, job.started))
            self._shorten(victim, 1 if full == 2 and self._count(1) < self.LIMITS[1] else 0, now)

    def _full(self, rung: int) -> int | None:
        """Return the longest rung up to this one whose limit is reached."""
        return next((at for at in range(rung, -1, -1) if self._count(at) >= self.LIMITS[at]), None)

    def _count(self, rung: int) -> int:
        return sum(job.rung >= rung for job in self.running.values())

    def _shorten(self, job: Running, rung: int, now: float) -> None:
        """Lower a job to a rung. If it would run longer than the rung allows, it is killed."""
        job.rung = rung
        if job.work.seconds > self.LENGTHS[rung]:
            job.ends = max(now, job.started + self.LENGTHS[rung])
            self.killed.add(job.work.number)


def _first(line: Line) -> tuple[float, int]:
    return (line[0].arrives, line[0].number)


class LeastLoadedQueue(Discipline):
    """Twenty queues that take turns. A job, or a whole batch, joins the shortest queue."""

    name = "20 queues, a batch to one"

    QUEUES = 20

    def __init__(self) -> None:
        super().__init__()
        self._queues: list[Line] = [deque() for _ in range(self.QUEUES)]
        self._turns = [0] * self.QUEUES
        self._turn = 0
        self._load: Counter[int] = Counter()
        self._queue_of_batch: dict[str, int] = {}
        self._queue_of: dict[int, int] = {}

    def add(self, work: Work, now: float) -> None:
        queue = self._queue_of_batch.get(work.batch) if work.batch else None
        if queue is None:
            queue = min(range(self.QUEUES), key=lambda at: (self._load[at], at))
        if work.batch:
            self._queue_of_batch[work.batch] = queue
        self._queue_of[work.number] = queue
        self._load[queue] += 1
        self._queues[queue].append(work)

    def take(self, now: float) -> Work | None:
        filled = [at for at, queue in enumerate(self._queues) if queue]
        if not filled:
            return None
        queue = min(filled, key=lambda at: (self._turns[at], _first(self._queues[at])))
        self._turn = max(self._turn, self._turns[queue])
        self._turns[queue] = self._turn + 1
        return self._queues[queue].popleft()

    def end(self, work: Work, now: float) -> None:
        super().end(work, now)
        self._load[self._queue_of.pop(work.number)] -= 1


DISCIPLINES = (Discipline, StrictPriority, AbsoluteAging, ReservedSlots, DurationLadder, LeastLoadedQueue)
