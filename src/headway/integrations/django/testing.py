"""Runs a project's jobs inside its tests with ``run_jobs()``, without a worker.

The jobs use the connection of the test, and so the transaction that ``TestCase`` rolls back.
"""

from __future__ import annotations

import inspect
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable, Sequence
from typing import Any, cast

from asgiref.sync import async_to_sync, sync_to_async
from django.db import DatabaseError, connections, transaction

from headway.integrations.django.address import borrowing_store
from headway.integrations.django.conf import database
from headway.integrations.django.flush import let_time_pass
from headway.integrations.django.queue import Queue, is_of_django_tasks, queue
from headway.integrations.django.sqlite import is_sqlite, joined_store
from headway.runtime.immediate import run_now
from headway.stores.base import Store, Subscription
from headway.stores.notifications import LocalSubscription
from headway.testing.harness import Drained, drained
from headway.testing.runner import DrainingRunner
from headway.worker.active_job import ActiveJob
from headway.worker.executors.inline import InlineExecutor
from headway.worker.executors.thread import CallOutcome, ThreadExecutor

ATTEMPTS_MAX = 10_000  # More attempts in one run mean jobs that never end.


def run_jobs(*, advance: bool = False, raise_errors: bool = False) -> Drained:
    """Run every due job, and the jobs that these submit, until none is left. Return the outcome.

    Claims, retries and reports are those of a worker. Plain functions run in the thread of the test, one after
    another. An ``async def`` runs on an event loop, and its ORM calls in the thread of the test.
    ``advance``: run delayed jobs and retries too, as if the time until then had passed.
    ``raise_errors``: stop at the first exception of a task and raise it once the attempt is recorded.
    Callbacks of the transaction send transient jobs. Run the callbacks first, with ``captureOnCommitCallbacks``.
    Raises ``RuntimeError`` after 10,000 attempts.
    """
    return async_to_sync(arun_jobs)(advance=advance, raise_errors=raise_errors)


async def arun_jobs(*, advance: bool = False, raise_errors: bool = False) -> Drained:
    """Run every due job, from an ``async def`` test; see ``run_jobs``."""
    app = queue()
    store = _CallersStore(await sync_to_async(_make_store)(app))
    runner = _CallersRunner(
        app,
        cast(Store, store),
        slots=1,
        attempts_max=ATTEMPTS_MAX,
        raise_errors=raise_errors,
        move_on=store.let_pass if advance else lambda _: False,
    )
    await runner.run_out()
    if any(map(is_of_django_tasks, app.tasks.values())):
        await sync_to_async(_send_finished)([report.job_id for report in runner.reports if report.state.ended])
    return drained(runner)


def callers_store(app: Queue) -> Store:
    """Return a store for coroutines, on Django's connection of the thread of the test."""
    return cast(Store, _CallersStore(_make_store(app)))


def _make_store(app: Queue) -> Store:
    """Return a store on Django's connection of this thread."""
    alias, namespace = database(), app.settings.namespace
    return joined_store(alias, namespace) if is_sqlite() else borrowing_store(alias, namespace)


def _send_finished(job_ids: Sequence[str]) -> None:
    from headway.integrations.django.backend import send_finished

    for job_id in job_ids:
        send_finished(job_id)


class _CallersStore:
    """Runs every method of a store in the thread of the test, one at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.abilities = store.abilities
        self._pass_ms = 0  # Milliseconds to let pass before the next call.

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._store, name)
        if not inspect.iscoroutinefunction(getattr(Store, name, None)):
            return verb

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await sync_to_async(self._call, thread_sensitive=True)(verb, args, kwargs)

        return call

    def _call(self, verb: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self._pass_ms:
            let_time_pass(database(), self._pass_ms)
            self._pass_ms = 0
        return run_now(verb(*args, **kwargs))

    def let_pass(self, ms: int) -> bool:
        """Advance the time of waiting jobs before the next call."""
        self._pass_ms = ms + 1
        return True

    def subscribe(self, _: str) -> Subscription:
        """Return a subscription without notifications, because a run never waits for new jobs."""
        return LocalSubscription(lambda _: None)


class _CallersRunner(DrainingRunner):
    """Runs plain functions in the thread of the test, so that they use its connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._executors["thread"] = self._executors["process"] = _CallersExecutor(1)


class _CallersExecutor(ThreadExecutor):
    async def call(self, job: ActiveJob) -> Any:
        if job.task.is_async:  # A task of executor ``process``, which would run its own loop.
            return await InlineExecutor().call(job)
        return await super().call(job)

    def _begin(self, loop: AbstractEventLoop, work: Callable[[], CallOutcome]) -> Future[CallOutcome]:
        return loop.create_task(sync_to_async(_keeping_transaction, thread_sensitive=True)(work))


def _keeping_transaction(work: Callable[[], CallOutcome]) -> CallOutcome:
    """Run a task in a savepoint, so that a failed statement does not break the test's transaction.

    After such a failure PostgreSQL undoes the task's writes. In a worker, without an outer transaction, they stay.
    """
    alias = database()
    if not connections[alias].in_atomic_block:
        return work()
    savepoint = transaction.savepoint(using=alias)
    outcome = work()
    try:
        transaction.savepoint_commit(savepoint, using=alias)
    except DatabaseError:
        transaction.savepoint_rollback(savepoint, using=alias)
    return outcome
