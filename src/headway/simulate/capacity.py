"""The workers of a simulation: their slots and offers over time, and what an operator pauses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from headway.core.errors import ConfigError
from headway.core.policy.document import LimitRule, Policy
from headway.core.policy.enforced import PauseSet
from headway.core.policy.units import parse_length, plural
from headway.core.suggest import did_you_mean
from headway.core.worker import ANY_TASK
from headway.simulate.job import SimulatedJob

SLOTS_MAX = 100_000  # Slots of one worker, to catch a number that was meant for something else.
WORKERS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class SlotStep:
    """From ``from_ms`` on a worker has this many slots."""

    from_ms: int
    slots: int


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """One worker: its slots over time, its offers, and from when until when it runs. None is the end."""

    name: str
    steps: tuple[SlotStep, ...]
    offers: tuple[str, ...] = (ANY_TASK,)
    until_ms: int | None = None
    reserved: int | None = None  # How many slots it reserves, if its operator has chosen a number.

    @property
    def from_ms(self) -> int:
        return self.steps[0].from_ms


@dataclass(frozen=True, slots=True)
class TimedPause:
    """A pause from one moment to another, where None is the end. ``where`` is its place in a capacity file."""

    paused: PauseSet
    from_ms: int = 0
    until_ms: int | None = None
    where: str = ""


@dataclass(frozen=True, slots=True)
class Capacity:
    """All workers, pauses, and the limits that tasks declare themselves."""

    workers: tuple[WorkerPlan, ...]
    pauses: tuple[TimedPause, ...] = ()
    declared: dict[str, LimitRule] = field(default_factory=dict)

    @property
    def slots(self) -> int:
        """Return the slots of all workers together, each at its largest."""
        return sum(max(step.slots for step in worker.steps) for worker in self.workers)

    def slot_ms(self, until_ms: int) -> int:
        """Return the time of all slots together up to a moment."""
        return sum(_slot_ms(worker, until_ms) for worker in self.workers)

    def describe(self) -> str:
        """Return the workers as text: ``2 workers of 8 slots``."""
        sizes = sorted({tuple(step.slots for step in worker.steps) for worker in self.workers})
        workers = plural(len(self.workers), "worker")
        if len(sizes) == 1 and len(sizes[0]) == 1:
            return f"{workers} of {plural(sizes[0][0], 'slot')}"
        return f"{workers} with up to {self.slots:,} slots"


def same_workers(slots: int, workers: int, needs: Iterable[str] = ()) -> Capacity:
    """Return equal workers that offer what every job needs. Raises ``ConfigError``."""
    return stepped_workers([SlotStep(0, slots * workers)], workers, needs)


def stepped_workers(steps: Sequence[SlotStep], workers: int, needs: Iterable[str] = ()) -> Capacity:
    """Return workers that share the slots of each step evenly. The first ones have the rest."""
    if not 1 <= workers <= WORKERS_MAX:
        raise ConfigError(f"--workers must be from 1 to {WORKERS_MAX:,}, got {workers}")
    for step in steps:
        if not workers <= step.slots <= SLOTS_MAX * workers and step.slots != 0:
            raise ConfigError(
                f"{workers} workers need 1 to {SLOTS_MAX:,} slots each, got {step.slots:,} slots for all of them"
            )
    offers = (*sorted(set(needs)), ANY_TASK)
    return Capacity(
        tuple(
            WorkerPlan(
                f"worker-{number + 1:0{len(str(workers))}d}",
                tuple(
                    SlotStep(step.from_ms, step.slots // workers + (number < step.slots % workers)) for step in steps
                ),
                offers,
            )
            for number in range(workers)
        )
    )


def no_such_lane(lane: str, policy: Policy, name: str) -> str:
    """Return the message for a lane that a policy does not have."""
    return f"{name} has no lane {lane!r}{did_you_mean(lane, list(policy.lanes))} (lanes: {', '.join(policy.lanes)})"


def parse_steps(text: str) -> list[SlotStep]:
    """Read a list of steps such as ``0h:8,2h:16``. Raises ``ConfigError``."""
    steps: list[SlotStep] = []
    for part in text.split(","):
        moment, colon, slots = part.strip().partition(":")
        try:
            if not colon or not slots.strip().isdigit():
                raise ValueError("expected TIME:SLOTS")
            steps.append(SlotStep(parse_length(float(moment) if _is_float(moment) else moment), int(slots)))
        except ValueError as problem:
            raise ConfigError(
                f"--capacity takes a file or steps such as 0h:8,2h:16; got {part.strip()!r}: {problem}"
            ) from None
    if steps[0].from_ms != 0 or any(a.from_ms >= b.from_ms for a, b in pairwise(steps)):
        raise ConfigError(f"--capacity needs steps in order, the first one at 0, got {text!r}")
    return steps


def check_pauses(capacity: Capacity, policy: Policy, name: str) -> None:
    """Raise ``ConfigError`` for the first pause in a capacity file whose lane a policy does not have."""
    for pause in capacity.pauses:
        for lane in pause.paused.lanes:
            if pause.where and lane not in policy.lanes:
                raise ConfigError(f"{pause.where}: {no_such_lane(lane, policy, name)}")


def all_needs(jobs: Iterable[SimulatedJob]) -> set[str]:
    """Return every capability that some job needs."""
    return {need for job in jobs for need in job.needs}


def _is_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _slot_ms(worker: WorkerPlan, until_ms: int) -> int:
    until_ms = until_ms if worker.until_ms is None else min(until_ms, worker.until_ms)
    ends = [*(step.from_ms for step in worker.steps[1:]), until_ms]
    return sum(
        max(0, min(end, until_ms) - step.from_ms) * step.slots for step, end in zip(worker.steps, ends, strict=True)
    )
