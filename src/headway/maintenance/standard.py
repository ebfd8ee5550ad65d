"""The chores that keep a store in order: one list for workers, embedded workers and servers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from headway.maintenance.archiver import Archiver
from headway.maintenance.clock_jumps import ClockJumpDetector
from headway.maintenance.cron import CronSubmitter
from headway.maintenance.loop import Chore, ChoreFunction
from headway.maintenance.preemption import EVERY as PREEMPTION_EVERY
from headway.maintenance.preemption import Preemptor
from headway.maintenance.pruner import Pruner
from headway.maintenance.reaper import Reaper
from headway.maintenance.wait_sampling import sample_waits
from headway.metrics.documents import STALE, MetricsCompactor
from headway.metrics.recorder import PUBLISH_EVERY, MetricsRecorder
from headway.metrics.series import record_series
from headway.policy_store.current import CurrentPolicy
from headway.stores.base import Store

ARCHIVE_EVERY = 2.0  # Seconds; finished jobs leave Redis soon, and an empty read costs one command.
CRON_EVERY = 5.0  # Seconds until a failed read is repeated; otherwise the chore returns when the next tick is due.
SERIES_RETRY = 10.0  # Seconds until a failed sample is repeated; otherwise the chore returns when the next one is due.
WAIT_SAMPLE_EVERY = 1.0  # Seconds; the resolution of "waited for" in a job's history.


def standard_chores(
    store: Store,
    in_force: CurrentPolicy,
    recorder: MetricsRecorder,
    *,
    heartbeat: float,
    dead_after: float,
    knows_task: Callable[[str], bool],
    idle_since: Callable[[], float] = lambda: 0.0,
    sessions: bool = True,
    has_workers: Callable[[], bool] = lambda: True,
    archiver: Archiver | None = None,
) -> list[Chore]:
    """Build the chores of a process.

    A cron fires only in a process where ``knows_task`` accepts its task. ``has_workers`` is false while a server has no
    workers. The server then leaves sampling and preemption to processes that have some. See ``sample_waits`` for
    ``idle_since`` and ``Preemptor`` for ``sessions``.
    """

    def while_serving(chore: ChoreFunction) -> ChoreFunction:
        async def run() -> float | None:
            return await chore() if has_workers() else None

        return run

    jumps = ClockJumpDetector(dead_after)
    chores = [
        Chore("reaper", heartbeat / 3, Reaper(store, in_force, dead_after, recorder=recorder, jumps=jumps)),
        Chore("pruner", 2 * heartbeat, Pruner(store, in_force, jumps)),
        Chore("cron", CRON_EVERY, CronSubmitter(store, knows_task)),
        Chore("wait_sampling", WAIT_SAMPLE_EVERY, while_serving(partial(sample_waits, store, in_force, idle_since))),
        Chore("preemption", PREEMPTION_EVERY, while_serving(Preemptor(store, in_force, sessions=sessions))),
        Chore("metrics", PUBLISH_EVERY, lambda: recorder.publish(store)),
        Chore("metrics_compaction", STALE / 5, MetricsCompactor(store)),
        Chore("series", SERIES_RETRY, partial(record_series, store)),
    ]
    if archiver is not None:
        chores.append(Chore("archiver", ARCHIVE_EVERY, archiver, own_outage=True))
    return chores
