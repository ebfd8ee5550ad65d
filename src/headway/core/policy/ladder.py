"""The ladder: durations with nested limits, and how room is made for short jobs.

A job assigned a rung counts against the limit of that rung and of every shorter one. An *elastic* job declares no
duration: it queues as the shortest rung, is assigned the longest that fits, and may be lowered while it runs.
An *interactive* session never queues. It is admitted at once or denied, and is the first to be halted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headway.core.job import JobId
from headway.core.policy.document import ELASTIC, HALTED, INTERACTIVE, Ladder


class ElasticJob(NamedTuple):
    """A running job that may be lowered, and the index of its assigned rung."""

    job_id: JobId
    rung: int
    started_at: int


class RunningSession(NamedTuple):
    """A running interactive session. ``stopping``: it was told to stop, and holds its slot until it has."""

    job_id: JobId
    started_at: int
    stopping: bool = False


class Preemption(NamedTuple):
    """A change to a running job: lower it to a rung, or halt it (no rung)."""

    job_id: JobId
    rung: str | None


class RunBudget(NamedTuple):
    """How long a running job may run, by the rung that it is assigned now."""

    job_id: JobId
    assigned: str
    budget_ms: int


class RunningJobs(NamedTuple):
    """The running jobs by rung, and those that can make room.

    ``counts`` are the jobs by assigned rung, including elastic ones. A session counts at the shortest rung.
    """

    slots: int
    free: int
    counts: tuple[int, ...]
    elastic: tuple[ElasticJob, ...] = ()
    sessions: tuple[RunningSession, ...] = ()


@dataclass(frozen=True, slots=True)
class LadderDecision:
    """The result of one cycle: the jobs to start (place in the queue and rung), and the running jobs to change."""

    starts: tuple[tuple[int, int], ...] = ()
    amendments: tuple[Preemption, ...] = ()
    stopping: bool = False  # A session is stopping and will free its slot.


def full_limit(ladder: Ladder, counts: Sequence[int], slots: int, rung: int) -> int | None:
    """Return the longest rung up to this one whose limit is reached, or None if a job of this rung fits."""
    return next((index for index, left in _rooms(ladder, counts, slots, rung) if left <= 0), None)


def room(ladder: Ladder, counts: Sequence[int], slots: int, rung: int) -> int | None:
    """Return how many more jobs of a rung may start, or None if no limit applies."""
    least = min((left for _, left in _rooms(ladder, counts, slots, rung)), default=None)
    return None if least is None else max(0, least)


def _rooms(ladder: Ladder, counts: Sequence[int], slots: int, rung: int) -> Iterator[tuple[int, int]]:
    """Yield the rungs with a limit that jobs of a rung count against, longest first, and how many jobs each lacks."""
    above = sum(counts[rung + 1 :])
    for index in range(rung, -1, -1):
        above += counts[index]
        most = ladder.rungs[index].most(slots)
        if most is not None:
            yield index, most - above


def longest(ladder: Ladder, counts: Sequence[int], slots: int) -> int | None:
    """Return the longest rung that fits within all limits, or None if not even the shortest does."""
    for index in range(len(ladder.rungs) - 1, -1, -1):
        if full_limit(ladder, counts, slots, index) is None:
            return index
    return None


def rung_index(ladder: Ladder, name: str | None) -> int | None:
    """Return the index of a job's rung; None if it is not on the ladder. An elastic job queues as the shortest."""
    if name == ELASTIC and ladder.rungs:
        return 0
    return next((index for index, rung in enumerate(ladder.rungs) if rung.name == name), None)


def counts_on(ladder: Ladder, name: str | None) -> bool:
    """Return whether a job of this duration counts on the ladder while it runs."""
    return bool(ladder.rungs) and (name == INTERACTIVE or rung_index(ladder, name) is not None)


def fit_rung(ladder: Ladder, running: RunningJobs | None, name: str | None) -> tuple[bool, str | None]:
    """Return whether the ladder lets a job of this rung start, and the rung that it is then assigned."""
    if running is None or not ladder.rungs:
        return True, None
    most, assigned = room_on_rung(ladder, running, name)
    return most != 0, assigned


def room_on_rung(ladder: Ladder, running: RunningJobs, name: str | None) -> tuple[int | None, str | None]:
    """Return how many jobs of this rung may start, or None for no bound, and the rung that all of them are assigned.

    After these starts an elastic job may still fit on a shorter rung.
    """
    if name == ELASTIC:
        best = longest(ladder, running.counts, running.slots)
        if best is None:
            return 0, None
        return room(ladder, running.counts, running.slots, best), ladder.rungs[best].name
    index = 0 if name == INTERACTIVE else rung_index(ladder, name)
    if index is None:
        return None, None
    return room(ladder, running.counts, running.slots, index), None if name == INTERACTIVE else name


def budget_of(ladder: Ladder, name: str | None) -> int | None:
    """Return how many milliseconds a job may run on its assigned rung, or None if only its timeout applies."""
    if name == HALTED:
        return 0
    rung = None if name is None else ladder.find(name)
    return None if rung is None else rung.length_ms


def summarize_running(
    ladder: Ladder, slots: int, running: Iterable[tuple[JobId, str | None, str | None, int]]
) -> RunningJobs:
    """Return the running jobs by rung, from each lease's job, the rung asked for, the rung assigned, and the start."""
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


