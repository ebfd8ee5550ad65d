"""Reasons to wait: each alone and with others, in order of precedence, with its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.diagnostics import AHEAD_COUNTED, JobDiagnostics, LimitView, QueueDiagnostics, RunningJob
from headway.core.job import ClassKey, JobId, JobRecord, State
from headway.core.policy.document import BUILT_IN, ELASTIC, LimitRule, Policy, Reserve, Rung
from headway.core.policy.enforced import PAUSE, EnforcedRules, PauseSet
from headway.core.policy.ladder import RunningJobs
from headway.core.policy.why import CODES, Reason, ReasonIndex, class_reasons, length, why
from headway.core.snapshot import ClassView, Snapshot
from headway.core.worker import WorkerInfo, WorkerState
from headway.core.workflow import EdgeRule, SourceStatus, Upstream

NOW_AT = 1_000_000_000
EXPORT = "reports.export"
RUNGS = (Rung("fast", 3_000), Rung("medium", 10_000, limit=3), Rung("slow", 30_000, limit=1))


@dataclass(frozen=True, slots=True)
class Scene:
    """All inputs of a reason. By default a worker has a free slot, and no reason applies."""

    lane: str = "medium"
    tenant: str | None = None
    needs: tuple[str, ...] = ()
    rung: str | None = None
    due_at: int | None = None
    state: State = State.QUEUED
    paused: PauseSet = field(default_factory=PauseSet)
    workers: tuple[WorkerInfo, ...] = ()
    classes: tuple[ClassView, ...] = ()
    executing: tuple[RunningJob, ...] = ()
    limits: tuple[LimitView, ...] = ()
    running_jobs: RunningJobs | None = None
    costs_us: Mapping[str, int] = field(default_factory=dict)
    fair: bool = False
    ahead: int = 0
    ahead_own: int = 0
    upstreams: tuple[Upstream, ...] = ()
    policy: Policy = BUILT_IN

    def diagnose(self) -> QueueDiagnostics:
        rules = EnforcedRules(rungs=RUNGS if self.running_jobs else (), paused=self.paused, costs_us=self.costs_us)
        return QueueDiagnostics(
            Snapshot(NOW_AT, self.classes, None, self.running_jobs), self.workers, self.executing, rules
        )

    def diagnose_job(self) -> JobDiagnostics:
        return JobDiagnostics(
            self.job(), self.diagnose(), self.fair, self.ahead, self.ahead_own, self.limits, self.upstreams
        )

    def job(self) -> JobRecord:
        return JobRecord(
            job_id=JobId("j"),
            seq=1,
            task=EXPORT,
            payload=b"",
            state=self.state,
            lane=self.lane,
            needs=self.needs,
            rung=self.rung,
            tenant=self.tenant,
            max_retries=0,
            timeout_ms=1_000,
            retry=None,
            attempts=0,
            crashes=0,
            epoch=0,
            submitted_at=NOW_AT - 5_000,
            due_at=self.due_at,
            eligible_at=NOW_AT - 5_000,
            started_at=None,
            finished_at=None,
            expires_at=None,
            cancel_requested_at=None,
            worker_id=None,
            progress=None,
            note=None,
            result=None,
            result_error=None,
            error=None,
            reason=None,
            idempotency_key=None,
            unique_key=None,
            trace_id=None,
            history=(),
        )


def a_worker(
    worker_id: str = "w1",
    *,
    slots: int = 2,
    reserved: int = 0,
    running: int = 0,
    offers: tuple[str, ...] = (f"task:{EXPORT}",),
    state: WorkerState = WorkerState.ACTIVE,
) -> WorkerInfo:
    return WorkerInfo(
        worker_id=worker_id, host="h", pid=1, slots=slots, reserved=reserved, offers=offers, version="1",
        running=running, state=state,
    )  # fmt: skip


def a_run(
    worker_id: str = "w1", *, task: str = EXPORT, lane: str = "medium", ran_s: float = 0, held: tuple[str, ...] = ()
) -> RunningJob:
    return RunningJob(task, lane, worker_id, NOW_AT - round(ran_s * 1_000), held)


def a_view(
    lane: str, waiting: int = 1, *, waited_s: int = 0, rung: str | None = None, blocked: str | None = None
) -> ClassView:
    return ClassView(ClassKey(lane, (), rung), waiting, NOW_AT - waited_s * 1_000, blocked=blocked)


def a_rate(key: str = "calls", *, in_s: float = 4.0, by: str | None = None) -> LimitView:
    rule = LimitRule(count=100, period_ms=60_000, by=by)
    return LimitView(key, rule, 0, NOW_AT + int(in_s * 1_000))


def a_cap(key: str = "account=7", *, used: int = 3, most: int = 3, by: str | None = "account") -> LimitView:
    return LimitView(key, LimitRule(concurrency=most, by=by), used, None)


FREE = Scene(workers=(a_worker(),))
FULL = Scene(workers=(a_worker(running=2),), executing=(a_run(), a_run()))


def reasons(scene: Scene) -> list[Reason]:
    return why(scene.diagnose_job(), scene.policy)


def codes(scene: Scene) -> list[str]:
    return [reason.code for reason in reasons(scene)]


# ---------------------------------------------------------------------- each reason, alone


@dataclass(frozen=True, slots=True)
class Case:
    scene: Scene
    reason: Reason


def full_beside(*views: ClassView, ahead: int = 0, **changes: Any) -> Scene:
    return replace(FULL, classes=views, ahead=ahead, **changes)


BUSY = Reason("slots_full", "all 2 slots are busy", {"used": 2, "slots": 2, "workers": 1, "next_frees_s": None})
LEAVE_FREE = Reserve(slots=1, rule="leave_free")

ALONE = {
    "scheduled": Case(
        replace(FREE, due_at=NOW_AT + 90_000),
        Reason("scheduled", "not due for 90 s", {"due_at": NOW_AT + 90_000, "in_s": 90.0}),
    ),
    "paused: everything": Case(
        replace(FREE, paused=PauseSet(everything=True)),
        Reason("paused", "everything is paused", {"paused": "everything"}),
    ),
    "paused: its lane": Case(
        replace(FREE, paused=PauseSet(lanes=("low", "medium"))),
        Reason("paused", "lane medium is paused", {"paused": "lane medium"}),
    ),
    "paused: its task": Case(
        replace(FREE, paused=PauseSet(tasks=(EXPORT,))),
        Reason("paused", f"task {EXPORT} is paused", {"paused": f"task {EXPORT}"}),
    ),
    "paused: its tenant": Case(
        replace(FREE, tenant="acme", paused=PauseSet(tenants=("acme",))),
        Reason("paused", "tenant acme is paused", {"paused": "tenant acme"}),
    ),
    "unroutable": Case(
        replace(FREE, workers=(a_worker(offers=("task:other",)), a_worker("w2", offers=()))),
        Reason(
            "unroutable", f"no live worker knows the task {EXPORT} (2 workers asked)", {"task": EXPORT, "workers": 2}
        ),
    ),
    "unservable": Case(
        replace(FREE, needs=("big", "gpu"), workers=(a_worker(offers=("big", f"task:{EXPORT}")),)),
        Reason(
            "unservable",
            "no live worker offers gpu (1 worker asked)",
            {"needs": ["big", "gpu"], "missing": ["gpu"], "workers": 1},
        ),
    ),
    "unservable: none offers all of it": Case(
        replace(
            FREE,
            needs=("big", "gpu"),
            workers=(a_worker(offers=("big", f"task:{EXPORT}")), a_worker("w2", offers=("gpu", f"task:{EXPORT}"))),
        ),
        Reason(
            "unservable",
            "no live worker offers big, gpu (2 workers asked)",
            {"needs": ["big", "gpu"], "missing": ["big", "gpu"], "workers": 2},
        ),
    ),
    "unservable: one knows it and another offers it": Case(
        replace(FREE, needs=("gpu",), workers=(a_worker(), a_worker("w2", offers=("gpu", "task:other")))),
        Reason(
            "unservable",
            f"no live worker both knows {EXPORT} and offers gpu",
            {"needs": ["gpu"], "workers": 2},
        ),
    ),
    "no_worker": Case(Scene(), Reason("no_worker", "no worker is running", {"workers": 0})),
    "no_worker: none that takes jobs": Case(
        Scene(workers=(a_worker(state=WorkerState.DRAINING), a_worker("w2", state=WorkerState.DEAD))),
        Reason("no_worker", "no worker is running", {"workers": 0}),
    ),
    "rate": Case(
        replace(FREE, limits=(a_rate(in_s=4.2),)),
        Reason(
            "rate",
            "calls starts 100 in 60 s; the next may start in 4.2 s",
            {"limit": "calls", "until_at": NOW_AT + 4_200, "in_s": 4.2},
        ),
    ),
    "rate: of a tenant": Case(
        replace(FREE, limits=(a_rate("each=acme", by="tenant"),)),
        Reason(
            "rate",
            "tenant acme starts 100 in 60 s; the next may start in 4.0 s",
            {"limit": "each=acme", "until_at": NOW_AT + 4_000, "in_s": 4.0},
        ),
    ),
    "limit": Case(
        replace(FREE, limits=(a_cap(),)),
        Reason(
            "limit", "account 7 runs 3 of 3", {"limit": "account=7", "used": 3, "most": 3, "next_frees_s": None}
        ),
    ),
    "limit: more run than were allowed since": Case(
        replace(FREE, limits=(a_cap("all", used=5, most=2, by=None),)),
        Reason("limit", "all runs 5 of 2", {"limit": "all", "used": 5, "most": 2, "next_frees_s": None}),
    ),
    "limit: those without a tenant": Case(
        replace(FREE, limits=(a_cap("each=", by="tenant"),)),
        Reason(
            "limit", "tenant (none) runs 3 of 3", {"limit": "each=", "used": 3, "most": 3, "next_frees_s": None}
        ),
    ),
    "limit: and when it frees": Case(
        replace(
            FREE,
            limits=(a_cap(),),
            costs_us={EXPORT: 10_000_000},
            executing=(
                a_run("w9", ran_s=2, held=("account=7",)),
                a_run("w9", ran_s=7, held=("account=7", "other")),
                a_run("w9", ran_s=9, held=("account=8",)),
            ),
        ),
        Reason(
            "limit",
            "account 7 runs 3 of 3; next frees in about 3.0 s",
            {"limit": "account=7", "used": 3, "most": 3, "next_frees_s": 3.0},
        ),
    ),
    "ladder": Case(
        replace(
            FREE,
            rung="slow",
            running_jobs=RunningJobs(10, 7, (1, 1, 1)),
            classes=(a_view("medium", rung="slow", blocked="ladder"),),
        ),
        Reason(
            "ladder",
            "no room for another slow job (1 fast, 1 medium, 1 slow run)",
            {"running": {"fast": 1, "medium": 1, "slow": 1}, "most": {"fast": None, "medium": 3, "slow": 1}},
        ),
    ),
    "slots_full": Case(FULL, BUSY),
    "slots_full: and when one frees": Case(
        replace(
            FULL,
            costs_us={EXPORT: 60_000_000, "other": 1},
            executing=(a_run(ran_s=20), a_run(ran_s=10), a_run("elsewhere", ran_s=59)),
        ),
        Reason(
            "slots_full",
            "all 2 slots are busy; next frees in about 40 s",
            {"used": 2, "slots": 2, "workers": 1, "next_frees_s": 40.0},
        ),
    ),
    "slots_full: what should have ended by now": Case(
        replace(FULL, costs_us={EXPORT: 1_000_000}, executing=(a_run(ran_s=20), a_run(task="unknown"))),
        Reason(
            "slots_full",
            "all 2 slots are busy; next should free any moment",
            {"used": 2, "slots": 2, "workers": 1, "next_frees_s": 0.0},
        ),
    ),
    "reserved": Case(
        Scene(workers=(a_worker(slots=3, reserved=1, running=2),), executing=(a_run(), a_run())),
        Reason("reserved", "1 free slot kept for high", {"free": 1, "reserved": 1, "for": ["high"]}),
    ),
    "reserved: in several workers": Case(
        Scene(
            workers=(a_worker(slots=2, reserved=1, running=1), a_worker("w2", slots=3, reserved=1, running=2)),
            executing=(a_run(), a_run("w2"), a_run("w2")),
        ),
        Reason("reserved", "2 free slots kept for high", {"free": 2, "reserved": 2, "for": ["high"]}),
    ),
    "reserved: in the pool": Case(
        Scene(
            workers=(a_worker(running=2), a_worker("w2")),
            executing=(a_run(), a_run()),
            policy=Policy(reserve=Reserve(frozenset({"high", "urgent"}), 2, "pool")),
        ),
        Reason(
            "reserved", "2 free slots kept for high and urgent", {"free": 2, "reserved": 2, "for": ["high", "urgent"]}
        ),
    ),
    "reserved: to be left free": Case(
        Scene(
            workers=(a_worker(slots=3, reserved=1, running=2),),
            executing=(a_run(lane="high"), a_run()),
            policy=Policy(reserve=LEAVE_FREE),
        ),
        Reason("reserved", "1 free slot kept for high", {"free": 1, "reserved": 1, "for": ["high"]}),
    ),
}  # fmt: skip

# These are told only while there is no slot to be had: otherwise the next look of a worker starts the job.
BESIDE = {
    "lane": Case(
        full_beside(a_view("high", 4), a_view("medium"), a_view("low", 9)),
        Reason("lane", "better lanes go first: 4 jobs in high", {"waiting": {"high": 4}}),
    ),
    "lane: several": Case(
        full_beside(a_view("high", 1), a_view("medium", 2_000), a_view("low"), lane="low"),
        Reason(
            "lane", "better lanes go first: 1 job in high, 2,000+ jobs in medium",
            {"waiting": {"high": 1, "medium": 2_000}},
        ),
    ),
    "lane_share": Case(
        full_beside(a_view("high", 4), a_view("medium", 1, waited_s=1_200)),
        Reason(
            "lane_share", "shares the next slots with high: 33% are medium's", {"with": ["high"], "share": 3 / 9}
        ),
    ),
    "lane_share: another has risen to it": Case(
        full_beside(a_view("medium"), a_view("low", 2, waited_s=600)),
        Reason("lane_share", "shares the next slots with low: 75% are medium's", {"with": ["low"], "share": 0.75}),
    ),
    "tenant_share": Case(
        full_beside(a_view("medium", 9), ahead=8, fair=True, tenant="acme"),
        Reason("tenant_share", "8 jobs of other tenants go first by their share", {"ahead": 8, "tenant": "acme"}),
    ),
    "ahead": Case(
        full_beside(a_view("medium", 3), ahead=2),
        Reason("ahead", "2 jobs came before it", {"ahead": 2}),
    ),
    "ahead: of its tenant": Case(
        full_beside(a_view("medium", 3), ahead=1, ahead_own=1, fair=True, tenant="acme"),
        Reason("ahead", "1 job of its tenant came before it", {"ahead": 1}),
    ),
    "ahead: of those without a tenant": Case(
        full_beside(a_view("medium", 3), ahead=2, ahead_own=2, fair=True),
        Reason("ahead", "2 jobs came before it", {"ahead": 2}),
    ),
    "ahead: more than are counted": Case(
        full_beside(a_view("medium", 3), ahead=AHEAD_COUNTED),
        Reason("ahead", "10,000+ jobs came before it", {"ahead": AHEAD_COUNTED}),
    ),
}  # fmt: skip


def upstream(source: str, status: SourceStatus = SourceStatus.LIVE, **more: Any) -> Upstream:
    return Upstream(source, EdgeRule.CANCEL, False, status, **more)


HELD = {
    "a job": (
        (upstream("a", state=State.EXECUTING),),
        "waits for job a, which is executing",
        {"sources": ["a"], "left": 1, "of": 1},
    ),
    "a batch": (
        (upstream("batch-1", name="import-7", live=3, total=10_000),),
        "waits for 3 of 10,000 jobs of import-7",
        {"sources": ["batch-1"], "left": 1, "of": 1, "live": 3, "total": 10_000, "name": "import-7"},
    ),
    "an open batch": (
        (upstream("batch-1", name="import-7"),),
        "waits for the end of import-7",
        {"sources": ["batch-1"], "left": 1, "of": 1, "live": 0, "total": 0, "name": "import-7"},
    ),
    "several": (
        (upstream("a")._replace(satisfied=True), upstream("b"), upstream("c")),
        "waits for 2 of 3 sources, first b",
        {"sources": ["b", "c"], "left": 2, "of": 3},
    ),
    "a job that failed": (
        (upstream("a", SourceStatus.FAILED, state=State.DEAD_LETTER),),
        "waits until job a is retried and completes; it ended as dead_letter",
        {"sources": ["a"], "left": 1, "of": 1},
    ),
    "all that it waited for has ended": (
        (upstream("a")._replace(satisfied=True),),
        "waits for nothing any more; the next exchange of a worker releases it",
        {"sources": [], "left": 0, "of": 1},
    ),
    "sources that were not read": ((), "waits for other jobs", {}),
}


@pytest.mark.parametrize("name", HELD)
def test_a_held_job_names_what_it_waits_for_and_nothing_that_counts_later(name: str) -> None:
    upstreams, text, facts = HELD[name]
    scene = full_beside(a_view("medium", 3), ahead=2)
    diagnosis = replace(scene, upstreams=upstreams).diagnose_job()
    held = diagnosis._replace(job=replace(diagnosis.job, held=True))
    assert why(held, BUILT_IN) == [Reason("depends", text, facts)]


@pytest.mark.parametrize("first", ["held", "waiting"])
def test_a_list_tells_held_jobs_from_waiting_jobs_of_the_same_task(first: str) -> None:
    diagnosis = full_beside().diagnose_job()
    waiting, held = diagnosis.job, replace(diagnosis.job, held=True)
    index = ReasonIndex(diagnosis.queue, BUILT_IN)
    codes = {job.held: index.code_of(job) for job in ((held, waiting) if first == "held" else (waiting, held))}
    assert codes == {True: "depends", False: "slots_full"}


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in ALONE.items()])
def test_a_reason_is_told_with_its_numbers(case: Case) -> None:
    # R1.47
    assert reasons(case.scene) == [case.reason]


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in BESIDE.items()])
def test_who_goes_first_is_told_while_there_is_no_slot(case: Case) -> None:
    assert reasons(case.scene) == [BUSY, case.reason]
    free = replace(case.scene, workers=(a_worker(slots=9),), executing=())
    assert reasons(free) == []


def test_every_code_is_tried_here_but_for_stopping() -> None:
    tried = {case.reason.code for case in (*ALONE.values(), *BESIDE.values())}
    assert tried | {"depends"} == set(CODES) - {"stopping"}


def test_reasons_of_which_there_are_none_say_nothing() -> None:
    assert reasons(FREE) == []


@pytest.mark.parametrize("state", [state for state in State if state is not State.QUEUED])
def test_a_job_that_runs_or_has_ended_waits_for_nothing(state: State) -> None:
    for case in (*ALONE.values(), *BESIDE.values()):
        assert reasons(replace(case.scene, state=state)) == []


# ---------------------------------------------------------------------- which of them, and which not


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(replace(FREE, due_at=NOW_AT), id="due now"),
        pytest.param(replace(FREE, due_at=NOW_AT - 1), id="due, and about to be noticed"),
        pytest.param(
            replace(FREE, paused=PauseSet(lanes=("low",), tasks=("x",), tenants=("acme",))), id="others paused"
        ),
        pytest.param(replace(FREE, needs=(f"task:{EXPORT}",)), id="needs the task, and it is known"),
        pytest.param(replace(FREE, limits=(a_cap(used=2),)), id="a limit with room"),
        pytest.param(replace(FREE, limits=(a_rate(in_s=0),)), id="a rate that lets it start"),
        pytest.param(replace(FREE, limits=(a_cap(f"{PAUSE}task:x", used=0, most=0, by=None),)), id="no limit at all"),
        pytest.param(
            replace(
                FREE,
                rung="fast",
                running_jobs=RunningJobs(10, 5, (3, 1, 1)),
                classes=(a_view("medium", rung="fast"),),
            ),
            id="room on the ladder",
        ),
        pytest.param(
            replace(
                FREE,
                rung="fast",
                running_jobs=RunningJobs(10, 5, (3, 1, 1)),
                classes=(a_view("medium", rung="fast"), a_view("medium", rung="slow", blocked="ladder")),
            ),
            id="another rung is blocked",
        ),
        pytest.param(
            replace(FREE, running_jobs=RunningJobs(10, 5, (3, 1, 1)), classes=(a_view("medium", blocked="ladder"),)),
            id="not on the ladder",
        ),
        pytest.param(
            replace(FULL, workers=(*FULL.workers, a_worker("w2"))), id="another worker has room"
        ),
        pytest.param(
            Scene(lane="high", workers=(a_worker(slots=3, reserved=1, running=2),), executing=(a_run(), a_run())),
            id="the reserve is its own",
        ),
        pytest.param(
            Scene(
                workers=(a_worker(slots=3, reserved=1, running=2),),
                executing=(a_run(lane="high"), a_run()),
            ),
            id="the reserve is in use: a cap leaves the rest",
        ),
        pytest.param(
            Scene(
                workers=(a_worker(running=2), a_worker("w2")),
                executing=(a_run(lane="high"), a_run()),
                policy=Policy(reserve=Reserve(slots=2, scope="pool")),
            ),
            id="the pool's reserve is in use",
        ),
    ],
)  # fmt: skip
def test_what_does_not_hold_is_not_told(scene: Scene) -> None:
    assert reasons(scene) == []


def test_a_full_worker_that_could_not_run_it_is_not_counted() -> None:
    other = a_worker("w2", slots=7, running=7, offers=("task:other",))
    assert reasons(replace(FULL, workers=(*FULL.workers, other))) == [BUSY]


def test_a_worker_that_leaves_brings_no_slots() -> None:
    leaving = a_worker("w2", slots=7, state=WorkerState.DRAINING)
    assert reasons(replace(FULL, workers=(*FULL.workers, leaving))) == [BUSY]


def test_an_elastic_job_waits_for_the_shortest_rung() -> None:
    scene = replace(
        FREE,
        rung=ELASTIC,
        running_jobs=RunningJobs(3, 0, (3, 0, 0)),
        classes=(a_view("medium", rung=ELASTIC, blocked="ladder"),),
    )
    [reason] = reasons(scene)
    assert (reason.code, reason.text) == ("ladder", "no room for another default job (3 fast, 0 medium, 0 slow run)")


def test_lanes_that_cannot_start_anything_are_not_in_the_way() -> None:
    blocked = full_beside(a_view("high", 4, blocked="paused"), a_view("medium"))
    assert codes(blocked) == ["slots_full"]
    empty = full_beside(a_view("high", 0), a_view("medium"))
    assert codes(empty) == ["slots_full"]


def test_lanes_that_the_jobs_workers_cannot_serve_are_not_in_the_way() -> None:
    gpu = ClassView(ClassKey("high", ("gpu",)), 4, NOW_AT)
    assert codes(full_beside(gpu, a_view("medium"))) == ["slots_full"]
    offering = (a_worker(running=2, offers=("gpu", f"task:{EXPORT}")),)
    assert codes(full_beside(gpu, a_view("medium"), workers=offering)) == ["slots_full", "lane"]


# ---------------------------------------------------------------------- together


def test_all_that_hold_are_told_and_the_binding_one_comes_first() -> None:
    everything = Scene(
        lane="low",
        tenant="acme",
        rung="slow",
        due_at=NOW_AT + 1_000,
        paused=PauseSet(everything=True, lanes=("low",), tasks=(EXPORT,), tenants=("acme",)),
        workers=(a_worker(running=2),),
        executing=(a_run(), a_run()),
        classes=(
            a_view("high", 3),
            a_view("medium", 2, waited_s=0),
            a_view("low", rung="slow", blocked="ladder"),
            a_view("low", waited_s=700),
        ),
        limits=(a_cap(), a_rate(), a_cap("all", by=None), a_rate("other")),
        running_jobs=RunningJobs(2, 0, (0, 0, 1)),
        fair=True,
        ahead=9,
        ahead_own=4,
    )
    assert codes(everything) == [
        "scheduled",
        *["paused"] * 4,
        *["rate"] * 2,
        *["limit"] * 2,
        "ladder",
        "slots_full",
        "lane",
        "lane_share",
        "tenant_share",
        "ahead",
    ]
    told = {reason.code: reason for reason in reasons(everything)}
    assert told["tenant_share"].facts == {"ahead": 5, "tenant": "acme"}
    assert told["ahead"].facts == {"ahead": 4}


def test_a_job_that_nobody_knows_or_can_serve_tells_both() -> None:
    scene = replace(FREE, needs=("gpu",), workers=(a_worker(offers=("task:other",)),), limits=(a_cap(),))
    assert codes(scene) == ["unroutable", "unservable", "limit"]


def test_a_worker_that_offers_any_task_knows_every_one() -> None:
    any_task = replace(FREE, workers=(a_worker(offers=("task:*",)),))
    assert codes(any_task) == []
    assert codes(replace(any_task, needs=(f"task:{EXPORT}",))) == []
    assert codes(replace(any_task, needs=("gpu",))) == ["unservable"]
    beside = (a_worker(offers=("task:*",)), a_worker("w2", offers=("gpu", "task:other")))
    [reason] = reasons(replace(any_task, needs=("gpu",), workers=beside))
    assert reason.text == f"no live worker both knows {EXPORT} and offers gpu"


def test_without_a_worker_nothing_is_said_of_slots() -> None:
    scene = replace(FULL, workers=(), ahead=5, limits=(a_cap(),))
    assert codes(scene) == ["no_worker", "limit"]


PARTS: dict[str, dict[str, Any]] = {
    "scheduled": {"due_at": NOW_AT + 1},
    "paused": {"paused": PauseSet(lanes=("medium",))},
    "limits": {"limits": (a_rate(), a_cap())},
    "ladder": {
        "rung": "slow",
        "running_jobs": RunningJobs(2, 0, (0, 0, 1)),
        "classes": (a_view("medium", rung="slow", blocked="ladder"), a_view("high")),
    },
    "full": {"workers": FULL.workers, "executing": FULL.executing},
    "nobody": {"workers": ()},
    "needs": {"needs": ("gpu",)},
    "behind": {"ahead": 7, "ahead_own": 3, "fair": True},
}


@given(chosen=st.sets(st.sampled_from(sorted(PARTS))))
def test_reasons_come_in_the_order_of_their_codes_whatever_holds(chosen: set[str]) -> None:
    scene = FREE
    for name in sorted(chosen):
        scene = replace(scene, **PARTS[name])
    told = [CODES.index(code) for code in codes(scene)]
    assert told == sorted(told)
    assert ("scheduled" in chosen) == ("scheduled" in codes(scene))
    assert ("limits" in chosen) == ("limit" in codes(scene)) == ("rate" in codes(scene))


# ---------------------------------------------------------------------- what a class waits for


def sample(*views: ClassView, scene: Scene = FULL) -> dict[str, str]:
    """Return the reason of each lane's class in a scene."""
    found = class_reasons(replace(scene, classes=views).diagnose(), scene.policy)
    return {key.lane: reason for key, reason in found.items()}


