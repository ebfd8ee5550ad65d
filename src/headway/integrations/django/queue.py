"""The Headway app of a Django project: its tasks, and submits to its database."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar, Unpack

from asgiref.sync import sync_to_async
from django.core import mail
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError, connections, transaction

from headway.client.app import Headway
from headway.client.client import Client
from headway.client.job import Job
from headway.client.submit import AfterCommit, GraphOptions, Submitter
from headway.client.task import Call, Task
from headway.core.diagnostics import QueueDiagnostics
from headway.core.errors import JobNotFound, NotAStore, StoreError
from headway.core.job import JobId, State, SubmitReply
from headway.core.policy.why import unknown_tasks
from headway.integrations.django.address import WORKS, borrowing_store, store_address
from headway.integrations.django.conf import Options, database, read_options
from headway.integrations.django.connections import keep_connections_fresh
from headway.integrations.django.loading import adopt_django_tasks, import_task_module
from headway.integrations.django.middleware import request_trace
from headway.integrations.django.portal import ProjectPortal
from headway.integrations.django.sqlite import (
    ThreadConnection,
    is_sqlite,
    joined_store,
    lend_connection,
    migrate,
    path_of,
)
from headway.integrations.django.views import WITH_VIEWS
from headway.runtime.immediate import run_now
from headway.stores.base import Stats, Store
from headway.stores.open import open_store, with_transient

R = TypeVar("R")
T = TypeVar("T")


class Queue(Headway):
    """The tasks of a Django project. Jobs are in the project's database and are submitted on Django's connection.

    The settings are ``IOQUEUE_*``, then ``HEADWAY_*`` variables and ``headway.toml``. With SQLite, and inside the
    transaction of a test, every blocking method uses the connection of the calling thread, not only a submit.
    """

    def __init__(self) -> None:
        options, _ = read_options()
        self._placed = False
        self._joined: tuple[Any, Store] | None = None
        self.in_worker = False  # Whether this process runs jobs.
        self._not_found: set[str] = set()  # Tasks named by jobs that no module declares.
        super().__init__(**worker_settings(options))
        self.client = Client(self._make_callers_store, lambda: self.settings.history)
        # Methods run in the calling thread, on its connection, with SQLite and in the transaction of a test.
        self.portal = ProjectPortal(
            lambda: is_sqlite() or in_transaction_of_a_test(), lend_connection, lambda: self.client.close(), in_tests
        )
        self.submitter: Submitter = TransactionSubmitter(self, after_commit)

    def configure(self, **settings: Any) -> None:
        """Override settings of the project, as a worker's parent does."""
        self._placed = self._placed or "store" in settings
        super().configure(**settings)

    def make_store(self) -> Store:
        """Return an unopened store for a worker, in the project's database, which in tests is the test database.

        With SQLite, other processes submit and read on Django's connection instead.
        """
        address = self.settings.store if self._placed else store_address()
        return open_store(address, self.settings.namespace, transient=self.settings.transient_store)

    def import_task(self, name: str) -> Task[Any, Any, Any] | None:
        """Return a task, or None. Import the project's module that declares the task, if needed."""
        if name not in self.tasks and name not in self._not_found:
            if import_task_module(name):
                adopt_django_tasks()
                if self.in_worker:
                    keep_connections_fresh(self)
            if name not in self.tasks:
                self._not_found.add(name)
        return self.tasks.get(name)

    def submit(self, call: Call[Any]) -> str | None:
        """Submit a call in the current transaction of Django's connection. Return the id of its job.

        Return None for a transient job, because the store cannot answer questions about it.
        """
        answer = self._submit_in_transaction(call)
        return None if answer is None else answer.job_id

    def enqueue(self, call: Call[R]) -> Job[R]:
        """Submit a call in the current transaction of Django's connection. Return a handle on its job."""
        answer = self._submit_in_transaction(call)
        return call.handle(answer or SubmitReply(call.new.job_id, False))

    async def aenqueue(self, call: Call[R]) -> Job[R]:
        """Submit from a coroutine, in the thread where Django keeps the connection of the request."""
        enqueue: Callable[[Call[R]], Job[R]] = self.enqueue
        return await sync_to_async(enqueue, thread_sensitive=True)(call)

    def _submit_in_transaction(self, call: Call[Any]) -> SubmitReply | None:
        """Submit a call on Django's connection. A transient job goes to its own store after the commit."""
        alias = database()
        connection = connections[alias]
        if connection.vendor not in WITH_VIEWS:
            raise ImproperlyConfigured(f"the database {alias!r} is {connection.vendor}. {WORKS}")
        connection.ensure_connection()
        trace = request_trace.get()
        if trace is not None and call.new.trace_id is None:
            call = call._replace(task=call.task.using(trace_id=trace))
        if not call.new.persist:
            # Best effort: an error after the commit is logged, not raised.
            transaction.on_commit(
                lambda: self._in_use(lambda: self.submitter.submit_blocking([call])), alias, robust=True
            )
            return None
        connection.validate_no_broken_transaction()
        if call.links:
            (job,) = self.submit_graph([call])
            return SubmitReply(job.id, job.deduplicated)
        if is_sqlite():
            try:
                (answer,) = self.submitter.submit_by([call], lambda jobs: run_now(self._joined_store().submit(jobs)))
            except StoreError as problem:  # As any other statement on this connection raises.
                raise OperationalError(str(problem)) from problem
            return answer
        with connection.wrap_database_errors:
            (answer,) = self._in_use(lambda: self.submitter.submit_blocking([call], connection.connection))
        return answer

    def submit_graph(self, calls: Sequence[Call[Any]], **options: Unpack[GraphOptions]) -> list[Job[Any]]:
        """Submit calls and the calls that they wait for in the current transaction of Django's connection."""
        submit = partial(self.submitter.submit_graph_by, calls, **options)
        connection = connections[database()]
        connection.ensure_connection()
        connection.validate_no_broken_transaction()
        if is_sqlite():
            try:
                return submit(lambda graph: run_now(self._joined_store().submit_graph(graph)))
            except StoreError as problem:
                raise OperationalError(str(problem)) from problem
        with connection.wrap_database_errors:
            return self._in_use(lambda: submit(lambda graph: self.submitter.store_graph(graph, connection.connection)))

    async def asubmit(self, call: Call[Any]) -> str | None:
        """Submit from a coroutine, in the thread where Django keeps the connection of the request."""
        return await sync_to_async(self.submit, thread_sensitive=True)(call)

    def read_stats(self) -> Stats:
        return self._in_use(self.stats)

    def unknown_tasks(self) -> list[str]:
        """Return the tasks of waiting jobs that the workers do not have."""

        async def queue() -> QueueDiagnostics:
            return await (await self.client.store()).diagnose()

        return unknown_tasks(self._in_use(lambda: self.portal.run(queue())))

    def why(self, job_id: str) -> list[str]:
        """Return why a job waits, the binding reason first. The list is empty while the job's transaction is open."""
        try:
            return [reason.text for reason in self._in_use(self.job(job_id).why)]
        except JobNotFound:
            return []

    def cancel_jobs(self, job_ids: Sequence[str], *, who: str | None = None) -> list[State | None]:
        """Cancel jobs. Return the state of each afterwards."""
        ids = [JobId(job_id) for job_id in job_ids]
        return self._in_use(lambda: self.portal.run(self.client.cancel(ids, who=who)))

    def retry_jobs(self, job_ids: Sequence[str], *, who: str | None = None) -> list[State | None]:
        """Queue ended jobs again. Return the state of each afterwards."""
        ids = [JobId(job_id) for job_id in job_ids]
        return self._in_use(lambda: self.portal.run(self.client.retry(ids, who=who)))

    def resume_all(self) -> None:
        """Resume everything that is paused."""
        self._in_use(self.resume)

    def migrate(self) -> list[int]:
        """Migrate Headway's own tables to this release. Return the numbers of the migrations that ran."""
        if is_sqlite():
            self._joined = None  # Its cache may belong to an earlier file.
            return migrate(database())
        migrate_store = self.make_store().abilities.migrate
        if migrate_store is None:
            raise NotAStore("the store cannot be migrated")
        return self.portal.run(migrate_store())

    def _make_callers_store(self) -> Store:
        """Return the store for submits and reads. With SQLite all threads share one."""
        if is_sqlite():
            return with_transient(self._joined_store(), self.settings.transient_store)
        on_own_loop = asyncio._get_running_loop() is self.portal.started
        if in_tests() and not on_own_loop and not ThreadConnection(database()).is_here:  # A coroutine of a test.
            from headway.integrations.django.testing import callers_store

            return callers_store(self)
        if in_transaction_of_a_test():
            return with_transient(borrowing_store(database(), self.settings.namespace), self.settings.transient_store)
        return self.make_store()

    def _joined_store(self) -> Store:
        place = (database(), path_of(database()), self.settings.namespace)
        if self._joined is None or self._joined[0] != place:
            self._joined = place, joined_store(database(), self.settings.namespace)
        return self._joined[1]

    def _in_use(self, work: Callable[[], T]) -> T:
        """Run a function that uses the store. In tests close the client, because Django drops the test database."""
        try:
            return work()
        finally:
            if in_tests():
                self.portal.run(self.client.close())


