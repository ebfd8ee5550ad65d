"""The ladder: durations with nested limits, and how room is made for short work.

A job assigned a rung counts against the limit of that rung and of every shorter one. An *elastic* job has no duration
of its own: it queues as the shortest rung, is assigned the longest that fits, and may be lowered while it runs.
An *interactive* session never queues: it is admitted at once or denied, and is the first to be halted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headway.core.job import JobId
from headway.core.policy.document import ELASTIC, HALTED, INTERACTIVE, Ladder


class ElasticJob(NamedTuple):
    """A running job that may be lowered, and the rung it is assigned now."""

    job_id: JobId
    rung: int
    started_at: int


class RunningSession(NamedTuple):
    """A running interactive session. ``stopping``: it was told to, and holds its slot until it has."""

    job_id: JobId
    started_at: int
    stopping: bool = False


class Preemption(NamedTuple):
    """A change to a running job: lower it to a rung, or halt it (no rung)."""

    job_id: JobId
    rung: str | None


class RunBudget(NamedTuple):
    """How long a running job may run: by the rung it is assigned now."""

    job_id: JobId
    assigned: str
    budget_ms: int


class RunningJobs(NamedTuple):
    """What runs, as the ladder sees it, and whom room could be taken from.

    ``counts`` are the jobs by assigned rung, elastic ones too; a session counts at the shortest.
    """

    slots: int
    free: int
    counts: tuple[int, ...]
    elastic: tuple[ElasticJob, ...] = ()
    sessions: tuple[RunningSession, ...] = ()


@dataclass(frozen=True, slots=True)
class LadderDecision:
    """What one run of the cycle decided: who starts (the place in the queue and the rung), and what is amended."""

    starts: tuple[tuple[int, int], ...] = ()
    amendments: tuple[Preemption, ...] = ()
    stopping: bool = False  # A halted session will free its slot once it has stopped.


def full_limit(ladder: Ladder, counts: Sequence[int], slots: int, rung: int) -> int | None:
    """Return the longest rung up to this one whose limit is reached, or None if a job of this rung fits."""
    above = sum(counts[rung + 1 :])
    full: int | None = None
    for index in range(rung, -1, -1):
        above += counts[index]
        most = ladder.rungs[index].most(slots)
        if most is not None and above >= most and full is None:
            full = index
    return full


def room(ladder: Ladder, counts: Sequence[int], slots: int, rung: int) -> int | None:
    """Return how many more jobs of a rung may start; None if no limit says so."""
    above = sum(counts[rung + 1 :])
    left: int | None = None
    for index in range(rung, -1, -1):
        above += counts[index]
        most = ladder.rungs[index].most(slots)
        if most is not None:
            left = most - above if left is None else min(left, most - above)
    return None if left is None else max(0, left)


def longest(ladder: Ladder, counts: Sequence[int], slots: int) -> int | None:
    """Return the longest rung that fits without breaking a limit, or None if not even the shortest does."""
    for index in range(len(ladder.rungs) - 1, -1, -1):
        if full_limit(ladder, counts, slots, index) is None:
            return index
    return None


def rung_index(ladder: Ladder, name: str | None) -> int | None:
    """Return the place of a job's rung on the ladder; an elastic job queues as the shortest. None: it is not on it."""
    if name == ELASTIC and ladder.rungs:
        return 0
    return next((index for index, rung in enumerate(ladder.rungs) if rung.name == name), None)


def counts_on(ladder: Ladder, name: str | None) -> bool:
    """Return whether a job that asked for this duration holds a place on the ladder while it runs."""
    return bool(ladder.rungs) and (name == INTERACTIVE or rung_index(ladder, name) is not None)


def fit_rung(ladder: Ladder, floor: RunningJobs | None, name: str | None) -> tuple[bool, str | None]:
    """Return whether the ladder lets a job of this rung start, and which rung it is then assigned."""
    if name == INTERACTIVE:
        fits = floor is None or not ladder.rungs or full_limit(ladder, floor.counts, floor.slots, 0) is None
        return fits, None
    index = rung_index(ladder, name)
    if index is None or floor is None:
        return True, None
    if name == ELASTIC:
        best = longest(ladder, floor.counts, floor.slots)
        return best is not None, None if best is None else ladder.rungs[best].name
    return full_limit(ladder, floor.counts, floor.slots, index) is None, name


