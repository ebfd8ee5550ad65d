"""Sessions in the policy: when one gets a slot, and which one must end for waiting jobs."""

from __future__ import annotations

from typing import Any

import pytest

from headway.core.diagnostics import QueueDiagnostics, RunningJob
from headway.core.job import ClassKey, JobId
from headway.core.policy.document import BUILT_IN, INTERACTIVE, Ladder, Policy, Reserve, Rung
from headway.core.policy.enforced import EnforcedRules
from headway.core.policy.ladder import ElasticJob, Preemption, RunningJobs
from headway.core.policy.sessions import PlacedSession, admit_session, crowded_out
from headway.core.snapshot import ClassView, Snapshot
from headway.core.worker import WorkerInfo, WorkerState

LADDER = Ladder((Rung("fast", 3_000), Rung("slow", 30_000)))


def a_worker(
    name: str = "w1", *, slots: int = 2, reserved: int = 0, offers: str = "task:shell", **more: Any
) -> WorkerInfo:
    given = tuple(offers.split())
    return WorkerInfo(
        worker_id=name, host="h", pid=1, slots=slots, reserved=reserved, offers=given, version="1", **more
    )


def a_survey(
    *workers: WorkerInfo,
    running: str = "",
    waiting: dict[ClassKey, int] | None = None,
    running_jobs: RunningJobs | None = None,
) -> QueueDiagnostics:
    """Return diagnostics. ``running``: workers of running jobs, with lanes other than medium, as in "w1 w1 w2:high"."""
    placed = [one.partition(":") for one in running.split()]
    executing = tuple(RunningJob("t", lane or "medium", worker_id, 0, ()) for worker_id, _, lane in placed)
    views = tuple(ClassView(key, count, 0) for key, count in (waiting or {}).items())
    return QueueDiagnostics(Snapshot(0, views, running_jobs=running_jobs), workers, executing, EnforcedRules())


def admitted(
    queue: QueueDiagnostics, *, lane: str = "medium", needs: tuple[str, ...] = (), policy: Policy = BUILT_IN
) -> bool:
    return admit_session(queue, policy, task="shell", lane=lane, needs=needs).admitted


@pytest.mark.parametrize(
    "queue, lane, expected",
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
def test_a_session_begins_where_a_worker_has_a_slot_for_it(
    queue: QueueDiagnostics, lane: str, expected: bool
) -> None:  # R3.30
    assert admitted(queue, lane=lane) is expected


def test_what_it_needs_counts() -> None:
    assert not admitted(a_survey(a_worker()), needs=("gpu",))
    assert admitted(a_survey(a_worker(offers="gpu task:shell")), needs=("gpu",))


def test_a_denial_lowers_one_elastic_job_by_a_rung() -> None:  # R3.31
    elastic = (ElasticJob(JobId("a"), 1, 5), ElasticJob(JobId("b"), 1, 9))
    queue = a_survey(a_worker(), running="w1 w1", running_jobs=RunningJobs(2, 0, (0, 2), elastic))
    verdict = admit_session(queue, Policy(ladder=LADDER), task="shell", lane="medium", needs=())
    assert (verdict.admitted, verdict.amendments) == (False, (Preemption(JobId("b"), "fast"),))
    assert verdict.reason


def test_it_lowers_nobody_if_no_worker_knows_the_task() -> None:
    running_jobs = RunningJobs(2, 0, (0, 1), (ElasticJob(JobId("a"), 1, 5),))
    queue = a_survey(a_worker(offers="task:other"), running="w1", running_jobs=running_jobs)
    verdict = admit_session(queue, Policy(ladder=LADDER), task="shell", lane="medium", needs=())
    assert (verdict.admitted, verdict.amendments) == (False, ())


def test_the_shortest_limit_denies_it() -> None:  # R3.15
    policy = Policy(ladder=Ladder((Rung("fast", 3_000, limit=1),)))
    assert not admitted(a_survey(a_worker(), running="w1", running_jobs=RunningJobs(2, 1, (1,))), policy=policy)


# ---------------------------------------------------------------------- who gives way

MEDIUM, HIGH = ClassKey("medium"), ClassKey("high")
SHELL = PlacedSession(JobId("s"), "w1", "medium", 5)


@pytest.mark.parametrize(
    "queue, session, expected",
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
    queue: QueueDiagnostics, session: PlacedSession, expected: str | None
) -> None:  # R3.12, R3.25
    assert crowded_out(queue, BUILT_IN, [session]) == expected


def test_the_youngest_gives_way_first_or_any_by_chance() -> None:  # R3.32
    queue = a_survey(a_worker(slots=2), running="w1 w1", waiting={MEDIUM: 1})
    sessions = [SHELL, SHELL._replace(job_id=JobId("t"), started_at=9)]
    assert crowded_out(queue, BUILT_IN, sessions) == "t"
    by_chance = Policy(ladder=Ladder(victim="random"))
    assert crowded_out(queue, by_chance, sessions, chance=0.9) == "s"


def test_one_that_is_stopping_is_waited_for() -> None:
    queue = a_survey(a_worker(slots=2), running="w1 w1", waiting={MEDIUM: 5})
    assert crowded_out(queue, BUILT_IN, [SHELL, PlacedSession(JobId("t"), "w1", "medium", 9, stopping=True)]) is None


def test_where_slots_must_be_left_free_every_session_is_in_the_way() -> None:
    policy = Policy(reserve=Reserve(rule="leave_free"))
    queue = a_survey(a_worker(slots=2, reserved=1), running="w1:high", waiting={MEDIUM: 1})
    assert crowded_out(queue, policy, [SHELL._replace(lane="high")]) == "s"
