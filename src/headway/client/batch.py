"""Batches: counted sets of jobs, and the results of their members."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import partial
from inspect import Parameter
from itertools import islice
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    get_args,
    get_origin,
)

from headway.client.client import BATCH
from headway.client.codec import Signature, decode_result
from headway.client.context import current
from headway.client.graph import new_batch_id
from headway.client.job import Job
from headway.client.links import Link, Reference, merge_links
from headway.client.members import MemberEnding, MemberReader, read_members
from headway.client.portal import Portal, blocking
from headway.client.settings import seconds
from headway.client.task import Call, Task, check_task
from headway.core.errors import BatchNotFound, ConfigError, JobError, ResultTimeout
from headway.core.job import FAILED_STATES, RETRYABLE_STATES, JobId, State
from headway.core.workflow import BatchId, BatchRecord, EdgeRule, Graph, NewBatch
from headway.security.audit import PYTHON
from headway.security.audited_store import audited
from headway.stores.base import JOB_CHANNEL, Store

if TYPE_CHECKING:
    from headway.client.app import Headway

Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")

RETRIED = 50  # Members that one verb queues again: PostgreSQL needs 0.2 ms for each, and its other writers wait.
CHECK_EVERY = 1.0  # Seconds between looks at a batch while no job changes,
CHECK_PAUSE = 0.05  # and at least this long between two looks while many do.
RETRY_MODES = ("failed", "failed_and_after", "all")
RetryMode = Literal["failed", "failed_and_after", "all"]


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """The members of a batch in numbers. ``ends_in``: the expected seconds until all have ended, None if unknown."""

    total: int
    held: int
    waiting: int
    running: int
    completed: int
    failed: int
    cancelled: int
    ends_in: float | None = None
    status: str = "running"  # open | running | completed | failed | cancelled

    @property
    def ended(self) -> bool:
        """Whether all members have ended and no more can be added."""
        return self.status not in ("open", "running")


class Failure(NamedTuple):
    """A member of a batch that did not complete."""

    job: Job[Any]
    state: State
    error: JobError | None
    reason: str | None


class Results(Generic[R]):
    """The results of a batch's completed members, in the order of adding. Reads them in pages.

    Iterate with ``for`` in plain functions and with ``async for`` in async ones. A task that runs after a batch
    receives this as its first argument.
    """

    __slots__ = ("_app", "_kind", "_read", "batch_id")

    def __init__(self, app: Headway, batch_id: str, kind: Any = Any, read: MemberReader | None = None) -> None:
        self._app = app
        self._kind = kind
        self._read = read  # How a worker without a store reads.
        self.batch_id = BatchId(batch_id)

    async def __aiter__(self) -> AsyncIterator[R]:
        async for job in self._members((State.COMPLETED,)):
            yield decode_result(job.result, self._kind)

    def __iter__(self) -> Iterator[R]:
        return self._app.portal.iterate(aiter(self))

    async def afailures(self) -> AsyncIterator[Failure]:
        """Yield the members that ended without completing, in the order of adding."""
        async for job in self._members(RETRYABLE_STATES):
            yield Failure(self._app.job(job.job_id), job.state, job.error, job.reason)

    def failures(self) -> Iterator[Failure]:
        """Blocking twin of ``afailures``."""
        return self._app.portal.iterate(self.afailures())

    async def _members(self, states: tuple[State, ...]) -> AsyncIterator[MemberEnding]:
        read = self._read or partial(read_members, await self._app.client.store())
        cursor = None
        while True:
            members, cursor = await read(self.batch_id, states, cursor)
            for member in members:
                yield member
            if cursor is None:
                return

    @staticmethod
    def from_argument(annotation: Any, value: Any) -> Results[Any]:
        """Return the results that a task receives as an argument. ``annotation`` is for example ``Results[int]``."""
        context = current.get()
        if context is None or not isinstance(value, dict) or not isinstance(value.get("batch_id"), str):
            raise ValueError("the results of a batch can only be passed by batch.then")
        kind = next(iter(get_args(annotation)), Any)
        return Results(context.app, value["batch_id"], kind, context.runtime.read_members)

    def __repr__(self) -> str:
        return f"Results({self.batch_id!r})"


class Batch(Generic[R]):
    """A counted set of jobs that can grow while any member lives. Other jobs can wait for it.

    ``app.batch`` returns one. Inside ``with`` the batch is open. At the end of the block it is closed, and ends once
    all its members have ended. If the block raises, a batch that it created is cancelled.
    Every method exists twice: ``add`` blocks, ``aadd`` is async.
    """

    def __init__(
        self,
        app: Headway,
        new: NewBatch | None,
        batch_id: BatchId | None = None,
        *,
        parent: Batch[Any] | None = None,
    ) -> None:
        self._app = app
        self._new = new
        self._id = batch_id
        self._parent = parent
        self._created = False
        self._tenant = None if new is None else new.tenant
        self._knows_tenant = new is not None and (new.tenant is not None or parent is None)

    @property
    def id(self) -> BatchId:
        """The id of the batch. Raises ``ConfigError`` before the ``with`` block has begun."""
        if self._id is None:
            raise ConfigError("this batch does not exist yet; write `with app.batch(…) as batch:`")
        return self._id

    # ------------------------------------------------------------------ filling

    async def __aenter__(self) -> Batch[R]:
        if self._new is None:
            raise ConfigError(f"batch {self._id} exists already; app.batch(…) makes a new one")
        new = self._new._replace(tenant=await self.atenant())
        reply = await self._app.client.submit_graph(Graph((), new))
        self._id, self._created = reply.batch_id, reply.created
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        store = await self._app.client.store()
        if kind is not None and self._created:
            await store.cancel_batch(self.id)
        else:
            await store.close_batch(self.id)

    def __enter__(self) -> Batch[R]:
        return self._portal.run(self.__aenter__())

    def __exit__(self, *problem: Any) -> None:
        self._portal.run(self.__aexit__(*problem))

    async def aadd(self, calls: Iterable[Call[R]]) -> None:
        """Add jobs, a thousand per round trip. Raises ``BatchClosed`` if the batch has ended.

        Calls that the given calls wait for become members too.
        """
        tenant = await self.atenant()
        for part in _parts(calls):
            await self._app.submitter.submit_graph(part, batch_id=self.id, tenant=tenant)

    def add(self, calls: Iterable[Call[R]]) -> None:
        """Blocking twin of ``aadd``."""
        tenant = self.tenant()
        for part in _parts(calls):
            self._app.submitter.submit_graph_blocking(part, batch_id=self.id, tenant=tenant)

    async def athen(
        self, task: Task[Concatenate[Results[R], Q], S, Any], /, *args: Q.args, **kwargs: Q.kwargs
    ) -> Job[S]:  # fmt: skip
        """Run a task with the results of the batch as its first argument, once all members have completed.

        Raises ``ConfigError`` if the task's first parameter is not annotated with ``Results``: without it, the task
        would receive the id of the batch as a plain object.
        """
        _check_takes_results(task)
        return await self._acallback(task.call(self._out, *args, **kwargs), EdgeRule.CANCEL)

    async def aon_failure(self, task: Task[Q, S, Any], /, *args: Q.args, **kwargs: Q.kwargs) -> Job[S]:
        """Run a task once, when the first member has ended without completing."""
        check_task("on_failure", task)
        return await self._acallback(task.call(*args, **kwargs), EdgeRule.ON_FAILURE)

    async def aon_done(self, task: Task[Q, S, Any], /, *args: Q.args, **kwargs: Q.kwargs) -> Job[S]:
        """Run a task once all members have ended, however they ended."""
        check_task("on_done", task)
        return await self._acallback(task.call(*args, **kwargs), EdgeRule.ON_DONE)

    def then(self, task: Task[Concatenate[Results[R], Q], S, Any], /, *args: Q.args, **kwargs: Q.kwargs) -> Job[S]:
        """Blocking twin of ``athen``."""
        _check_takes_results(task)
        return self._callback(task.call(self._out, *args, **kwargs), EdgeRule.CANCEL)

    def on_failure(self, task: Task[Q, S, Any], /, *args: Q.args, **kwargs: Q.kwargs) -> Job[S]:
        """Blocking twin of ``aon_failure``."""
        check_task("on_failure", task)
        return self._callback(task.call(*args, **kwargs), EdgeRule.ON_FAILURE)

    def on_done(self, task: Task[Q, S, Any], /, *args: Q.args, **kwargs: Q.kwargs) -> Job[S]:
        """Blocking twin of ``aon_done``."""
        check_task("on_done", task)
        return self._callback(task.call(*args, **kwargs), EdgeRule.ON_DONE)

    @property
    def _out(self) -> Results[R]:
        return cast("Results[R]", Reference(self.id))

    async def _acallback(self, call: Call[S], rule: EdgeRule) -> Job[S]:
        linked, tenant = self._linked(call, rule), await self.atenant()
        return (await self._app.submitter.submit_graph((linked,), tenant=tenant))[0]

    def _callback(self, call: Call[S], rule: EdgeRule) -> Job[S]:
        return self._app.submitter.submit_graph_blocking((self._linked(call, rule),), tenant=self.tenant())[0]

    def _linked(self, call: Call[S], rule: EdgeRule) -> Call[S]:
        return call._replace(links=merge_links(call.links, (Link(self.id, rule),)))

    async def atenant(self) -> str | None:
        """Return the tenant of members that have none. Reads the store once, if only the id of the batch is known."""
        if not self._knows_tenant:
            self._tenant = (await self.arecord()).tenant if self._parent is None else await self._parent.atenant()
            self._knows_tenant = True
        return self._tenant

    def tenant(self) -> str | None:
        """Blocking twin of ``atenant``."""
        return self._tenant if self._knows_tenant else self._portal.run(self.atenant())

    def of_member(self, tenant: str | None) -> Batch[R]:
        """Return this handle for a member of the batch: what it adds has its tenant."""
        self._tenant, self._knows_tenant = tenant, True
        return self

    # ------------------------------------------------------------------ reading

    async def arecord(self) -> BatchRecord:
        """Read the store's record, for Headway's own code. Applications use ``astatus``."""
        (batch,) = await (await self._app.client.store()).get_batches([self.id])
        if batch is None:
            raise BatchNotFound.of(self.id)
        return batch

    async def astatus(self) -> BatchStatus:
        """Count the members by state. Raises ``BatchNotFound``."""
        return batch_status(await self.arecord())

    def results(self) -> Results[R]:
        """Return the results of the completed members, read page by page while you iterate."""
        return Results(self._app, self.id)

    async def ajoin(self, timeout: float | timedelta | None = None) -> BatchStatus:
        """Wait until the batch has ended. Raises ``ResultTimeout``."""
        store = await self._app.client.store()
        changes = store.subscribe(f"{JOB_CHANNEL}{uuid.uuid4()}")
        try:
            async with asyncio.timeout(None if timeout is None else seconds(timeout, "timeout")):
                while not (status := await self.astatus()).ended:
                    await changes.wait(CHECK_EVERY)
                    await asyncio.sleep(CHECK_PAUSE)
                return status
        except TimeoutError:
            raise ResultTimeout(f"batch {self.id} has not ended within {timeout} s; it continues") from None
        finally:
            changes.close()

    # ------------------------------------------------------------------ changing

    async def acancel(self) -> BatchStatus:
        """Cancel the batch: no member starts any more, and running members are asked to stop."""
        batch = await audited(await self._app.client.store(), PYTHON).cancel_batch(self.id)
        if batch is None:
            raise BatchNotFound.of(self.id)
        return batch_status(batch)

    async def aclose(self) -> BatchStatus:
        """Close the batch, so that it ends once all its members have ended. ``with`` does this."""
        batch = await (await self._app.client.store()).close_batch(self.id)
        if batch is None:
            raise BatchNotFound.of(self.id)
        return batch_status(batch)

    async def aretry(self, mode: RetryMode = "failed_and_after") -> int:
        """Queue members again and return how many. Jobs that wait for the batch wait for it again.

        ``failed`` retries the failed members alone, ``failed_and_after`` also restores the jobs that were cancelled
        because of them, and ``all`` retries every member that did not complete.
        """
        batch = await self.arecord()
        client = self._app.client
        return await retry_batch(await client.store(), partial(client.retry, who=PYTHON), batch.batch_id, mode)

    status = blocking(astatus)
    record = blocking(arecord)
    join = blocking(ajoin)
    cancel = blocking(acancel)
    close = blocking(aclose)
    retry = blocking(aretry)

    @property
    def _portal(self) -> Portal:
        return self._app.portal

    def __repr__(self) -> str:
        return f"Batch({self._id!r})"


class RetryJobs(Protocol):
    """Queues ended jobs again, as ``Store.retry`` does."""

    async def __call__(self, job_ids: Sequence[JobId], *, alone: bool) -> list[State | None]: ...


def _check_takes_results(task: object) -> None:
    """Raise ``ConfigError`` unless a task can take the results of a batch as its first argument."""
    check_task("then", task)
    signature: Signature | None = getattr(task, "signature", None)
    if signature is None:
        return
    first = next(iter(signature.parameters.values()), None)
    annotation = Parameter.empty if first is None else first.annotation
    if (get_origin(annotation) or annotation) in (Results, dict, object, Any):
        return
    found = "no parameter" if first is None else f"the parameter {str(first)!r}"
    raise ConfigError(
        f"then passes the results of the batch as the first argument, but {task!r} has {found}; annotate its first "
        "parameter with headway.Results, and import Results where the module runs, not only for type checkers"
    )


async def retry_batch(store: Store, retry: RetryJobs, batch_id: BatchId, mode: str) -> int:
    """Queue members of a batch again, page by page. Return how many. ``mode``: as in ``Batch.aretry``."""
    if mode not in RETRY_MODES:
        raise ConfigError(f"a batch is retried by failed, failed_and_after or all, got {mode!r}")
    states = RETRYABLE_STATES if mode == "all" else FAILED_STATES
    beyond = retried = 0
    while page := await store.members(batch_id, beyond=beyond, states=states, limit=RETRIED):
        beyond = page[-1].seq
        after = await retry([job.job_id for job in page], alone=mode == "failed")
        retried += sum(state is State.QUEUED for state in after)
    return retried


def _parts(calls: Iterable[Call[R]]) -> Iterator[list[Call[R]]]:
    """Yield calls in lists of as many as one round trip takes."""
    remaining = iter([calls] if isinstance(calls, Call) else calls)
    while part := list(islice(remaining, BATCH)):
        yield part


def batch_status(batch: BatchRecord) -> BatchStatus:
    return BatchStatus(**{field.name: getattr(batch, field.name) for field in fields(BatchStatus)})


def new_batch(name: str, key: str | None, tenant: str | None, parent: Batch[Any] | None) -> NewBatch:
    """Return the batch that ``app.batch`` creates. Raises ``ConfigError`` for a name or key that is no text."""
    for what, value in (("name", name), ("key", key), ("tenant", tenant)):
        if value is not None and (not isinstance(value, str) or not 0 < len(value) <= 255):
            raise ConfigError(f"the {what} of a batch must be text of 1 to 255 characters, got {value!r}")
    return NewBatch(new_batch_id(), name, key, tenant, None if parent is None else parent.id)
