"""Submit the tasks of a request, and find their place in the queue."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from headway.client.links import Link, merge_links
from headway.client.task import Call, Task
from headway.core.diagnostics import AHEAD_COUNTED, JobDiagnostics
from headway.core.errors import BadEdge, ConfigError, HeadwayError, PayloadTooLarge, StoreUnavailable
from headway.core.job import PAYLOAD_VERSION, ClassKey, JobRecord, State, SubmitReply
from headway.core.policy.document import Policy
from headway.core.policy.estimate import Estimate, EstimateRequest, Forecast, estimate_request, next_place
from headway.core.policy.positions import QueuePositions, position
from headway.core.policy.why import Reason, why
from headway.core.suggest import cut
from headway.core.workflow import BatchRecord, EdgeRule
from headway.estimates.forecaster import estimate_held
from headway.observability.traces import taken_trace
from headway.server.auth import Principal, tenant_for
from headway.server.graph_request import batch_of, check_sources, link, resolve_indexes, with_references
from headway.server.problems import DETAIL_MAX, Problem, problem_of
from headway.server.routing import check_depth
from headway.server.schemas.rest import BULK_EDGES_MAX, NO_CONTROLS, NewTask
from headway.server.service import Service
from headway.stores.paging import get_in_steps, without_values

# The codes of the problems that a submit may raise.
SUBMIT_PROBLEMS = (
    "idempotency_conflict", "bad_arguments", "payload", "payload_too_large", "config", "tenant_mismatch",
    "queue_full", "not_stored", "store_full", "cycle", "bad_edge", "batch_not_found", "batch_closed",
)  # fmt: skip


class SubmitResult(NamedTuple):
    """A stored task: its id, its state, and its place while it waits.

    The place is exact. The estimate may be shared with neighbours.
    """

    task_id: str
    state: State
    position: int | None
    estimate: Estimate | None = None
    deduplicated: bool = False


class CallSet(NamedTuple):
    """The calls of one request, and the batch that they join. ``tenant``: of calls that have none."""

    calls: list[Call[Any]]
    batch: BatchRecord | None = None
    tenant: str | None = None


class Callback(NamedTuple):
    """A batch, and the event of it that a task is run by."""

    batch: BatchRecord
    rule: EdgeRule


async def make_call(
    service: Service,
    caller: Principal,
    new: NewTask,
    *,
    key: str | None,
    trace: str | None,
    refers: bool,
    callback: Callback | None = None,
    dry_run: bool = False,
) -> CallSet:
    """Return the call of a body, checked against the catalogue and the policy. Raises ``Problem`` or an error.

    ``refers``: its parameters may contain references to results. ``callback``: the batch that it is a callback of.
    ``dry_run``: it does not count for the token's rate.
    """
    if key is not None and new.idempotency_key not in (None, key):
        raise Problem("invalid", "Idempotency-Key and idempotency_key differ; give one of them")
    service.quotas.submit(caller, spend=not dry_run)
    if key is not None and not re.match(NO_CONTROLS, key):
        raise Problem("invalid", "Idempotency-Key must not contain control characters")
    await service.app.follow_policy()
    task = await service.known.find(new.task_type)
    trace = taken_trace(trace) or new.trace_id
    call = _call(service, caller, new, task, key or new.idempotency_key, trace, refers=refers)
    if callback is None:
        return await _joined(service, caller, [new], [call])
    own = Link(callback.batch.batch_id, callback.rule)
    joined = await _joined(service, caller, [new], [call._replace(links=merge_links(call.links, (own,)))])
    return joined._replace(tenant=joined.tenant or callback.batch.tenant)


async def make_calls(
    service: Service,
    caller: Principal,
    requests: Sequence[NewTask],
    *,
    refers: bool,
    batch: BatchRecord | None = None,
) -> CallSet:
    """Return the calls of all bodies. Raises ``Problem`` with the index of the first that is wrong.

    ``refers``: as in ``make_call``. ``batch``: a batch that all of them join.
    """
    service.quotas.submit(caller, len(requests))
    await service.app.follow_policy()
    tasks = {name: await service.known.find(name) for name in {new.task_type for new in requests}}
    calls: list[Call[Any]] = []
    edges = 0
    try:
        for new in requests:  # One by one: the number of calls is the index of the one that fails.
            task = tasks[new.task_type]
            call = _call(service, caller, new, task, new.idempotency_key, new.trace_id, refers=refers)
            check_depth(call.new.payload)
            edges += len(call.links)
            if edges > BULK_EDGES_MAX:
                raise BadEdge(f"the tasks of one request wait for more than {BULK_EDGES_MAX:,} others; use a batch")
            calls.append(call)
    except (HeadwayError, Problem) as error:
        problem = problem_of(error) if isinstance(error, HeadwayError) else error
        problem.facts["index"] = len(calls)
        problem.detail = cut(f"task {len(calls)}: {problem.detail}", DETAIL_MAX)
        raise problem from None
    return await _joined(service, caller, requests, calls, batch)


async def _joined(
    service: Service,
    caller: Principal,
    requests: Sequence[NewTask],
    calls: list[Call[Any]],
    batch: BatchRecord | None = None,
) -> CallSet:
    """Return the calls of a request with what they wait for and the batch that they join."""
    if any(call.links for call in calls):
        calls = resolve_indexes(calls)
        await check_sources(service, caller, calls)
    batch = batch or await batch_of(service, caller, requests)
    return CallSet(calls, batch, None if batch is None else batch.tenant)


def _call(
    service: Service,
    caller: Principal,
    new: NewTask,
    task: Task[Any, Any, Any],
    key: str | None,
    trace: str | None,
    *,
    refers: bool,
) -> Call[Any]:
    if not task.options.persist:
        raise Problem("not_stored", f"task {task.name} is transient, so HTTP clients cannot submit it")
    task = service.variants.of(task, new)
    tenant = tenant_for(caller, new.tenant)
    if key or trace or tenant or new.run_after or new.expires:  # Values of a single job are not cached.
        task = task.using(
            idempotency_key=key, trace_id=trace, tenant=tenant, run_after=new.run_after, expires=new.expires
        )
    call = task.call_named(with_references(new.parameters) if refers else new.parameters)
    if new.after or call.links:
        call = link(call, new)
    size, most = len(call.new.payload) - len(PAYLOAD_VERSION), service.app.settings.http_payload_max
    if size > most:
        raise PayloadTooLarge(
            f"task {task.name}: the parameters take {size:,} bytes, more than the {most:,} allowed over HTTP "
            "(http_payload_max); keep large data elsewhere and pass a reference",
            task=task.name,
            size=size,
        )
    return call


async def submit_single(service: Service, wanted: CallSet) -> SubmitResult:
    """Submit a single call. Return the task with its place. A problem of its options names no index of a list."""
    try:
        [kept] = await submit(service, wanted)
    except ConfigError as problem:
        problem.facts.pop("index", None)
        raise
    return kept


async def submit(service: Service, wanted: CallSet) -> list[SubmitResult]:
    """Submit all of the calls or none. Return each task with its place."""
    calls, batch, tenant = wanted
    if batch is not None or any(call.links for call in calls):
        batch_id = None if batch is None else batch.batch_id
        jobs = await service.app.submitter.submit_graph(calls, batch_id=batch_id, tenant=tenant)
        return await _kept(service, calls, [SubmitReply(job.id, job.deduplicated) for job in jobs])
    if len(calls) == 1:
        answer = await service.submit_batcher.submit(calls[0])
        keep = _known_kept if answer.deduplicated else _one_kept
        return [await keep(service, calls[0], answer)]
    answers = await service.app.submitter.submit(calls)
    return await _kept(service, calls, answers)


async def _kept(service: Service, calls: Sequence[Call[Any]], answers: Sequence[SubmitReply]) -> list[SubmitResult]:
    """Return the places of a bulk. Its jobs are the last of their classes, in order, unless they wait for others."""
    is_last = [not (answer.deduplicated or call.links) for call, answer in zip(calls, answers, strict=True)]
    known = await _known(service, [answer for answer, last in zip(answers, is_last, strict=True) if not last])
    queue = await service.queue_view.fresh()
    classes: dict[ClassKey, list[int]] = {}  # The call that made each new job.
    terms, found_in = None, list[int]()
    for index, call in enumerate(calls):
        if is_last[index]:
            if call.terms is not terms:  # Most jobs have the same class as the one before.
                terms, found_in = call.terms, classes.setdefault(call.new.class_key, [])
            found_in.append(index)
    forecast = await service.forecast_of(queue.snapshot)
    placed: dict[int, SubmitResult] = {}
    for key, indexes in classes.items():
        view = queue.views.get(key)
        # With fair shares the places differ by job, so none is returned rather than a wrong one.
        if view is None or not view.fair:
            waiting = 0 if view is None else view.waiting
            places = _spread(queue.places, key, waiting, indexes)
            made = _foresee_last(forecast, [calls[index] for index in indexes], max(0, waiting - len(indexes)))
            for index, place, estimate in zip(indexes, places, made, strict=True):
                placed[index] = SubmitResult(answers[index].job_id, State.QUEUED, place, estimate)
            service.scores.record_many([answers[index].job_id for index in indexes], key.lane, made, queue.now_at)
    return [
        placed[index]
        if index in placed
        else SubmitResult(
            answer.job_id,
            known[answer.job_id].state if answer.job_id in known else State.QUEUED,
            None,
            deduplicated=answer.deduplicated,
        )
        for index, answer in enumerate(answers)
    ]


def _spread(places: QueuePositions, key: ClassKey, waiting: int, indexes: Sequence[int]) -> list[int]:
    """Return the places of the last jobs of a class. The first and last are exact, the others interpolated."""
    count = len(indexes)
    first, last = places.of(key, max(0, waiting - count)), places.of(key, max(0, waiting - 1))
    steps = max(1, count - 1)
    return [first + (last - first) * number // steps for number in range(count)]


async def _one_kept(service: Service, call: Call[Any], answer: SubmitReply) -> SubmitResult:
    """Return the place of one new job. It is the last of its class, unless tenants share the class."""
    queue = await service.queue_view.fresh()
    key = call.new.class_key
    view = queue.views.get(key)
    forecast = await service.forecast_of(queue.snapshot)
    if view is not None and view.fair:
        diagnosis = await (await service.store()).diagnose_job(answer.job_id)
        found = None if diagnosis is None else estimate_from(diagnosis, forecast, service.app.policy)
        if found is None:  # It has started already.
            return SubmitResult(answer.job_id, State.QUEUED, 0, Estimate(0.0, 0.0, 0, "learned"))
        service.scores.record(answer.job_id, key.lane, found, queue.now_at)
        return SubmitResult(answer.job_id, State.QUEUED, found.position, found)
    waiting = 0 if view is None else view.waiting
    ahead = max(0, waiting - (0 if call.new.delay_ms or call.new.due_at else 1))
    found = _foresee(forecast, call, ahead)
    service.scores.record(answer.job_id, key.lane, found, queue.now_at)
    return SubmitResult(answer.job_id, State.QUEUED, queue.places.of(key, ahead), found)


def _foresee(forecast: Forecast, call: Call[Any], ahead: int) -> Estimate:
    """Return the estimate for a new job that is the last of its class."""
    new = call.new
    if new.limits or forecast.rule_index.may_limit(new.task, new.tenant):  # The forecast is older than the job.
        return Estimate()
    due_at = new.due_at or (forecast.queue.now_at + new.delay_ms if new.delay_ms else None)
    return forecast.near(EstimateRequest(new.class_key, new.task, None, ahead, due_at=due_at))


def _foresee_last(forecast: Forecast, calls: Sequence[Call[Any]], first: int) -> list[Estimate]:
    """Return the estimates for the last jobs of a class. Similar neighbours share one."""
    found: list[Estimate] = []
    terms, until, made = None, first, Estimate()
    for ahead, call in enumerate(calls, first):
        if call.terms is not terms or ahead >= until or call.new.limits:
            terms, until, made = call.terms, next_place(ahead), _foresee(forecast, call, ahead)
        found.append(made)
    return found


def estimate_from(diagnosis: JobDiagnostics, forecast: Forecast, policy: Policy) -> Estimate | None:
    """Return the estimate of a job from the shared forecast, with its current place. None if it has started."""
    place = position(diagnosis, policy)
    if place is None:
        return None
    made = forecast.of(estimate_request(diagnosis, forecast.queue))
    # The store counts up to a bound. Beyond it, the place is an estimate too.
    place = place if diagnosis.ahead < AHEAD_COUNTED else made.position
    return Estimate(made.p50, made.p90, place, made.basis)


async def _known_kept(service: Service, _: Call[Any], answer: SubmitReply) -> SubmitResult:
    """Return the place of the job that a duplicate submit refers to."""
    job = (await _known(service, [answer])).get(answer.job_id)
    if job is None:
        return SubmitResult(answer.job_id, State.QUEUED, None, deduplicated=True)
    found = (await describe_waiting(service, job))[0]
    return SubmitResult(job.job_id, job.state, None if found is None else found.position, found, deduplicated=True)


async def _known(service: Service, answers: Sequence[SubmitReply]) -> dict[str, JobRecord]:
    if not answers:
        return {}
    try:
        found = get_in_steps(service.client.read_jobs, [answer.job_id for answer in answers])
        return {job.job_id: without_values(job) async for job in found if job is not None}
    except StoreUnavailable:  # The history is unavailable. The submit has succeeded anyway.
        return {}


async def describe_waiting(service: Service, job: JobRecord) -> tuple[Estimate | None, list[Reason]]:
    """Return the estimate of a waiting job and the reasons why it waits. Nothing if it has started."""
    if job.state is not State.QUEUED:
        return None, []
    diagnosis = await (await service.store()).diagnose_job(job.job_id)
    if diagnosis is None:
        return None, []
    found = await estimate_waiting(service, diagnosis)
    return found, why(diagnosis, await service.policy())


async def estimate_waiting(service: Service, diagnosis: JobDiagnostics) -> Estimate | None:
    """Return when a waiting job will start, and remember it for the accuracy of estimates. None if it has started."""
    job, forecast = diagnosis.job, await service.forecast_of(diagnosis.queue.snapshot)
    if job.held:
        return await estimate_held(await service.store(), forecast, diagnosis)
    found = estimate_from(diagnosis, forecast, await service.policy())
    if found is not None:
        service.scores.record(job.job_id, job.lane, found, diagnosis.queue.now_at)
    return found
