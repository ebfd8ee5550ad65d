"""Jobs that end when the jobs that they wait for have ended.

A job may have at most ``EDGES_MAX`` edges, so the body of a larger chord waits for joins. A join also wakes a job that
``self.replace`` has replaced by a chain, group or chord.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headway.client.context import Context
from headway.client.job_template import RETRIES_MAX
from headway.client.links import Link
from headway.client.task import Call, Task
from headway.core.errors import Snooze
from headway.core.job import JobId, State
from headway.core.workflow import EDGES_MAX, EdgeRule
from headway.integrations.celery.adoption.attempt import kept_message

if TYPE_CHECKING:
    from headway.integrations.celery.adoption.adoption import Adoption

JOIN = "celery.join"
SAFETY_SECONDS = 3_600.0  # A job that waits for a join looks after this time whether it was woken.
RUNNING_SECONDS = 0.1  # How soon a join looks again at a job whose attempt has not ended yet.


def declare_join(adoption: Adoption) -> Task[Any, Any, Any]:
    """Declare the task of joins."""

    def join(context: Context, wakes: str | None = None) -> None:
        """Wake a job that waits for other jobs, or only end after them."""
        if wakes is not None:
            wake(adoption, wakes, context.job_id)

    declared: Task[Any, Any, Any] = adoption.headway.task(
        name=JOIN, context=True, executor="thread", max_retries=RETRIES_MAX
    )(join)
    return declared


def wake(adoption: Adoption, job_id: str, waker: str) -> None:
    """Make a job run now if it waits for this waker."""
    (job,) = adoption.app.backend.find_jobs([job_id])
    if job is not None and job.state is State.EXECUTING:  # It has sent the tasks that it waits for, and ends soon.
        raise Snooze(RUNNING_SECONDS, f"job {job_id} still runs")
    kept = None if job is None or job.state.ended else kept_message(adoption, job_id)
    if kept is not None and kept.waker == waker:
        adoption.on_store(lambda store: store.reschedule([JobId(job_id)], now=True))


def bounded(adoption: Adoption, links: Sequence[Link]) -> tuple[Link, ...]:
    """Return links that one job may have: more than ``EDGES_MAX`` are replaced by links to joins."""
    while len(links) > EDGES_MAX:
        parts = [links[start : start + EDGES_MAX] for start in range(0, len(links), EDGES_MAX)]
        links = [Link(make_join(adoption, part), EdgeRule.RUN) for part in parts]
    return tuple(links)


def must_wait(adoption: Adoption, waker: str) -> bool:
    """Return whether the jobs before a waker have not ended."""
    (join,) = adoption.app.backend.find_jobs([waker])
    return join is not None and join.held


def make_join(adoption: Adoption, links: Sequence[Link], wakes: str | None = None) -> Call[Any]:
    """Return the call of a join. Workers of the queue of its first source run it."""
    first = links[0].source
    task = adoption.join if isinstance(first, str) else adoption.join.using(needs=first.new.needs)
    return task.call(wakes)._replace(links=tuple(link._replace(rule=EdgeRule.RUN) for link in links))