@pytest.mark.parametrize(
    "views, scene, expected",
    [
        pytest.param([a_view("medium", 0)], FULL, {}, id="nothing waits"),
        pytest.param([a_view("medium")], FULL, {"medium": "slots_full"}, id="no slot"),
        pytest.param([a_view("medium")], FREE, {"medium": "ahead"}, id="a slot: it is about to start"),
        pytest.param([a_view("medium")], Scene(), {"medium": "no_worker"}, id="no worker"),
        pytest.param(
            [a_view("medium")],
            Scene(workers=(a_worker(state=WorkerState.DEAD),)),
            {"medium": "no_worker"},
            id="no live worker",
        ),
        pytest.param(
            [a_view("high"), a_view("medium"), a_view("low")],
            FULL,
            {"high": "slots_full", "medium": "lane", "low": "lane"},
            id="better lanes",
        ),
        pytest.param(
            [a_view("high"), a_view("low", waited_s=1_200)],
            FULL,
            {"high": "lane_share", "low": "lane_share"},
            id="a lane that has risen",
        ),
        pytest.param(
            [a_view("medium")],
            Scene(workers=(a_worker(slots=2, reserved=1, running=1),), executing=(a_run(),)),
            {"medium": "reserved"},
            id="reserved",
        ),
        pytest.param(
            [a_view("medium", blocked="paused"), a_view("low", blocked="ladder")],
            FULL,
            {"medium": "paused", "low": "ladder"},
            id="blocked as a whole",
        ),
        pytest.param(
            [ClassView(ClassKey("medium", ("gpu",)), 1, NOW_AT)], FREE, {"medium": "unservable"}, id="needs"
        ),
        pytest.param(
            [ClassView(ClassKey("medium", ("task:x",)), 1, NOW_AT)], FREE, {"medium": "unroutable"}, id="a task"
        ),
    ],
)  # fmt: skip
def test_a_class_tells_in_a_word_what_it_waits_for(
    views: list[ClassView], scene: Scene, expected: dict[str, str]
) -> None:
    assert sample(*views, scene=scene) == expected


def test_a_word_for_a_class_is_one_of_the_codes() -> None:
    for case in (*ALONE.values(), *BESIDE.values()):
        for word in class_reasons(case.scene.diagnose(), case.scene.policy).values():
            assert word in CODES


# ---------------------------------------------------------------------- lengths


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0, "0.0 s"),
        (3.14, "3.1 s"),
        (9.94, "9.9 s"),
        (10, "10 s"),
        (119.4, "119 s"),
        (120, "2 min"),
        (7_199, "120 min"),
        (7_200, "2.0 h"),
        (90_000, "25.0 h"),
    ],
)
def test_a_length_is_written_for_people(seconds: float, text: str) -> None:
    assert length(seconds) == text
