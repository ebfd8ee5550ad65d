"""Sessions in the policy: whether there is a slot for one, and which gives way."""

from __future__ import annotations

from typing import Any

import pytest

from headway.core.diagnostics import Executing, Survey
from headway.core.job import ClassKey, JobId
from headway.core.policy.document import BUILT_IN, INTERACTIVE, Ladder, Policy, Reserve, Rung
from headway.core.policy.enforced import Rules
from headway.core.policy.ladder import Amendment, Elastic, Floor
from headway.core.policy.sessions import Placed, admit_session, crowded_out
from headway.core.snapshot import ClassView, Snapshot
from headway.core.worker import Worker, WorkerState

LADDER = Ladder((Rung("fast", 3_000), Rung("slow", 30_000)))


def a_worker(name: str = "w1", *, slots: int = 2, reserved: int = 0, offers: str = "task:shell", **more: Any) -> Worker:
    given = tuple(offers.split())
    return Worker(worker_id=name, host="h", pid=1, slots=slots, reserved=reserved, offers=given, version="1", **more)


def a_survey(
    *workers: Worker, running: str = "", waiting: dict[ClassKey, int] | None = None, floor: Floor | None = None
) -> Survey:
    """``running``: where jobs run, and in which lane if not in medium, as in "w1 w1 w2:high"."""
    placed = [one.partition(":") for one in running.split()]
    executing = tuple(Executing("t", lane or "medium", worker_id, 0, ()) for worker_id, _, lane in placed)
    views = tuple(ClassView(key, count, 0) for key, count in (waiting or {}).items())
    return Survey(Snapshot(0, views, floor=floor), workers, executing, Rules())


def admitted(survey: Survey, *, lane: str = "medium", needs: tuple[str, ...] = (), policy: Policy = BUILT_IN) -> bool:
    return admit_session(survey, policy, task="shell", lane=lane, needs=needs).admitted


@pytest.mark.parametrize(
    "survey, lane, expected",
    [
        (a_survey(a_worker()), "medium", True),
        (a_survey(a_worker(), running="w1"), "medium", True),
        (a_survey(a_worker(), running="w1 w1"), "medium", False),
        (a_survey(), "medium", False),
        (a_survey(a_worker(offers="task:other")), "medium", False),
        (a_survey(a_worker(offers="task:*")), "medium", True),
        (a_survey(a_worker(state=WorkerState.DRAINING)), "medium", False),
        (a_survey(a_worker(state=WorkerState.DEAD)), "medium", False),
        (a_survey(a_worker(reserved=1), running="w1"), "medium", False),
        (a_survey(a_worker(reserved=1), running="w1"), "high", True),
        (a_survey(a_worker(reserved=1), running="w1:high"), "medium", True),
        (a_survey(a_worker(), a_worker("w2", offers="task:other"), running="w1 w1"), "medium", False),
        (a_survey(a_worker(), a_worker("w2"), running="w1 w1"), "medium", True),
    ],
)
def test_a_session_begins_where_a_worker_has_a_slot_for_it(survey: Survey, lane: str, expected: bool) -> None:  # R3.30
    assert admitted(survey, lane=lane) is expected


def test_what_it_needs_counts() -> None:
    assert not admitted(a_survey(a_worker()), needs=("gpu",))
    assert admitted(a_survey(a_worker(offers="gpu task:shell")), needs=("gpu",))


def test_a_denial_lowers_one_elastic_job_by_a_rung() -> None:  # R3.31
    elastic = (Elastic(JobId("a"), 1, 5), Elastic(JobId("b"), 1, 9))
    survey = a_survey(a_worker(), running="w1 w1", floor=Floor(2, 0, (0, 2), elastic))
    verdict = admit_session(survey, Policy(ladder=LADDER), task="shell", lane="medium", needs=())
    assert (verdict.admitted, verdict.amendments) == (False, (Amendment(JobId("b"), "fast"),))
    assert verdict.reason


