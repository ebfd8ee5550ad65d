"""Tasks: submit, read, list, cancel, retry, and why they wait."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import Body, Query, Request
from starlette.datastructures import Headers
from starlette.responses import Response

from headway.core.job import JobId, State
from headway.core.policy.why import why
from headway.core.search import TEXT_MAX, parse_search
from headway.core.timestamps import write_moment
from headway.observability.job_output import OUTPUT, JobOutput, read_output
from headway.security.audited_store import audited
from headway.server.auth import Scope, tenant_for
from headway.server.dry_run import dry_run as preview_task
from headway.server.graph_request import may_refer
from headway.server.pages import PAGE, Cursor, PageLimit, named_tasks, read_cursor, search_page, task_page
from headway.server.problems import Problem
from headway.server.routes.task_lookup import Include, Redact, TaskId, find, owned, read_include
from headway.server.routing import Routes, caller_of, reply
from headway.server.schemas import rest
from headway.server.serializers import estimate_values, task_values, waited_seconds
from headway.server.service import service_of
from headway.server.submit import (
    SUBMIT_PROBLEMS,
    Callback,
    SubmitResult,
    describe_waiting,
    make_call,
    make_calls,
    submit,
    submit_single,
)
from headway.stores.base import JobQuery
from headway.stores.paging import passed_over

AGE_MAX = 100 * 365 * 86_400  # Seconds.
NAMED_MAX = 50  # Task ids in an address: more than 100 parameters are refused.

routes = Routes("tasks", "/api/v1")


@routes.post(
    "/tasks",
    Scope.SUBMIT,
    rest.SubmittedTask,
    "Submit a task",
    status=201,
    also={
        200: (
            rest.SubmittedTask | rest.DryRunReply,
            "The task that an earlier submit with this key made; or that another one stands for. With `dry_run`: what "
            "would happen to the task.",
        )
    },
    problems=SUBMIT_PROBLEMS,
    headers={
        "Idempotency-Key": "In place of `idempotency_key`: a second submit with it gives the same task.",
        "traceparent": "W3C trace context: the task's spans join the caller's trace.",
    },
)
async def submit_task(
    request: Request,
    new: rest.NewTask,
    dry_run: Annotated[bool, Query(description="Check the task, say what would happen to it, keep nothing.")] = False,
) -> Response:
    """Submit a task. It runs as soon as the policy allows.

    A repeated `idempotency_key` returns the same task, with 200 and `Idempotent-Replayed: true`, or 409 if the
    parameters differ. `queue_position` is how many tasks start before it under the current policy.
    """
    return await submit_one(request, new, dry_run=dry_run)


async def submit_one(
    request: Request, new: rest.NewTask, callback: Callback | None = None, *, dry_run: bool = False
) -> Response:
    """Submit the task of a request, and answer with it. ``callback``: the batch that it is a callback of."""
    service = service_of(request)
    given = request.headers
    key, trace = read_header(given, "idempotency-key"), read_header(given, "traceparent")
    refers = may_refer(await request.body())
    caller = caller_of(request)
    wanted = await make_call(
        service, caller, new, key=key, trace=trace, refers=refers, callback=callback, dry_run=dry_run
    )
    if dry_run:
        return reply(await preview_task(service, wanted))
    kept = await submit_single(service, wanted)
    headers = {"Location": f"{request.scope.get('root_path', '')}/api/v1/tasks/{kept.task_id}"}
    if kept.deduplicated and wanted.calls[0].new.idempotency_key is not None:
        headers["Idempotent-Replayed"] = "true"
    return reply(submitted_values(kept), 200 if kept.deduplicated else 201, headers)


@routes.post(
    "/tasks/bulk",
    Scope.SUBMIT,
    rest.SubmittedTasks,
    "Submit up to 1,000 tasks, all or none",
    status=201,
    problems=SUBMIT_PROBLEMS,
    many=True,
)
async def submit_tasks(
    request: Request, requests: Annotated[list[rest.NewTask], Body(min_length=1, max_length=rest.BULK_MAX)]
) -> Response:
    """Submit all of the tasks in one step, or none. A problem names the `index` of the task that has it.

    Tasks may wait for each other: `after` and `$out` then name a task by its `index`. Tasks that do, and name no
    `batch_id`, become members of a batch of their own.
    """
    service = service_of(request)
    refers = may_refer(await request.body())
    wanted = await make_calls(service, caller_of(request), requests, refers=refers)
    return reply({"tasks": [submitted_values(kept) for kept in await submit(service, wanted)]}, 201)


@routes.get("/tasks", Scope.READ, rest.TaskPage, "List tasks, newest first", problems=("tenant_mismatch", "config"))
async def list_tasks(
    request: Request,
    task_id: Annotated[
        list[rest.Name] | None,
        Query(max_length=NAMED_MAX, description="Only these, in this order; with no other filter."),
    ] = None,
    status: Annotated[list[rest.TaskStatus] | None, Query(description="One or several.")] = None,
    priority: Annotated[rest.Name | None, Query()] = None,
    task_type: Annotated[rest.Name | None, Query()] = None,
    tenant: Annotated[rest.Name | None, Query()] = None,
    worker: Annotated[rest.Name | None, Query(description="The worker that runs it, or ran it last.")] = None,
    age: Annotated[float | None, Query(ge=0, le=AGE_MAX, description="At least this many seconds old.")] = None,
    age_max: Annotated[float | None, Query(ge=0, le=AGE_MAX, description="At most this many seconds old.")] = None,
    limit: PageLimit = PAGE,
    cursor: Cursor = None,
    include: Include = None,
    history: Annotated[bool, Query(description="Also tasks that the store has moved to its history.")] = True,
    q: Annotated[
        str | None,
        Query(
            max_length=TEXT_MAX,
            description="A search such as `state:failed task:reports.* after:2h`, in place of other filters. Fields "
            "are state, task, lane, tenant, worker, why, error, id, after and before. Other words must be in the "
            "arguments.",
        ),
    ] = None,
    explain: Annotated[
        bool, Query(description="Add `why`, `estimate` and `queue_position` to tasks that wait, computed by class.")
    ] = False,
    redact: Redact = False,
) -> Response:
    """List tasks, without their place in the queue unless `explain` asks for it.

    A page of a search may hold fewer tasks than `limit`, or none, and still have a cursor: it ends after 20,000 tasks
    that it had to read, or 100,000 if the store itself looks for the words. `searched` counts them.

    A page may hold fewer than `limit` tasks: it ends at 4 MiB. Parameters and results of more than 1 KiB are null, and
    `omitted` names them, unless `include` asks for them.
    """
    service, caller = service_of(request), caller_of(request)
    before, shown = None if cursor is None else read_cursor(cursor), read_include(include)
    hide = redact or caller.browser
    if task_id is not None:
        if any(value is not None for value in (status, priority, task_type, tenant, worker, age, age_max)):
            raise Problem("invalid", "task_id: give task ids, or other filters, not both")
        if q is not None:
            raise Problem("invalid", "task_id: give task ids, or a search, not both")
        ids = [JobId(one) for one in task_id]
        return await named_tasks(
            service, ids, tenant=caller.tenant, start=before or 0, most=limit, include=shown, hide=hide
        )
    if q is not None:
        if any(value is not None for value in (status, priority, task_type, tenant, worker, age, age_max)):
            raise Problem("invalid", "q: give a search, or other filters, not both")
        search = parse_search(q, (await service.queue_view.fresh()).now_at)
        return await search_page(
            service,
            search,
            tenant=caller.tenant,
            before=before,
            most=limit,
            include=shown,
            history=history,
            explain=explain,
            hide=hide,
        )
    now_at = (await service.queue_view.fresh()).now_at if age is not None or age_max is not None else 0
    query = JobQuery(
        states=tuple(State(name) for name in status or ()),
        task=task_type,
        lane=priority,
        tenant=tenant_for(caller, tenant),
        worker_id=worker,
        submitted_before_at=None if age is None else now_at - int(age * 1_000),
        submitted_after_at=None if age_max is None else now_at - int(age_max * 1_000),
        before=before,
        limit=limit,
    )
    return await task_page(service, query, include=shown, history=history, explain=explain, hide=hide)


@routes.get("/tasks/{task_id}", Scope.READ, rest.TaskReply, "Look at a task")
async def get_task(request: Request, task_id: TaskId, redact: Redact = False) -> Response:
    """Return a task, and while it waits also its place, an estimate and the reasons."""
    service, caller = service_of(request), caller_of(request)
    job = await find(service, caller, task_id)
    if redact or caller.browser:
        job = replace(job, payload=(await service.redactor()).arguments_of(job))
    estimate, reasons = await describe_waiting(service, job)
    (upstreams,) = await (await service.store()).upstreams([job.job_id])
    values = task_values(job, await service.policy())
    values |= {
        "after": [upstream.source for upstream in upstreams],
        "queue_position": None if estimate is None else estimate.position,
        "estimate": estimate_values(estimate),
        "why": [reason.as_values() for reason in reasons],
    }
    return reply(values)


@routes.delete(
    "/tasks/{task_id}",
    Scope.SUBMIT,
    (rest.Cancelled, "It is cancelled."),
    "Cancel a task",
    also={202: (rest.Cancelled, "It runs, and was asked to stop.")},
    problems=("illegal_move",),
)
async def cancel_task(request: Request, task_id: TaskId) -> Response:
    """Cancel a waiting task at once, or ask a running task to stop. A task that has ended stays as it is (409)."""
    service = service_of(request)
    await find(service, caller_of(request), task_id)
    state = (await service.client.cancel([JobId(task_id)], who=operator_of(request)))[0]
    if state is None:
        raise await service.client.absent(JobId(task_id))
    if state.ended and state is not State.CANCELLED:
        raise Problem("illegal_move", f"task {task_id} is {state.value} already and cannot be cancelled")
    answer: dict[str, Any] = {"task_id": task_id, "status": state.value}
    if state is State.CANCELLED:
        return reply(answer)
    job = await service.client.get(JobId(task_id))
    asked_at = job.cancel_requested_at or job.seen_at
    return reply(answer | {"cancel_requested_at": write_moment(asked_at)}, 202)


@routes.post("/tasks/{task_id}/retry", Scope.SUBMIT, rest.TaskState, "Run a task again", problems=("illegal_move",))
async def retry_task(request: Request, task_id: TaskId) -> Response:
    """Queue a task again that has ended and is not `completed`. Its counts are reset."""
    service, caller = service_of(request), caller_of(request)
    await find(service, caller, task_id)
    service.quotas.submit(caller)
    state = await service.client.retry_one(JobId(task_id), who=operator_of(request))
    return reply({"task_id": task_id, "status": state.value})


@routes.post("/tasks/cancel", Scope.SUBMIT, rest.TaskStates, "Cancel up to 1,000 tasks")
async def cancel_tasks(request: Request, wanted: rest.TaskIds) -> Response:
    """Cancel waiting tasks at once, and ask running tasks to stop. Tasks that have ended stay as they are."""
    return await _change(request, wanted, "cancel")


@routes.post("/tasks/retry", Scope.SUBMIT, rest.TaskStates, "Run up to 1,000 tasks again")
async def retry_tasks(request: Request, wanted: rest.TaskIds) -> Response:
    """Queue tasks again that have ended and are not `completed`. Their counts are reset."""
    service_of(request).quotas.submit(caller_of(request), len(wanted.task_ids))
    return await _change(request, wanted, "retry")


async def _change(request: Request, wanted: rest.TaskIds, verb: Literal["cancel", "retry"]) -> Response:
    """Cancel or retry the tasks that the caller may use. Commands of a lesser scope are audited apart."""
    service, caller = service_of(request), caller_of(request)
    ids = [JobId(task_id) for task_id in wanted.task_ids]
    own = await owned(service, caller, ids)
    who = caller.who if caller.operates or caller.tenant is None else None
    store = audited(await service.store(), who, group="operators" if caller.operates else "callers")
    states = await (store.cancel(own) if verb == "cancel" else store.retry(own)) if own else []
    found = dict(zip(own, states, strict=True))
    return reply({"tasks": [{"task_id": task_id, "status": found.get(task_id)} for task_id in ids]})


@routes.get("/tasks/{task_id}/why", Scope.READ, rest.Why, "Why a task waits, or has waited")
async def get_why(request: Request, task_id: TaskId) -> Response:
    """Return why a task waits, most important reason first, or how long it waited for each reason if it has started."""
    service = service_of(request)
    job = await find(service, caller_of(request), task_id)
    store = await service.store()
    diagnosis = await store.diagnose_job(job.job_id)
    return reply(
        {
            "task_id": task_id,
            "reasons": [reason.as_values() for reason in why(diagnosis, await service.policy())] if diagnosis else [],
            "passed_over": await passed_over(store.find, job),
            "waited_seconds": {} if diagnosis is None else waited_seconds(diagnosis),
        }
    )


@routes.get("/tasks/{task_id}/output", Scope.READ, rest.ProgramOutput, "The latest output of a program")
async def get_output(request: Request, task_id: TaskId) -> Response:
    """Return the latest output of a program, up to 16 Ki characters. `result` has all of it."""
    service = service_of(request)
    job = await find(service, caller_of(request), task_id)
    found = await (await service.store()).read(OUTPUT, job.job_id)
    output = read_output(found[0].body) if found else None
    return reply(output or JobOutput(job.epoch, []))


@routes.get(
    "/tasks/{task_id}/estimate", Scope.READ, rest.EstimateReply, "When a task will begin", problems=("illegal_move",)
)
async def get_estimate(request: Request, task_id: TaskId) -> Response:
    """Return when a waiting task is expected to start. A task that has started has no estimate (409)."""
    service = service_of(request)
    job = await find(service, caller_of(request), task_id)
    estimate, _ = await describe_waiting(service, job)
    values = estimate_values(estimate)
    if values is None:
        raise Problem("illegal_move", f"task {task_id} does not wait any more: it is {job.state.value}")
    return reply(values)


def operator_of(request: Request) -> str | None:
    """Return the operator who sent the request, or None for a client, which the audit does not record."""
    caller = caller_of(request)
    return caller.who if caller.operates else None


def read_header(headers: Headers, name: str) -> str | None:
    """Read a header of at most 255 characters. Raises ``Problem``."""
    value = headers.get(name)
    if value is not None and not 0 < len(value) <= rest.TEXT_MAX:
        raise Problem("invalid", f"{name}: expected 1 to {rest.TEXT_MAX} characters")
    return value


def submitted_values(kept: SubmitResult) -> dict[str, Any]:
    """Return a stored task with its place."""
    return {
        "task_id": kept.task_id,
        "status": kept.state.value,
        "queue_position": kept.position,
        "estimate": estimate_values(kept.estimate, kept.position),
        "deduplicated": kept.deduplicated,
    }
