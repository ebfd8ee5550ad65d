"""The health of a worker's runners: the age of their pulse and of their last renewal, and how many slots are busy."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from headway.metrics.text_format import Labels, MetricFamily, gauges
from headway.worker.lease_renewer import LeaseRenewer
from headway.worker.slot_table import SlotTable


class RunnerHealth(NamedTuple):
    """The state of a running runner, as its parent knows it."""

    renewer: LeaseRenewer
    slot_table: SlotTable
    slots: int
    dead_after: float


def not_ready(health: RunnerHealth | None) -> str | None:
    """Return why a runner cannot run a job now, or None."""
    if health is None:
        return "a runner is not up"
    if time.monotonic() - health.renewer.renewed > health.dead_after:
        return "the leases could not be renewed"
    return None


def worker_families(runners: Sequence[RunnerHealth | None]) -> list[MetricFamily]:
    """Return the metrics of this worker alone, for each runner."""
    now = time.monotonic()
    up: list[tuple[Labels, RunnerHealth]] = [
        ((("runner", str(number)),), health) for number, health in enumerate(runners) if health is not None
    ]
    renewed = [(at, now - health.renewer.renewed) for at, health in up]
    pulses = [(at, max(0.0, now - pulse)) for at, health in up if (pulse := health.slot_table.pulse())]
    return [
        gauges("headway_worker_runners", "Runners that are up.", [((), len(up))]),
        gauges("headway_worker_slots", "Slots of this runner.", [(at, health.slots) for at, health in up]),
        gauges("headway_worker_running", "Slots filled.", [(at, len(health.slot_table.held())) for at, health in up]),
        gauges("headway_worker_renewed_age_seconds", "Since its leases were renewed.", renewed),
        gauges("headway_worker_pulse_age_seconds", "Since its loop was seen to turn.", pulses),
    ]
