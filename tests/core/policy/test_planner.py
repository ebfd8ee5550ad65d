"""A worker's planner: a reused plan equals a new one."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.job import ClassKey
from headway.core.policy.document import BUILT_IN, Policy
from headway.core.policy.lanes import ShareClocks, plan
from headway.core.policy.planner import PLANS_MAX, Planner
from headway.core.policy.reader import read_policy
from headway.core.snapshot import ClassView, Plan, Snapshot

GPU = frozenset({"gpu"})
PLAIN = read_policy({"reserve": {"slots": 0}}, "the test")
KEYS = [ClassKey("high"), ClassKey("low"), ClassKey("medium"), ClassKey("medium", ("gpu",))]

# Which classes exist, and how many jobs of each wait. Mostly none, as in an idle queue.
QUEUES = st.lists(st.sampled_from([0, 0, 0, 0, 1, 7]), max_size=len(KEYS))
STEPS = st.lists(
    st.tuples(
        QUEUES,
        st.integers(1, 3),  # Free slots.
        st.integers(0, 1),  # Of them, how many only the reserve may use.
        st.sampled_from([frozenset[str](), GPU]),
        st.sampled_from([BUILT_IN, PLAIN]),
        st.sampled_from([None, *KEYS]),  # What is claimed then.
        st.sampled_from([-2.0, 0.0, 3.0]),  # By how many seconds a run differs from what its claim was charged.
    ),
    max_size=30,
)


def seen(now_at: int, waiting: list[int]) -> Snapshot:
    """Return a snapshot of classes with these numbers of waiting jobs."""
    views = [
        ClassView(key, count, now_at - 5_000 if count else None, count, True)
        for key, count in zip(KEYS, waiting, strict=False)
    ]
    return Snapshot(now_at, tuple(views))


def charge(clocks: ShareClocks, policy: Policy, key: ClassKey, over: float) -> None:
    clocks.charge(policy, key, 2.0)
    clocks.correct(policy, key, over)


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_every_plan_is_what_a_new_plan_would_be(
    steps: list[tuple[list[int], int, int, frozenset[str], Policy, ClassKey | None, float]],
) -> None:
    planner, clocks = Planner(0.5), ShareClocks(0.5)
    for moment, (waiting, free, reserved, offers, policy, claimed, over) in enumerate(steps):
        snapshot = seen(1_000_000 + moment, waiting)
        for _ in range(2):  # The second plan is made from the same snapshot.
            got = planner.plan(snapshot, free=free, free_below=free - reserved, offers=offers, policy=policy)
            new = plan(
                snapshot, free=free, free_below=free - reserved, offers=offers, policy=policy, clocks=clocks
            )  # fmt: skip
            assert got == new._replace(known=len(snapshot.classes))
            if claimed is not None:
                charge(planner.clocks, policy, claimed, over)
                charge(clocks, policy, claimed, over)


def test_a_plan_of_an_idle_queue_is_made_once() -> None:
    planner = Planner()
    first = planner.plan(seen(1, [0, 0]), free=3, free_below=2, offers=GPU, policy=BUILT_IN)
    assert planner.plan(seen(2, [0, 0]), free=3, free_below=2, offers=GPU, policy=BUILT_IN) is first
    assert planner.plan(seen(3, [0, 1]), free=3, free_below=2, offers=GPU, policy=BUILT_IN) is not first


def test_the_plans_that_are_kept_are_bounded() -> None:
    planner = Planner()

    def made(free: int) -> Plan:
        return planner.plan(seen(1, [0, 0]), free=free, free_below=free, offers=GPU, policy=BUILT_IN)

    first = made(1)
    assert [made(free).free for free in range(2, PLANS_MAX + 1)][-1] == PLANS_MAX
    assert made(1) is first
    made(PLANS_MAX + 1)
    assert made(1) is not first
