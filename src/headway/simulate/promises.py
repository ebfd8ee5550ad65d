"""Check whether a policy's guarantees held in a replay."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence

from headway.core.policy.document import Policy
from headway.core.policy.guarantees import Pool, guarantees_of
from headway.simulate.capacity import Capacity
from headway.simulate.outcome import LanePromise


class PromiseCheck:
    """Compares what each lane was served while a job waited with what the policy guarantees the lane.

    A lane that is sure of ``slots`` after ``after_ms`` must have been served that much for the rest of the wait. One
    job in each slot may come on top, as ``headway policy check`` says.
    """

    def __init__(self, policy: Policy, capacity: Capacity, jobs: int) -> None:
        least = min((step.slots for worker in capacity.workers for step in worker.steps), default=0)
        self._total = capacity.slots
        self._served: Counter[str] = Counter()  # By lane: the work of all its starts in milliseconds.
        self._longest_ms = 0
        self._at_arrival = array("q", [0]) * jobs
        steady = all(len(worker.steps) == 1 and worker.until_ms is None for worker in capacity.workers)
        sure = guarantees_of(policy, Pool(policy, least, len(capacity.workers))) if least and steady else ()
        self._promises = {
            one.lane: LanePromise(one.lane, one.slots, one.after_ms)
            for one in sure
            if one.after_ms is not None and one.slots
        }
        if capacity.pauses or policy.ladder.rungs:  # These hold lanes back, whatever they are sure of.
            self._promises = {}

    def arrived(self, first: int, end: int, lanes: Sequence[str]) -> None:
        """Note how much the lane of each new job has been served so far."""
        for index in range(first, end):
            self._at_arrival[index] = self._served[lanes[index]]

    def is_late(self, lane: str, waited_ms: int) -> bool:
        """Return whether a job that now starts has waited for longer than until its lane was sure of slots."""
        promise = self._promises.get(lane)
        return promise is not None and waited_ms > promise.after_ms

    def check(self, index: int, lane: str, waited_ms: int) -> None:
        """Check what the lane of a late job has been served while it waited."""
        promise = self._promises[lane]
        served_ms = self._served[lane] - self._at_arrival[index] + self._total * self._longest_ms
        late_ms = round(waited_ms - promise.after_ms - served_ms / promise.slots)
        if late_ms > 0:
            promise.jobs += 1
            promise.late_ms = max(promise.late_ms, late_ms)

    def served(self, lane: str, run_ms: int) -> None:
        """Note a start."""
        self._served[lane] += run_ms
        if run_ms > self._longest_ms:
            self._longest_ms = run_ms

    def found(self) -> list[LanePromise]:
        """Return every promise that was checked."""
        return list(self._promises.values())