def budget_of(ladder: Ladder, name: str | None) -> int | None:
    """Return how long a job may run on the rung it was assigned; None for as long as its timeout lets it."""
    if name == HALTED:
        return 0
    rung = None if name is None else ladder.find(name)
    return None if rung is None else rung.length_ms


def summarize_running(
    ladder: Ladder, slots: int, running: Iterable[tuple[JobId, str | None, str | None, int]]
) -> RunningJobs:
    """Picture what runs from the leases: each one's job, the rung it asked for, the one assigned, and its start."""
    counts = [0] * len(ladder.rungs)
    elastic: list[ElasticJob] = []
    sessions: list[RunningSession] = []
    total = 0
    for job_id, rung, assigned, started_at in running:
        total += 1
        index = None if assigned is None else rung_index(ladder, assigned)
        if rung == INTERACTIVE:
            sessions.append(RunningSession(job_id, started_at, stopping=assigned == HALTED))
            index = 0 if ladder.rungs else None
        if index is not None:
            counts[index] += 1
            if rung == ELASTIC:
                elastic.append(ElasticJob(job_id, index, started_at))
    return RunningJobs(slots, slots - total, tuple(counts), tuple(elastic), tuple(sessions))


def add_start(ladder: Ladder, floor: RunningJobs, assigned: str | None) -> RunningJobs:
    """Count one more start; a session is assigned no rung and counts at the shortest."""
    index = (assigned and rung_index(ladder, assigned)) or 0
    counts = tuple(count + (place == index) for place, count in enumerate(floor.counts))
    return floor._replace(counts=counts, free=floor.free - 1)


def grants(ladder: Ladder, running: Iterable[tuple[JobId, str | None, str | None]]) -> list[RunBudget]:
    """Return how long jobs may run, of those (job, rung asked for, rung assigned) that can be lowered or halted."""
    found: list[RunBudget] = []
    for job_id, rung, assigned in running:
        if assigned is not None and rung in (ELASTIC, INTERACTIVE):
            budget_ms = budget_of(ladder, assigned)
            if budget_ms is not None:
                found.append(RunBudget(job_id, assigned, budget_ms))
    return found


def amended(ladder: Ladder, rung: str | None, assigned: str | None, wanted: str | None) -> str | None:
    """Return what a running job is assigned after an amendment, or None if that changes nothing.

    Only an elastic job is lowered, and never raised; only a session is halted, and once.
    """
    if wanted is None:
        return HALTED if rung == INTERACTIVE and assigned != HALTED else None
    if rung != ELASTIC or assigned is None:
        return None
    names = [step.name for step in ladder.rungs]
    lower = wanted in names and (assigned not in names or names.index(wanted) < names.index(assigned))
    return wanted if lower else None


def cycle(ladder: Ladder, floor: RunningJobs, queue: Sequence[str], *, chance: float = 0.0) -> LadderDecision:
    """Run the cycle over a queue of rungs, first come first, until nothing more can start.

    For the first job not ignored, from the longest rung down: if a limit it counts against is reached, an elastic job
    that counts there is lowered, to just below the shortest limit that is reached; if there is none, all jobs of that
    rung and longer are ignored. If no slot is free, elastic jobs are lowered to the shortest rung (so that
    slots free soon) and one session is halted. Otherwise the job starts. ``chance`` in [0, 1) picks among
    victims where the policy says ``random``.
    """
    state = _State(ladder, floor, chance)
    starts: list[tuple[int, int]] = []
    ignored = len(ladder.rungs)
    waiting = list(range(len(queue)))
    while waiting:
        place = next((place for place in waiting if _index(ladder, queue[place]) < ignored), None)
        if place is None:
            break
        head = _index(ladder, queue[place])
        full = full_limit(ladder, state.counts, floor.slots, head)
        if full:  # A limit above the shortest rung: make room below it, or pass over.
            if not state.lower_below(full):
                ignored = full
            continue
        if full == 0 or state.free <= 0:
            stopping = state.make_slots(state.wanted([_index(ladder, queue[other]) for other in waiting]))
            return LadderDecision(tuple(starts), tuple(state.amendments), stopping)
        rung = head
        if queue[place] == ELASTIC:
            rung = longest(ladder, state.counts, floor.slots) or 0
        state.start(rung)
        starts.append((place, rung))
        waiting.remove(place)
    return LadderDecision(tuple(starts), tuple(state.amendments))


