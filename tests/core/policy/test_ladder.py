"""Room on the ladder: each step of the cycle, and the promises that hold in any case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.job import JobId
from headway.core.policy.document import ELASTIC, INTERACTIVE, Ladder, Rung
from headway.core.policy.ladder import (
    ElasticJob,
    LadderDecision,
    Preemption,
    RunningJobs,
    RunningSession,
    add_starts,
    admit,
    budget_of,
    cycle,
    fit_rung,
    full_limit,
    longest,
    room,
    room_on_rung,
    rung_index,
)

NAMES = {
    0: (),
    1: ("fast",),
    2: ("fast", "slow"),
    3: ("fast", "medium", "slow"),
    4: ("r1", "r2", "r3", "r4"),
    5: ("r1", "r2", "r3", "r4", "r5"),
}
NO_LIMIT = "-"


def a_ladder(limits: str = "5 3 1", *, victim: str = "least_elapsed", lower: str = "needed") -> Ladder:
    """Return a ladder with these limits, the shortest rung first: numbers, percentages of all slots, or none."""
    rungs = [
        Rung(
            name,
            3_000 * (index + 1),
            None if limit == NO_LIMIT or limit.endswith("%") else int(limit),
            float(limit[:-1]) if limit.endswith("%") else None,
        )
        for index, (name, limit) in enumerate(zip(NAMES[len(limits.split())], limits.split(), strict=True))
    ]
    return Ladder(tuple(rungs), victim, lower)


def some_running_jobs(
    ladder: Ladder, running: str = "", elastic: str = "", sessions: str = "", *, slots: int = 5, free: int | None = None
) -> RunningJobs:
    """Return running jobs: counts by rung, elastic jobs as ``name:rung``, sessions (``name!`` is stopping).

    A job later in its list has started later.
    """
    counts = [0] * len(ladder.rungs)
    for name in running.split():
        counts[place_of(ladder, name)] += 1
    lowerable = []
    for number, word in enumerate(elastic.split(), 1):
        job_id, _, name = word.partition(":")
        counts[place_of(ladder, name)] += 1
        lowerable.append(ElasticJob(JobId(job_id), place_of(ladder, name), number * 1_000))
    open_now = [
        RunningSession(JobId(word.rstrip("!")), number * 1_000, word.endswith("!"))
        for number, word in enumerate(sessions.split(), 1)
    ]
    if free is None:
        free = slots - sum(counts) - len(open_now)
    return RunningJobs(slots, free, tuple(counts), tuple(lowerable), tuple(open_now))


def place_of(ladder: Ladder, name: str) -> int:
    index = rung_index(ladder, name)
    assert index is not None
    return index


@dataclass(frozen=True)
class Row:
    """One step of the cycle: the waiting and running jobs, and the expected decision."""

    queue: str
    running: str = ""
    elastic: str = ""
    sessions: str = ""
    limits: str = "5 3 1"
    slots: int = 5
    free: int | None = None
    lower: str = "needed"
    starts: dict[int, str] = field(default_factory=dict)
    lowered: dict[str, str] = field(default_factory=dict)
    halted: str | None = None
    stopping: bool = False


ROWS = [
    # R3.18, R3.90: it counts on its new rung at once, so the slow job starts in the same cycle.
    pytest.param(
        Row("slow", elastic="a:slow", lowered={"a": "medium"}, starts={0: "slow"}),
        id="R3.18 slow is full: an elastic job on it goes to medium",
    ),
    pytest.param(
        Row("slow", running="medium", elastic="a:slow", lowered={"a": "medium"}, starts={0: "slow"}),
        id="R3.18 there is room on medium",
    ),
    pytest.param(
        Row("slow", running="medium medium", elastic="a:slow", lowered={"a": "fast"}, starts={0: "slow"}),
        id="R3.19 medium is full too: it goes to fast",
    ),
    pytest.param(
        Row("slow", running="medium", elastic="a:slow b:medium", lowered={"a": "fast"}, starts={0: "slow"}),
        id="R3.19 at one go: nobody else is lowered for it",
    ),
    pytest.param(
        Row("slow", limits="5 3 2", elastic="a:slow b:slow", lowered={"b": "medium"}, starts={0: "slow"}),
        id="R3.18 one is lowered, the youngest",
    ),
    pytest.param(
        Row("slow", running="slow", elastic="a:medium", starts={}),
        id="R3.20 an elastic job on medium is no help to slow",
    ),
    pytest.param(Row("slow fast", running="slow", starts={1: "fast"}), id="R3.20 slow stays full: slow is ignored"),
    pytest.param(
        Row("slow slow medium slow fast", running="slow", starts={2: "medium", 4: "fast"}),
        id="R3.20 all slow jobs are, and nothing else",
    ),
    pytest.param(
        Row("slow slow", elastic="a:slow", lowered={"a": "medium"}, starts={0: "slow"}),
        id="R3.20 the second slow job finds nobody to lower",
    ),
    pytest.param(
        Row("medium", running="medium medium", elastic="a:slow", lowered={"a": "fast"}, starts={0: "medium"}),
        id="R3.21 medium is full: an elastic job on slow goes to fast",
    ),
    pytest.param(
        Row("medium", running="slow medium", elastic="a:medium", lowered={"a": "fast"}, starts={0: "medium"}),
        id="R3.21 else one on medium",
    ),
    pytest.param(
        Row("medium", running="medium", elastic="a:slow b:medium", lowered={"a": "fast"}, starts={0: "medium"}),
        id="R3.21 slow before medium, however old",
    ),
    pytest.param(
        Row("slow", limits="5 3 2", running="slow medium", elastic="b:medium", lowered={"b": "fast"},
            starts={0: "slow"}),
        id="R3.21 a slow head, with only medium full",
    ),
    pytest.param(
        Row("medium slow fast default", running="medium medium slow", slots=6, starts={2: "fast", 3: "fast"}),
        id="R3.22 medium stays full: medium and slow are ignored, fast and default are not",
    ),
    pytest.param(
        Row("slow medium", running="slow", elastic="a:medium b:medium", lowered={"b": "fast"}, starts={1: "medium"}),
        id="R3.20 R3.22 slow is ignored, and step 2 makes room for medium",
    ),
    pytest.param(
        Row("fast", running="fast fast", elastic="a:slow b:medium c:medium", lower="all",
            lowered={"a": "fast", "b": "fast", "c": "fast"}),
        id="R3.23 R3.24 no slot: all elastic jobs go to fast, and nothing starts yet",
    ),
    pytest.param(
        Row("fast", running="fast fast", elastic="a:slow b:medium c:medium", lowered={"a": "fast"}),
        id="R3.33 one waits: one is lowered, the longest",
    ),
    pytest.param(
        Row("fast default", running="fast fast", elastic="a:slow b:medium c:medium",
            lowered={"a": "fast", "c": "fast"}),
        id="R3.33 two wait: two are",
    ),
    pytest.param(
        Row("fast", running="fast fast", elastic="a:fast b:medium c:medium", lowered={}),
        id="R3.33 one waits, and one is as short as can be: no more are lowered",
    ),
    pytest.param(
        Row("slow fast", running="slow fast fast", elastic="a:medium b:medium", lowered={"b": "fast"}),
        id="R3.33 those that are ignored need no slot",
    ),
    pytest.param(
        Row("fast slow slow", running="slow fast fast", elastic="a:medium b:medium", lowered={"b": "fast"}),
        id="R3.33 nor do those behind it that will be",
    ),
    pytest.param(
        Row("fast slow slow", limits="5 4 2", running="slow fast", elastic="a:medium b:medium c:medium",
            lowered={"b": "fast", "c": "fast"}),
        id="R3.33 of two slow jobs there is a place for one",
    ),
    pytest.param(
        Row("fast slow slow", limits="5 4 1", running="fast fast", elastic="a:slow b:medium c:medium",
            lowered={"a": "fast", "c": "fast"}),
        id="R3.33 one of them has the place of a job that is lowered",
    ),
    pytest.param(
        Row("slow", running="fast fast fast fast", elastic="a:slow", lowered={"a": "fast"}),
        id="R3.18 R3.23 first out of slow, then to fast: one change",
    ),
    pytest.param(
        Row("fast", running="fast fast fast", sessions="s t", halted="t", stopping=True),
        id="R3.25 R3.34 a session is halted, the youngest; its slot is not free yet",
    ),
    pytest.param(
        Row("fast fast fast", running="fast fast", sessions="s t u", halted="u", stopping=True),
        id="R3.25 one session at a time",
    ),
    pytest.param(
        Row("fast", running="fast fast fast", sessions="s! t", stopping=True),
        id="R3.34 while one is stopping no other is halted",
    ),
    pytest.param(
        Row("fast fast", running="fast fast fast", sessions="s! t", free=1, starts={0: "fast"}, stopping=True),
        id="R3.34 nor when a slot has come free meanwhile",
    ),
    pytest.param(
        Row("fast", running="fast fast", elastic="a:slow", sessions="s t", slots=5, lowered={"a": "fast"}, halted="t",
            stopping=True),
        id="R3.23 R3.25 elastic jobs are lowered and a session is halted",
    ),
    pytest.param(
        Row("slow", running="slow fast fast fast", sessions="s"),
        id="R3.12 no session is halted for a job that could not start then",
    ),
    pytest.param(Row("fast", sessions="s t", starts={0: "fast"}), id="R3.12 nor if there is a slot"),
    pytest.param(Row("", running="slow", elastic="a:slow", sessions="s"), id="an empty queue changes nothing"),
    pytest.param(Row("default", starts={0: "slow"}), id="R3.9 R3.27 an elastic job gets the longest rung"),
    pytest.param(
        Row("default", running="slow", starts={0: "medium"}), id="R3.27 the longest that fits: slow is full"
    ),
    pytest.param(
        Row("default", running="slow medium medium", starts={0: "fast"}), id="R3.27 medium is full too"
    ),
    pytest.param(
        Row("default", limits="5 3 2", running="medium medium medium", starts={0: "fast"}),
        id="R3.27 slow has room, but counts on medium, which has none",
    ),
    pytest.param(
        Row("default " * 6, starts={0: "slow", 1: "medium", 2: "medium", 3: "fast", 4: "fast"}),
        id="R3.16 R3.27 R3.28 each counts where it was put, until nothing can start",
    ),
    pytest.param(
        Row("default", elastic="a:slow", starts={0: "medium"}), id="R3.8 nobody is lowered for an elastic job that fits"
    ),
    pytest.param(
        Row("slow default", running="slow", starts={1: "medium"}), id="R3.8 it queues as fast, so slow is not its fate"
    ),
    pytest.param(Row("fast " * 7, starts=dict.fromkeys(range(5), "fast")), id="R3.28 all that can start do"),
    pytest.param(
        Row("fast fast", running="fast", limits="2 2 1", starts={0: "fast"}), id="R3.15 fast counts all that runs"
    ),
    pytest.param(
        Row("medium medium", running="slow", limits="5 2 1", starts={0: "medium"}), id="R3.14 medium counts slow too"
    ),
    # Other ladders. R3.1
    pytest.param(
        Row("fast default fast", limits="2", starts={0: "fast", 1: "fast"}), id="R3.1 one rung: a limit on all"
    ),
    pytest.param(
        Row("fast", limits="1", elastic="a:fast", sessions="s", halted="s", stopping=True),
        id="R3.1 one rung: nobody can be lowered",
    ),
    pytest.param(
        Row("slow", limits="3 1", elastic="a:slow", lowered={"a": "fast"}, starts={0: "slow"}), id="R3.1 two rungs"
    ),
    pytest.param(
        Row("slow fast", limits="3 1", running="slow", starts={1: "fast"}), id="R3.1 two rungs, nobody to lower"
    ),
    pytest.param(Row("default default", limits="3 1", starts={0: "slow", 1: "fast"}), id="R3.1 two rungs, elastic"),
    pytest.param(
        Row("r5", limits="9 7 5 3 1", slots=9, elastic="a:r5", lowered={"a": "r4"}, starts={0: "r5"}),
        id="R3.1 five rungs: one down",
    ),
    pytest.param(
        Row("r5", limits="9 7 5 3 1", slots=9, running="r4 r4", elastic="a:r5", lowered={"a": "r3"}, starts={0: "r5"}),
        id="R3.1 five rungs: the next is full",
    ),
    pytest.param(
        Row("r5", limits="9 7 5 3 1", slots=9, running="r2 r2 r2 r2 r2 r2", elastic="a:r5", lowered={"a": "r1"},
            starts={0: "r5"}),
        id="R3.1 five rungs: below the shortest that is full",
    ),
    pytest.param(
        Row("r5", limits="9 7 5 3 1", slots=9, running="r2 r2 r2 r2 r2", elastic="a:r5 b:r4", lowered={"a": "r1"},
            starts={0: "r5"}),
        id="R3.1 five rungs: at one go, with a gap between those that are full",
    ),
    pytest.param(
        Row("r5", limits="9 7 5 3 1", slots=9, running="r4 r4 r2 r2 r2", elastic="a:r5 b:r3", lowered={"a": "r1"},
            starts={0: "r5"}),
        id="R3.1 five rungs: below the shortest of two that are full",
    ),
    pytest.param(
        Row("r5 r1 r3", limits="9 7 2 2 1", slots=4, running="r3 r3", elastic="a:r2 b:r2", lowered={"b": "r1"}),
        id="R3.1 R3.33 five rungs: all that a full limit holds back need no slot",
    ),
    pytest.param(
        Row("r3", limits="9 7 5 3 1", slots=9, running="r3 r3 r4", elastic="a:r3 b:r4", lowered={"b": "r2"},
            starts={0: "r3"}),
        id="R3.1 five rungs: the longest that counts there",
    ),
    pytest.param(
        Row("r5 r4 r3 r2 r1", limits="9 7 5 3 1", slots=9, running="r5 r4 r4", starts={2: "r3", 3: "r2", 4: "r1"}),
        id="R3.1 five rungs: from the full one up all are ignored",
    ),
    pytest.param(
        Row("default " * 9, limits="9 7 5 3 1", slots=9,
            starts=dict(enumerate(("r5", "r4", "r4", "r3", "r3", "r2", "r2", "r1", "r1")))),
        id="R3.1 five rungs: elastic jobs fill them from the longest",
    ),
    pytest.param(
        Row("slow slow medium fast fast", limits="- 2 -", slots=4, starts={0: "slow", 1: "slow", 3: "fast", 4: "fast"}),
        id="a rung without a limit of its own",
    ),
    # More runs than is allowed: an operator has lowered a limit, or a worker has left.
    pytest.param(
        Row("slow", limits="5 3 2", running="slow", elastic="a:slow b:slow", lowered={"a": "medium", "b": "fast"},
            starts={0: "slow"}),
        id="over the limit: as many are lowered as it takes",
    ),
    pytest.param(Row("slow fast", running="slow slow", starts={1: "fast"}), id="over the limit, nobody to lower"),
    pytest.param(
        Row("fast", running="fast fast fast fast fast", elastic="a:medium", sessions="s", lowered={"a": "fast"},
            halted="s", stopping=True),
        id="more runs than there are slots",
    ),
]  # fmt: skip


def decide(row: Row) -> LadderDecision:
    ladder = a_ladder(row.limits, lower=row.lower)
    running_jobs = some_running_jobs(ladder, row.running, row.elastic, row.sessions, slots=row.slots, free=row.free)
    return cycle(ladder, running_jobs, row.queue.split())


def told(ladder: Ladder, decided: LadderDecision) -> tuple[dict[int, str], dict[str, str], str | None]:
    """Return the starts, the lowered jobs and the halted session of a decision, by names."""
    halted = [change.job_id for change in decided.amendments if change.rung is None]
    assert len(halted) <= 1
    return (
        {place: ladder.rungs[rung].name for place, rung in decided.starts},
        {change.job_id: change.rung for change in decided.amendments if change.rung is not None},
        halted[0] if halted else None,
    )


@pytest.mark.parametrize("row", ROWS)
def test_a_step_of_the_cycle(row: Row) -> None:
    decided = decide(row)
    assert told(a_ladder(row.limits), decided) == (row.starts, row.lowered, row.halted)
    assert decided.stopping == row.stopping


def test_a_job_that_was_passed_over_starts_as_soon_as_its_rung_has_room_before_its_like() -> None:
    # R3.29, R3.92: it stays first in the queue, and is judged anew in every cycle.
    ladder = a_ladder()
    queue = ["slow", "fast", "slow", "fast"]
    first = cycle(ladder, some_running_jobs(ladder, "slow fast"), queue)
    assert told(ladder, first)[0] == {1: "fast", 3: "fast"}
    ended = cycle(ladder, some_running_jobs(ladder, "fast fast fast"), ["slow", "slow"])
    assert told(ladder, ended)[0] == {0: "slow"}


def test_an_elastic_job_that_took_the_last_long_place_yields_it_once_the_cycle_is_run_again() -> None:
    # R3.10, R3.18
    ladder = a_ladder()
    starts, lowered = settle(ladder, some_running_jobs(ladder), ["default", "slow"])
    assert starts == {0: "slow", 1: "slow"}
    assert lowered == {"started-0": "medium"}


# ---------------------------------------------------------------------- limits


@pytest.mark.parametrize(
    "limit, slots, most",
    [
        ("4", 100, 4),
        ("4", 1, 4),
        ("60%", 10, 6),
        ("60%", 5, 3),
        ("60%", 3, 1),
        ("60%", 1, 1),
        ("100%", 7, 7),
        ("12.5%", 16, 2),
        ("12.5%", 15, 1),
        pytest.param("1%", 3, 1, id="R3.13 never less than one"),
        pytest.param("100%", 0, 1, id="R3.13 not even without workers"),
        ("-", 5, None),
    ],
)
def test_a_limit_is_a_number_or_a_part_of_all_slots(limit: str, slots: int, most: int | None) -> None:
    assert a_ladder(limit).rungs[0].most(slots) == most


@pytest.mark.parametrize(
    "limits, slots, slow, medium, fast",
    [
        pytest.param("100% 50% 25%", 8, 2, 4, 8, id="R3.13 R3.14 R3.15 parts of eight"),
        pytest.param("100% 50% 25%", 4, 1, 2, 4, id="four workers have left"),
        pytest.param("100% 50% 25%", 12, 3, 6, 12, id="four have come"),
        pytest.param("8 4 2", 12, 2, 4, 8, id="numbers stay"),
        pytest.param("100% 4 25%", 12, 3, 4, 12, id="both"),
        pytest.param("100% 50% 3", 4, 2, 2, 4, id="limits that cross: the smaller of those it counts against"),
    ],
)
def test_limits_follow_the_slots(limits: str, slots: int, slow: int, medium: int, fast: int) -> None:
    ladder = a_ladder(limits)
    running_jobs = some_running_jobs(ladder, slots=slots)
    for name, most in (("slow", slow), ("medium", medium), ("fast", fast)):
        assert room(ladder, running_jobs.counts, slots, place_of(ladder, name)) == most
        started = cycle(ladder, running_jobs, [name] * 20).starts
        assert [place for place, _ in started] == list(range(most))


@pytest.mark.parametrize(
    "running, full, left, elastic",
    [
        ("", [None, None, None], [5, 3, 1], "slow"),
        ("fast", [None, None, None], [4, 3, 1], "slow"),
        ("slow", [None, None, 2], [4, 2, 0], "medium"),
        ("medium medium", [None, None, None], [3, 1, 1], "slow"),
        ("medium medium medium", [None, 1, 1], [2, 0, 0], "fast"),
        ("slow medium medium", [None, 1, 2], [2, 0, 0], "fast"),
        ("fast fast fast fast fast", [0, 0, 0], [0, 0, 0], None),
        ("slow slow", [None, None, 2], [3, 1, 0], "medium"),
    ],
)
def test_what_fits(running: str, full: list[int | None], left: list[int], elastic: str | None) -> None:
    # R3.13 to R3.16: limits 5, 3 and 1.
    ladder = a_ladder()
    counts = some_running_jobs(ladder, running).counts
    assert [full_limit(ladder, counts, 5, rung) for rung in range(3)] == full
    assert [room(ladder, counts, 5, rung) for rung in range(3)] == left
    best = longest(ladder, counts, 5)
    assert (None if best is None else ladder.rungs[best].name) == elastic


def test_without_limits_everything_fits() -> None:
    ladder = a_ladder("- - -")
    assert full_limit(ladder, [9, 9, 9], 1, 2) is None
    assert room(ladder, [9, 9, 9], 1, 2) is None
    assert longest(ladder, [9, 9, 9], 1) == 2


def test_a_rung_is_found_by_its_name_and_an_elastic_job_is_on_the_shortest() -> None:
    # R3.3, R3.8
    ladder = a_ladder()
    assert [rung_index(ladder, name) for name in ("fast", "medium", "slow", ELASTIC)] == [0, 1, 2, 0]
    assert [rung_index(ladder, name) for name in ("other", None)] == [None, None]
    assert rung_index(Ladder(), ELASTIC) is None


def test_a_job_may_run_as_long_as_the_rung_it_was_assigned() -> None:
    # R3.2, R3.7
    ladder = a_ladder()
    assert [budget_of(ladder, name) for name in ("fast", "medium", "slow")] == [3_000, 6_000, 9_000]
    assert [budget_of(ladder, name) for name in ("other", ELASTIC, None)] == [None, None, None]


# ---------------------------------------------------------------------- whom room is taken from


@pytest.mark.parametrize(
    "victim, chance, chosen",
    [
        pytest.param("least_elapsed", 0.0, "c", id="R3.32 the youngest loses least"),
        pytest.param("least_elapsed", 0.99, "c", id="R3.32 whatever the chance"),
        pytest.param("random", 0.0, "c", id="R3.32 by chance: the first"),
        pytest.param("random", 0.34, "b", id="R3.32 by chance: the second"),
        pytest.param("random", 0.66, "b", id="R3.32 by chance: still the second"),
        pytest.param("random", 0.999999, "a", id="R3.32 by chance: the last"),
    ],
)
def test_the_policy_says_who_is_lowered_or_halted(victim: str, chance: float, chosen: str) -> None:
    ladder = a_ladder("5 5 3", victim=victim)
    running_jobs = some_running_jobs(ladder, "", "a:slow b:slow c:slow")
    assert cycle(ladder, running_jobs, ["slow"], chance=chance).amendments == (Preemption(JobId(chosen), "medium"),)
    assert admit(ladder, running_jobs._replace(free=0), chance=chance) == (
        False,
        (Preemption(JobId(chosen), "medium"),),
    )
    running_jobs = some_running_jobs(ladder, "fast fast", sessions="a b c")
    assert cycle(ladder, running_jobs, ["fast"], chance=chance).amendments == (Preemption(JobId(chosen), None),)


def test_of_those_who_began_together_the_first_by_id_is_chosen() -> None:
    # R3.32
    ladder = a_ladder("5 5 3")
    together = tuple(ElasticJob(JobId(name), 2, 7) for name in "bac")
    assert cycle(ladder, RunningJobs(5, 2, (0, 0, 3), together), ["slow"]).amendments == (
        Preemption(JobId("a"), "medium"),
    )
    sessions = tuple(RunningSession(JobId(name), 7) for name in "bac")
    assert cycle(ladder, RunningJobs(3, 0, (0, 0, 0), (), sessions), ["slow"]).amendments == (
        Preemption(JobId("a"), None),
    )


def test_chance_picks_among_those_on_the_longest_rung_only() -> None:
    # R3.21
    ladder = a_ladder("9 3 2", victim="random")
    running_jobs = some_running_jobs(ladder, "medium", "a:slow b:medium", slots=9)
    for chance in (0.0, 0.5, 0.99):
        assert cycle(ladder, running_jobs, ["medium"], chance=chance).amendments == (Preemption(JobId("a"), "fast"),)


@pytest.mark.parametrize(
    "limits, running, elastic, slots, admitted, lowered",
    [
        pytest.param("5 3 1", "fast fast", "a:slow", 5, True, {}, id="R3.30 a slot is free: admitted"),
        pytest.param("5 3 1", "slow medium medium fast", "", 5, True, {}, id="R3.30 only the shortest limit counts"),
        pytest.param("5 3 1", "fast fast", "a:slow", 3, False, {"a": "medium"}, id="R3.31 denied: slow to medium"),
        pytest.param("5 3 2", "fast", "a:slow b:slow", 3, False, {"b": "medium"}, id="R3.31 one of them"),
        pytest.param("5 3 1", "fast", "a:slow b:medium", 3, False, {"a": "medium"}, id="R3.31 slow before medium"),
        pytest.param("5 3 1", "fast fast", "a:medium", 3, False, {"a": "fast"}, id="R3.31 else medium to fast"),
        pytest.param("5 3 1", "fast fast", "a:fast", 3, False, {}, id="R3.31 nobody can be lowered"),
        pytest.param("3 3 1", "fast fast", "a:slow", 9, False, {"a": "medium"}, id="R3.15 R3.30 the limit on all"),
        pytest.param("9 7 5 3 1", "r1", "a:r4 b:r5", 3, False, {"b": "r4"}, id="R3.31 five rungs: one down"),
        pytest.param("2", "fast", "a:fast", 2, False, {}, id="R3.31 one rung"),
    ],
)
@pytest.mark.parametrize("lower", ["needed", "all"])
def test_a_session_is_admitted_or_denied_at_once(
    limits: str, running: str, elastic: str, slots: int, admitted: bool, lowered: dict[str, str], lower: str
) -> None:
    ladder = a_ladder(limits, lower=lower)
    amendments = tuple(Preemption(JobId(job_id), rung) for job_id, rung in lowered.items())
    assert admit(ladder, some_running_jobs(ladder, running, elastic, slots=slots)) == (admitted, amendments)


def test_without_a_ladder_a_session_needs_only_a_slot() -> None:
    # R3.30
    assert admit(Ladder(), RunningJobs(2, 1, ())) == (True, ())
    assert admit(Ladder(), RunningJobs(2, 0, ())) == (False, ())


def test_no_session_is_halted_for_another() -> None:
    # R3.12, R3.30
    ladder = a_ladder()
    assert admit(ladder, some_running_jobs(ladder, "fast fast fast", sessions="s t")) == (False, ())


# ---------------------------------------------------------------------- whatever happens


@st.composite
def ladders(draw: st.DrawFn) -> Ladder:
    """Draw a ladder whose limits fall from rung to rung. Some are percentages of the slots, some are absent."""
    count = draw(st.integers(1, 5))
    kind = draw(st.sampled_from(["number", "part", "both"]))
    limits = []
    for limit in sorted(draw(st.lists(st.integers(1, 8), min_size=count, max_size=count)), reverse=True):
        part = kind == "part" or (kind == "both" and draw(st.booleans()))
        limits.append(draw(st.sampled_from([f"{limit * 12}%" if part else str(limit)] * 5 + [NO_LIMIT])))
    return a_ladder(
        " ".join(limits),
        victim=draw(st.sampled_from(["least_elapsed", "random"])),
        lower=draw(st.sampled_from(["needed", "all"])),
    )


@st.composite
def running_job_counts(draw: st.DrawFn, ladder: Ladder, *, within: bool = False) -> RunningJobs:
    """Draw running jobs: any, or only those within the limits."""
    slots = draw(st.integers(1, 8))
    counts = [0] * len(ladder.rungs)
    elastic = []
    for number in range(draw(st.integers(0, slots))):
        rung = draw(st.integers(0, len(counts) - 1))
        if within and full_limit(ladder, counts, slots, rung) is not None:
            continue
        counts[rung] += 1
        if draw(st.booleans()):
            elastic.append(ElasticJob(JobId(f"e{number}"), rung, draw(st.integers(0, 3))))
    sessions = draw(
        st.lists(
            st.builds(RunningSession, st.just(JobId("")), st.integers(0, 3), st.sampled_from([False, False, True])),
            max_size=max(0, slots - sum(counts)),
        )
    )
    sessions = [session._replace(job_id=JobId(f"s{number}")) for number, session in enumerate(sessions)]
    free = slots - sum(counts) - len(sessions)
    return RunningJobs(slots, max(0, free), tuple(counts), tuple(elastic), tuple(sessions))


@st.composite
def scenes(draw: st.DrawFn, *, within: bool = False) -> tuple[Ladder, RunningJobs, list[str], float]:
    ladder = draw(ladders())
    queue = draw(st.lists(st.sampled_from([*(rung.name for rung in ladder.rungs), ELASTIC]), max_size=8))
    return ladder, draw(running_job_counts(ladder, within=within)), queue, draw(st.floats(0, 1, exclude_max=True))


def carry_out(ladder: Ladder, running_jobs: RunningJobs, queue: Sequence[str], decided: LadderDecision) -> RunningJobs:
    """Apply a decision: lower and start jobs, and mark halted sessions as stopping."""
    counts = list(running_jobs.counts)
    elastic = {job.job_id: job for job in running_jobs.elastic}
    sessions = {session.job_id: session for session in running_jobs.sessions}
    for change in decided.amendments:
        if change.rung is None:
            sessions[change.job_id] = sessions[change.job_id]._replace(stopping=True)
            continue
        job = elastic[change.job_id]
        counts[job.rung] -= 1
        elastic[change.job_id] = job._replace(rung=place_of(ladder, change.rung))
        counts[place_of(ladder, change.rung)] += 1
    for place, rung in decided.starts:
        counts[rung] += 1
        if queue[place] == ELASTIC:
            elastic[JobId(f"started-{place}")] = ElasticJob(JobId(f"started-{place}"), rung, 9_000 + place)
    free = running_jobs.free - len(decided.starts)
    return RunningJobs(running_jobs.slots, free, tuple(counts), tuple(elastic.values()), tuple(sessions.values()))


def settle(ladder: Ladder, running_jobs: RunningJobs, queue: Sequence[str]) -> tuple[dict[int, str], dict[str, str]]:
    """Repeat the cycle until it changes nothing. Return the rungs of started jobs and of lowered jobs."""
    starts: dict[int, str] = {}
    lowered: dict[str, str] = {}
    places = list(range(len(queue)))
    for _ in range(100):
        waiting = [queue[place] for place in places]
        decided = cycle(ladder, running_jobs, waiting)
        if not decided.starts and not decided.amendments:
            return starts, lowered
        begun, fewer, _ = told(ladder, decided)
        starts |= {places[at]: rung for at, rung in begun.items()}
        lowered |= fewer
        running_jobs = carry_out(ladder, running_jobs, waiting, decided)
        places = [place for at, place in enumerate(places) if at not in begun]
    raise AssertionError("the cycle never comes to rest")


def nested(counts: Sequence[int]) -> list[int]:
    return [sum(counts[index:]) for index in range(len(counts))]


@given(scenes())
def test_no_start_takes_a_limit_past_its_number(scene: tuple[Ladder, RunningJobs, list[str], float]) -> None:
    # R3.13 to R3.16, R3.26
    ladder, running_jobs, queue, chance = scene
    decided = cycle(ladder, running_jobs, queue, chance=chance)
    after = carry_out(ladder, running_jobs, queue, decided)
    assert len(decided.starts) <= running_jobs.free
    for rung, before, then in zip(ladder.rungs, nested(running_jobs.counts), nested(after.counts), strict=True):
        most = rung.most(running_jobs.slots)
        assert most is None or then <= max(most, before)


@given(scenes())
def test_what_still_waits_could_not_have_started(scene: tuple[Ladder, RunningJobs, list[str], float]) -> None:
    # R3.20, R3.22, R3.28: work conservation, and room is taken from everybody it can be taken from.
    ladder, running_jobs, queue, chance = scene
    decided = cycle(ladder, running_jobs, queue, chance=chance)
    after = carry_out(ladder, running_jobs, queue, decided)
    began = {place for place, _ in decided.starts}
    running = {job.job_id for job in running_jobs.elastic}
    no_slot = after.free <= 0 or full_limit(ladder, after.counts, after.slots, 0) is not None
    for place, name in enumerate(queue):
        if place in began or no_slot:
            continue
        full = full_limit(ladder, after.counts, after.slots, place_of(ladder, name))
        assert full is not None
        assert not [job for job in after.elastic if job.job_id in running and job.rung >= full]


@given(scenes())
def test_jobs_of_one_rung_start_in_the_order_they_came(scene: tuple[Ladder, RunningJobs, list[str], float]) -> None:
    # R3.92
    ladder, running_jobs, queue, chance = scene
    places = [place for place, _ in cycle(ladder, running_jobs, queue, chance=chance).starts]
    assert places == sorted(set(places))
    for name in set(queue):
        waited = [place for place, other in enumerate(queue) if other == name]
        began = [place for place in places if queue[place] == name]
        assert began == waited[: len(began)]


@given(scenes())
def test_a_job_starts_on_its_own_rung_and_an_elastic_one_on_the_longest_that_fits(
    scene: tuple[Ladder, RunningJobs, list[str], float],
) -> None:
    # R3.16, R3.27
    ladder, running_jobs, queue, chance = scene
    for place, rung in cycle(ladder, running_jobs, queue, chance=chance).starts:
        assert queue[place] == ELASTIC or rung == place_of(ladder, queue[place])
    first = cycle(ladder, running_jobs, [ELASTIC], chance=chance)
    if first.starts:
        assert not first.amendments
        assert first.starts == ((0, longest(ladder, running_jobs.counts, running_jobs.slots)),)


@given(scenes())
def test_jobs_are_only_ever_lowered_and_one_session_halted(scene: tuple[Ladder, RunningJobs, list[str], float]) -> None:
    # R3.25, R3.34, R3.88
    ladder, running_jobs, queue, chance = scene
    decided = cycle(ladder, running_jobs, queue, chance=chance)
    began_at = {job.job_id: job.rung for job in running_jobs.elastic}
    changed = [change.job_id for change in decided.amendments]
    assert len(changed) == len(set(changed))
    for change in decided.amendments:
        if change.rung is not None:
            assert place_of(ladder, change.rung) < began_at[change.job_id]
    halted = [change.job_id for change in decided.amendments if change.rung is None]
    stopping = [session.job_id for session in running_jobs.sessions if session.stopping]
    assert len(halted) <= (0 if stopping else 1)
    assert set(halted) <= {session.job_id for session in running_jobs.sessions}
    if decided.stopping:
        assert halted or stopping
    after = carry_out(ladder, running_jobs, queue, decided)
    if halted:
        assert decided.stopping
        assert after.free <= 0 or full_limit(ladder, after.counts, after.slots, 0) is not None
    if not queue:
        assert decided == LadderDecision()


@given(scenes())
def test_nobody_is_lowered_or_halted_while_all_that_waits_fits(
    scene: tuple[Ladder, RunningJobs, list[str], float],
) -> None:
    # R3.9, R3.12
    ladder, running_jobs, queue, chance = scene
    counts = list(running_jobs.counts)
    fits = len(queue) <= running_jobs.free
    for name in queue:
        rung = place_of(ladder, name)
        fits = fits and full_limit(ladder, counts, running_jobs.slots, rung) is None
        best = longest(ladder, counts, running_jobs.slots) if name == ELASTIC else rung
        counts[best or 0] += 1
    if fits:
        decided = cycle(ladder, running_jobs, queue, chance=chance)
        assert not decided.amendments
        assert len(decided.starts) == len(queue)


@given(scenes(within=True))
def test_a_cycle_that_is_run_again_with_nothing_new_changes_nothing(
    scene: tuple[Ladder, RunningJobs, list[str], float],
) -> None:
    # R3.28, R3.33: workers run it often, and it must not lower one more job each time.
    ladder, running_jobs, queue, chance = scene
    decided = cycle(ladder, running_jobs, queue, chance=chance)
    if not decided.starts:
        again = cycle(ladder, carry_out(ladder, running_jobs, queue, decided), queue, chance=chance)
        assert (again.starts, again.amendments) == ((), ())


@given(scenes(within=True))
def test_the_cycle_comes_to_rest_and_lowers_at_most_as_many_as_wait(
    scene: tuple[Ladder, RunningJobs, list[str], float],
) -> None:
    # R3.28, R3.33
    ladder, running_jobs, queue, _ = scene
    ladder = replace(ladder, lower="needed")
    _, lowered = settle(ladder, running_jobs, queue)
    # Step 1 or 2 may lower one for each job that it lets start, and step 3 one for each that waits.
    assert len(lowered) <= 2 * len(queue)


@given(scenes(), st.randoms(use_true_random=False))
def test_the_same_floor_gives_the_same_decision_in_whatever_order_it_is_told(
    scene: tuple[Ladder, RunningJobs, list[str], float], shuffled: Random
) -> None:
    ladder, running_jobs, queue, chance = scene
    elastic, sessions = list(running_jobs.elastic), list(running_jobs.sessions)
    shuffled.shuffle(elastic)
    shuffled.shuffle(sessions)
    mixed = running_jobs._replace(elastic=tuple(elastic), sessions=tuple(sessions))
    assert cycle(ladder, running_jobs, queue, chance=chance) == cycle(ladder, mixed, queue, chance=chance)
    assert admit(ladder, running_jobs, chance=chance) == admit(ladder, mixed, chance=chance)


@given(scenes())
def test_a_job_counts_on_its_rung_and_on_every_shorter_one(scene: tuple[Ladder, RunningJobs, list[str], float]) -> None:
    # R3.14, R3.15: limits are nested. The simplest count there is says the same.
    ladder, running_jobs, _, _ = scene
    counts, slots = running_jobs.counts, running_jobs.slots
    for rung in range(len(counts)):
        reached = []
        for index in range(rung + 1):
            most = ladder.rungs[index].most(slots)
            if most is not None and sum(counts[index:]) >= most:
                reached.append(index)
        assert full_limit(ladder, counts, slots, rung) == max(reached, default=None)
        if rung:  # What is full for a shorter job is full for a longer one.
            shorter = full_limit(ladder, counts, slots, rung - 1)
            assert shorter is None or full_limit(ladder, counts, slots, rung) is not None
        left = room(ladder, counts, slots, rung)
        more = list(counts)
        started = 0
        while full_limit(ladder, more, slots, rung) is None and started < 20:
            more[rung] += 1
            started += 1
        assert left == (None if started == 20 else started)
    fitting = [rung for rung in range(len(counts)) if full_limit(ladder, counts, slots, rung) is None]
    assert longest(ladder, counts, slots) == max(fitting, default=None)


# ---------------------------------------------------------------------- word for word


def written_cycle(limits: tuple[int, int, int], running_jobs: RunningJobs, queue: Sequence[str]) -> LadderDecision:
    """Decide by the rules as they were first written down for fast, medium and slow, a step for each sentence.

    Two rules are later additions: the slot of a halted session is not free at once, and a job that has just started is
    not lowered in the same cycle.
    """
    fast_limit, medium_limit, slow_limit = limits
    duration = {job.job_id: job.rung for job in running_jobs.elastic}
    age = {job.job_id: (-job.started_at, job.job_id) for job in running_jobs.elastic}
    fast, medium, slow = running_jobs.counts
    free = running_jobs.free
    changed: dict[JobId, str | None] = {}
    starts: list[tuple[int, int]] = []
    waiting = list(enumerate(queue))

    def downgrade(of: int, to: int) -> bool:
        nonlocal fast, medium, slow
        able = sorted((job_id for job_id, rung in duration.items() if rung == of), key=age.__getitem__)
        if not able:
            return False
        duration[able[0]] = to
        changed[able[0]] = ("fast", "medium")[to]
        slow -= of == 2
        medium += (to == 1) - (of == 1)
        fast += to == 0
        return True

    while True:
        unignored = list(waiting)
        if unignored and unignored[0][1] == "slow" and slow >= slow_limit:
            downgrade(2, 0 if medium + slow >= medium_limit else 1)
            if slow >= slow_limit:
                unignored = [item for item in unignored if item[1] != "slow"]
        if unignored and unignored[0][1] in ("medium", "slow") and medium + slow >= medium_limit:
            if not downgrade(2, 0):
                downgrade(1, 0)
            if medium + slow >= medium_limit:
                unignored = [item for item in unignored if item[1] not in ("medium", "slow")]
        if not unignored:
            return LadderDecision(tuple(starts), tuple(Preemption(*change) for change in changed.items()))
        if free <= 0 or fast + medium + slow >= fast_limit:
            while downgrade(2, 0) or downgrade(1, 0):
                pass
            stopping = any(session.stopping for session in running_jobs.sessions)
            if running_jobs.sessions and not stopping:
                halted = min(running_jobs.sessions, key=lambda session: (-session.started_at, session.job_id))
                changed[halted.job_id] = None
                stopping = True
            return LadderDecision(tuple(starts), tuple(Preemption(*change) for change in changed.items()), stopping)
        place, name = unignored[0]
        rung = {"fast": 0, "medium": 1, "slow": 2}.get(name)
        if rung is None:
            rung = 0 if medium + slow >= medium_limit else 1 if slow >= slow_limit else 2
        fast, medium, slow = fast + (rung == 0), medium + (rung == 1), slow + (rung == 2)
        free -= 1
        starts.append((place, rung))
        waiting.remove((place, name))


@given(st.data())
def test_with_three_rungs_the_cycle_is_the_one_that_was_written_down(data: st.DataObject) -> None:
    # R3.18 to R3.28
    slow, medium, fast = sorted(data.draw(st.tuples(*[st.integers(1, 6)] * 3)))
    ladder = a_ladder(f"{fast} {medium} {slow}", lower="all")
    running_jobs = data.draw(running_job_counts(ladder, within=True))
    queue = data.draw(st.lists(st.sampled_from(["fast", "medium", "slow", ELASTIC]), max_size=8))
    assert cycle(ladder, running_jobs, queue) == written_cycle((fast, medium, slow), running_jobs, queue)


@pytest.mark.parametrize("limits", ["5 3 1", "- 3 2", "- 50% -", "- - -"])
@pytest.mark.parametrize("name", ["fast", "medium", "slow", ELASTIC, INTERACTIVE, "unknown", None])
@pytest.mark.parametrize("counts", [(0, 0, 0), (1, 1, 1), (4, 3, 0)])
def test_room_says_how_many_jobs_fit_one_after_another(
    limits: str, name: str | None, counts: tuple[int, ...]
) -> None:  # fmt: skip
    ladder = a_ladder(limits)
    running = RunningJobs(12, 12 - sum(counts), counts)
    most, assigned = room_on_rung(ladder, running, name)
    started = 0
    while started < 20 and fit_rung(ladder, add_starts(ladder, running, assigned, started), name) == (True, assigned):
        started += 1
    assert started == (20 if most is None else most)