def test_it_lowers_nobody_if_no_worker_knows_the_task() -> None:
    floor = Floor(2, 0, (0, 1), (Elastic(JobId("a"), 1, 5),))
    survey = a_survey(a_worker(offers="task:other"), running="w1", floor=floor)
    verdict = admit_session(survey, Policy(ladder=LADDER), task="shell", lane="medium", needs=())
    assert (verdict.admitted, verdict.amendments) == (False, ())


def test_the_shortest_limit_denies_it() -> None:  # R3.15
    policy = Policy(ladder=Ladder((Rung("fast", 3_000, limit=1),)))
    assert not admitted(a_survey(a_worker(), running="w1", floor=Floor(2, 1, (1,))), policy=policy)


# ---------------------------------------------------------------------- who gives way

MEDIUM, HIGH = ClassKey("medium"), ClassKey("high")
SHELL = Placed(JobId("s"), "w1", "medium", 5)


@pytest.mark.parametrize(
    "survey, session, expected",
    [
        (a_survey(a_worker(slots=1), running="w1", waiting={MEDIUM: 1}), SHELL, "s"),
        (a_survey(a_worker(slots=1), running="w1", waiting={MEDIUM: 0}), SHELL, None),
        (a_survey(a_worker(slots=2), running="w1", waiting={MEDIUM: 1}), SHELL, None),
        (a_survey(a_worker(slots=2, reserved=1), running="w1", waiting={MEDIUM: 1}), SHELL, "s"),
        (a_survey(a_worker(slots=2, reserved=1), running="w1", waiting={HIGH: 1}), SHELL, None),
        (a_survey(a_worker(slots=2, reserved=1), running="w1 w1:high", waiting={HIGH: 1}), SHELL, "s"),
        # A session of a lane that may use the reserve holds no slot that a medium job could have.
        (
            a_survey(a_worker(slots=2, reserved=1), running="w1 w1:high", waiting={MEDIUM: 1}),
            SHELL._replace(lane="high"),
            None,
        ),
        (a_survey(a_worker(slots=1), running="w1", waiting={ClassKey("medium", ("gpu",)): 1}), SHELL, None),
        (a_survey(a_worker(slots=1), running="w1", waiting={ClassKey("medium", (), INTERACTIVE): 1}), SHELL, None),
        (a_survey(a_worker(slots=1), running="w1", waiting={MEDIUM: 1}), SHELL._replace(stopping=True), None),
        (a_survey(a_worker(slots=1), a_worker("w2"), running="w1", waiting={MEDIUM: 1}), SHELL, None),
        (a_survey(a_worker(slots=1), running="w1", waiting={MEDIUM: 1}), SHELL._replace(worker_id="w9"), None),
    ],
)
def test_a_session_gives_way_to_a_job_that_could_have_its_slot(
    survey: Survey, session: Placed, expected: str | None
) -> None:  # R3.12, R3.25
    assert crowded_out(survey, BUILT_IN, [session]) == expected


def test_the_youngest_gives_way_first_or_any_by_chance() -> None:  # R3.32
    survey = a_survey(a_worker(slots=2), running="w1 w1", waiting={MEDIUM: 1})
    sessions = [SHELL, SHELL._replace(job_id=JobId("t"), started_at=9)]
    assert crowded_out(survey, BUILT_IN, sessions) == "t"
    by_chance = Policy(ladder=Ladder(victim="random"))
    assert crowded_out(survey, by_chance, sessions, chance=0.9) == "s"


def test_one_that_is_stopping_is_waited_for() -> None:
    survey = a_survey(a_worker(slots=2), running="w1 w1", waiting={MEDIUM: 5})
    assert crowded_out(survey, BUILT_IN, [SHELL, Placed(JobId("t"), "w1", "medium", 9, stopping=True)]) is None


def test_where_slots_must_be_left_free_every_session_is_in_the_way() -> None:
    policy = Policy(reserve=Reserve(rule="leave_free"))
    survey = a_survey(a_worker(slots=2, reserved=1), running="w1:high", waiting={MEDIUM: 1})
    assert crowded_out(survey, policy, [SHELL._replace(lane="high")]) == "s"