def admit(ladder: Ladder, floor: RunningJobs, *, chance: float = 0.0) -> tuple[bool, tuple[Preemption, ...]]:
    """Admit an interactive session if a slot is free, else deny it and lower one elastic job by a rung."""
    state = _State(ladder, floor, chance)
    if floor.free > 0 and (not ladder.rungs or full_limit(ladder, floor.counts, floor.slots, 0) is None):
        return True, ()
    victim = state.victim(1)
    if victim is not None:
        state.lower(victim, victim.rung - 1)
    return False, tuple(state.amendments)


class _State:
    """The floor while a cycle changes it."""

    def __init__(self, ladder: Ladder, floor: RunningJobs, chance: float) -> None:
        self._ladder = ladder
        self._chance = chance
        self._slots = floor.slots
        self._sessions = floor.sessions
        self._elastic = list(floor.elastic)
        self._lowered: dict[JobId, int] = {}
        self.counts = list(floor.counts)
        self.free = floor.free

    @property
    def amendments(self) -> list[Preemption]:
        named = [Preemption(job_id, self._ladder.rungs[rung].name) for job_id, rung in self._lowered.items()]
        return named + ([Preemption(self._halted, None)] if self._halted is not None else [])

    _halted: JobId | None = None

    def start(self, rung: int) -> None:
        self.counts[rung] += 1
        self.free -= 1

    def victim(self, rung: int) -> ElasticJob | None:
        """Choose an elastic job at this rung or longer: the longest first, then by the policy's rule."""
        able = [job for job in self._elastic if job.rung >= rung]
        if not able:
            return None
        top = max(job.rung for job in able)
        able = sorted((job for job in able if job.rung == top), key=lambda job: (-job.started_at, job.job_id))
        return able[int(self._chance * len(able))] if self._ladder.victim == "random" else able[0]

    def lower(self, job: ElasticJob, rung: int) -> None:
        """Its place on the longer rungs is free at once."""
        self.counts[job.rung] -= 1
        self.counts[rung] += 1
        self._elastic[self._elastic.index(job)] = job._replace(rung=rung)
        self._lowered[job.job_id] = rung

    def lower_below(self, full: int) -> bool:
        """Lower one job out of a limit that is reached, below every limit that is. False if there is none."""
        victim = self.victim(full)
        if victim is None:
            return False
        target = full - 1
        for index in range(full - 1, 0, -1):
            most = self._ladder.rungs[index].most(self._slots)
            if most is not None and sum(self.counts[index:]) >= most:
                target = index - 1
        self.lower(victim, target)
        return True

    def wanted(self, rungs: Sequence[int]) -> int:
        """Count those that could start if they had slots: a longer limit holds them back whichever job is lowered."""
        counts = list(self.counts)
        for job in self._elastic:
            counts[job.rung] -= 1
            counts[0] += 1
        wanted = 0
        for rung in rungs:
            if not full_limit(self._ladder, counts, self._slots, rung):
                counts[rung] += 1
                wanted += 1
        return wanted

    def make_slots(self, wanted: int) -> bool:
        """Lower elastic jobs to the shortest rung, and halt a session. Gives whether one is stopping."""
        # Those on it already will free their slots soon: a cycle that is run again lowers no more.
        soon = sum(job.rung == 0 for job in self._elastic)
        count = len(self._elastic) if self._ladder.lower == "all" else wanted - soon
        while count > 0 and (victim := self.victim(1)) is not None:
            self.lower(victim, 0)
            count -= 1
        if any(session.stopping for session in self._sessions):
            return True
        if self._sessions:
            order = sorted(self._sessions, key=lambda session: (-session.started_at, session.job_id))
            at = int(self._chance * len(order)) if self._ladder.victim == "random" else 0
            self._halted = order[at].job_id
        return self._halted is not None


def _index(ladder: Ladder, name: str) -> int:
    return rung_index(ladder, name) or 0