def add_starts(ladder: Ladder, running: RunningJobs, assigned: str | None, starts: int) -> RunningJobs:
    """Return the running jobs with more starts. A session is assigned no rung and counts at the shortest."""
    index = (assigned and rung_index(ladder, assigned)) or 0
    counts = tuple(count + starts * (place == index) for place, count in enumerate(running.counts))
    return running._replace(counts=counts, free=running.free - starts)


def grants(ladder: Ladder, running: Iterable[tuple[JobId, str | None, str | None]]) -> list[RunBudget]:
    """Return the budgets of the jobs that can be lowered or halted, from (job, rung asked for, rung assigned)."""
    found: list[RunBudget] = []
    for job_id, rung, assigned in running:
        if assigned is not None and rung in (ELASTIC, INTERACTIVE):
            budget_ms = budget_of(ladder, assigned)
            if budget_ms is not None:
                found.append(RunBudget(job_id, assigned, budget_ms))
    return found


def amended(ladder: Ladder, rung: str | None, assigned: str | None, wanted: str | None) -> str | None:
    """Return the rung of a running job after a preemption, or None if nothing changes.

    Only an elastic job is lowered, and never raised. Only a session is halted, and only once.
    """
    if wanted is None:
        return HALTED if rung == INTERACTIVE and assigned != HALTED else None
    if rung != ELASTIC or assigned is None:
        return None
    names = [step.name for step in ladder.rungs]
    lower = wanted in names and (assigned not in names or names.index(wanted) < names.index(assigned))
    return wanted if lower else None


def cycle(ladder: Ladder, running: RunningJobs, queue: Sequence[str], *, chance: float = 0.0) -> LadderDecision:
    """Run the cycle over a queue of rungs in order, until no more job can start.

    Take the first job that is not ignored. If a limit that it counts against is reached, from the longest rung down,
    lower an elastic job that counts there to just below the shortest limit that is reached. If no job can be lowered,
    ignore all jobs of that rung and longer. If no slot is free, lower elastic jobs to the shortest rung, so that slots
    become free soon, and halt one session. Otherwise start the job. ``chance`` in [0, 1) chooses among victims where
    the policy says ``random``.
    """
    state = _State(ladder, running, chance)
    starts: list[tuple[int, int]] = []
    ignored = len(ladder.rungs)
    waiting = list(range(len(queue)))
    while waiting:
        place = next((place for place in waiting if _index(ladder, queue[place]) < ignored), None)
        if place is None:
            break
        head = _index(ladder, queue[place])
        full = full_limit(ladder, state.counts, running.slots, head)
        if full:  # The limit of a longer rung is reached: make room below it, or ignore its jobs.
            if not state.lower_below(full):
                ignored = full
            continue
        if full == 0 or state.free <= 0:
            stopping = state.make_slots(state.wanted([_index(ladder, queue[other]) for other in waiting]))
            return LadderDecision(tuple(starts), tuple(state.amendments), stopping)
        rung = head
        if queue[place] == ELASTIC:
            rung = longest(ladder, state.counts, running.slots) or 0
        state.start(rung)
        starts.append((place, rung))
        waiting.remove(place)
    return LadderDecision(tuple(starts), tuple(state.amendments))


def admit(ladder: Ladder, running: RunningJobs, *, chance: float = 0.0) -> tuple[bool, tuple[Preemption, ...]]:
    """Admit an interactive session if a slot is free, else deny it and lower one elastic job by a rung."""
    state = _State(ladder, running, chance)
    if running.free > 0 and (not ladder.rungs or full_limit(ladder, running.counts, running.slots, 0) is None):
        return True, ()
    victim = state.victim(1)
    if victim is not None:
        state.lower(victim, victim.rung - 1)
    return False, tuple(state.amendments)


class _State:
    """The running jobs while a cycle changes them."""

    def __init__(self, ladder: Ladder, running: RunningJobs, chance: float) -> None:
        self._ladder = ladder
        self._chance = chance
        self._slots = running.slots
        self._sessions = running.sessions
        self._elastic = list(running.elastic)
        self._lowered: dict[JobId, int] = {}
        self.counts = list(running.counts)
        self.free = running.free

    @property
    def amendments(self) -> list[Preemption]:
        named = [Preemption(job_id, self._ladder.rungs[rung].name) for job_id, rung in self._lowered.items()]
        return named + ([Preemption(self._halted, None)] if self._halted is not None else [])

    _halted: JobId | None = None

    def start(self, rung: int) -> None:
        self.counts[rung] += 1
        self.free -= 1

    def victim(self, rung: int) -> ElasticJob | None:
        """Return an elastic job at this rung or longer: the longest first, then by the policy's rule."""
        able = [job for job in self._elastic if job.rung >= rung]
        if not able:
            return None
        top = max(job.rung for job in able)
        able = sorted((job for job in able if job.rung == top), key=lambda job: (-job.started_at, job.job_id))
        return able[int(self._chance * len(able))] if self._ladder.victim == "random" else able[0]

    def lower(self, job: ElasticJob, rung: int) -> None:
        """Lower a job, which makes room on the longer rungs at once."""
        self.counts[job.rung] -= 1
        self.counts[rung] += 1
        self._elastic[self._elastic.index(job)] = job._replace(rung=rung)
        self._lowered[job.job_id] = rung

    def lower_below(self, full: int) -> bool:
        """Lower one job out of a limit that is reached, below every such limit. Return False without such a job."""
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
        """Count the jobs that could start if slots were free. A limit of a longer rung holds the others back."""
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
        """Lower elastic jobs to the shortest rung and halt a session. Return whether a session is stopping."""
        # Jobs on the shortest rung free their slots soon anyway, so a repeated cycle lowers no more jobs.
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