class TransactionSubmitter(Submitter):
    """Submits graphs in the current transaction of Django's connection."""

    def __init__(self, app: Queue, after_commit: AfterCommit) -> None:
        super().__init__(app, after_commit)
        self._queue = app

    def submit_graph_blocking(
        self,
        calls: Sequence[Call[Any]],
        connection: object | None = None,
        **options: Unpack[GraphOptions],
    ) -> list[Job[Any]]:
        return self._queue.submit_graph(calls, **options)

    async def submit_graph(
        self,
        calls: Sequence[Call[Any]],
        connection: object | None = None,
        **options: Unpack[GraphOptions],
    ) -> list[Job[Any]]:
        return await sync_to_async(self._queue.submit_graph, thread_sensitive=True)(calls, **options)


def in_tests() -> bool:
    """Return whether Django's test environment is set up."""
    return hasattr(mail, "outbox")


def in_transaction_of_a_test() -> bool:
    """Return whether this thread is in a test's transaction, whose changes no other connection can see."""
    return in_tests() and ThreadConnection(database()).in_atomic_block


def after_commit(action: Callable[[], None]) -> None:
    """Run a function once the transaction of the last write is committed, and never if it is rolled back."""
    connection = ThreadConnection(database())
    if is_sqlite() and not connection.is_here:
        return  # A coroutine cannot see the transaction of its connection. What is not remembered is only read again.
    if connection.joins if is_sqlite() else in_transaction_of_a_test():
        connection.after_commit(action)
    else:
        action()


def worker_settings(options: Options) -> dict[str, Any]:
    """Return a project's settings as the settings of a worker."""
    return {
        "namespace": options.namespace,
        "transient_store": options.transient_store,
        "slots": options.max_concurrency,
        "reserved": 0,  # IOQueue documents that all slots serve all jobs.
        "heartbeat": options.heartbeat,
        "dead_after": options.visibility_timeout_sec,
        "grace": options.grace_sec,
        "poll": options.poll_interval_sec,
    }


def is_of_django_tasks(task: Task[Any, Any, Any]) -> bool:
    return getattr(inspect.unwrap(task.fn), "of_django_tasks", False)


_lock = threading.Lock()
_queue: Queue | None = None


def queue() -> Queue:
    """Return the queue of this project. The first call in a process creates it."""
    global _queue
    with _lock:
        if _queue is None:
            _queue = Queue()
        return _queue
