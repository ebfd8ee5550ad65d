"""The guarantees of a policy for each lane under any load: a share of the slots, and a bound on the wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headway.core.policy.document import Lane, Policy
from headway.core.policy.why import length

WORK_BEHIND_S = 600  # Seconds of work before the job in a bound: ten minutes, a figure that people can picture.


@dataclass(frozen=True, slots=True)
class Guarantee:
    """The guarantee of a lane, however much work the other lanes have.

    ``share`` is its part of all slots and ``slots`` the same as a number, from the moment that its oldest job has
    waited ``after_ms``. None means that the lane can starve. ``bound`` describes the longest wait.
    """

    lane: str
    level: int
    weight: float
    share: float
    slots: float
    after_ms: int | None
    bound: str

    def wait_ms(self, ahead_ms: int) -> int | None:
        """Return a bound on the wait of a job behind ``ahead_ms`` of work in its lane, without the running jobs."""
        if self.after_ms is None or not self.slots:
            return None
        return round(self.after_ms + ahead_ms / self.slots)


class Pool:
    """The slots of all workers, and how many of them the reserve keeps for its lanes."""

    def __init__(self, policy: Policy, slots: int, workers: int) -> None:
        reserve = policy.reserve
        self.slots = slots
        self.total = slots * workers
        # A worker never keeps all its slots; in the whole pool a reserve may leave the other lanes none.
        kept = min(reserve.slots, slots - 1) * workers
        if reserve.scope == "pool":
            kept = min(reserve.slots, self.total)
        self.inside = [name for name in policy.lanes if name in reserve.lanes]
        self.outside = [name for name in policy.lanes if name not in reserve.lanes]
        self.kept = kept if self.inside and self.outside else 0
        # With leave_free the other lanes start only while more than the reserve is free, which may be never.
        self.shuts_out = bool(self.kept) and (reserve.rule == "leave_free" or self.kept == self.total)


def guarantees_of(policy: Policy, pool: Pool) -> Iterator[Guarantee]:
    """Yield the guarantee of each lane, in the order of service."""
    sure = _sure_slots(policy, pool)
    for name, lane in sorted(policy.lanes.items(), key=lambda item: (item[1].level, item[0])):
        slots, after_ms = sure.get(name, (0.0, None))
        usable = pool.total - pool.kept if name in pool.outside else pool.total
        share = slots / pool.total
        yield Guarantee(name, lane.level, lane.weight, share, slots, after_ms, _bound(slots, after_ms, usable))


def guaranteed_slots(policy: Policy, total: int, workers: int) -> dict[str, float]:
    """Return how many of the slots of live workers each lane is guaranteed, or nothing without slots."""
    if not total:
        return {}
    pool = Pool(policy, max(1, round(total / workers)), workers)
    return {one.lane: one.share * total for one in guarantees_of(policy, pool)}


def best_level(policy: Policy, lanes: Mapping[str, Lane]) -> int:
    """Return the level that is served before all others."""
    if policy.promotion == "absolute":  # Then a lane may rise even past the natives of the best level.
        return min(max(0, lane.level - len(lane.promote_after_ms)) for lane in lanes.values())
    return min(lane.level for lane in lanes.values())


def _sure_slots(policy: Policy, pool: Pool) -> dict[str, tuple[float, int | None]]:
    """Return the slots that each lane is guaranteed, and from which age on. Lanes that can starve are left out.

    All lanes that can compete at the best level share the slots by weight, by start-time fair queueing. The reserve
    gives its lanes more where their share is smaller than the reserve.
    """
    lanes, inside = policy.lanes, pool.inside
    competing = _competing(policy, lanes)
    if pool.shuts_out:
        competing = {name: after_ms for name, after_ms in competing.items() if name in inside}
    if policy.promotion == "absolute":  # Age decides, so no lane has a share but for a reserve of its own.
        aged: dict[str, tuple[float, int | None]] = {name: (0.0, after_ms) for name, after_ms in competing.items()}
        return aged | {name: (float(pool.kept), 0) for name in inside if pool.kept and len(inside) == 1}
    whole = sum(lanes[name].weight for name in _competing(policy, lanes))
    within = sum(lanes[name].weight for name in competing if name in inside)
    reserved = max(pool.kept, pool.total * within / whole)
    sure: dict[str, tuple[float, int | None]] = {}
    for name, after_ms in competing.items():
        slots, among = (reserved, within) if name in inside else (pool.total - reserved, whole - within)
        sure[name] = slots * lanes[name].weight / among, after_ms
    if pool.kept and not within:  # Lanes of a reserve that never reach the best level have it to themselves.
        alone = _competing(policy, {name: lanes[name] for name in inside})
        weight = sum(lanes[name].weight for name in alone)
        sure |= {name: (pool.kept * lanes[name].weight / weight, after_ms) for name, after_ms in alone.items()}
    return sure


def _competing(policy: Policy, lanes: Mapping[str, Lane]) -> dict[str, int]:
    """Return the lanes that are served at the best level or rise to it, each with the age at which it does."""
    best = best_level(policy, lanes)
    rises = {name: lane.level - best for name, lane in lanes.items()}
    return {
        name: lanes[name].promote_after_ms[rise - 1] if rise else 0
        for name, rise in rises.items()
        if rise <= len(lanes[name].promote_after_ms)
    }


def _bound(slots: float, after_ms: int | None, usable: int) -> str:
    """Return ``a + B * W / (w * C)`` as text, with ten minutes of work (B, in seconds of a slot) before the job."""
    if after_ms is None:
        return "none: it can wait for ever"
    behind = length(after_ms / 1_000 + WORK_BEHIND_S / (slots or usable))
    return f"{behind} behind {WORK_BEHIND_S // 60} min of work {'in its lane' if slots else 'in all lanes'}"
