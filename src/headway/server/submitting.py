"""From a caller's body to a job in the store, and what the caller is told of its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headway.client.task import Call
from headway.core.errors import HeadwayError
from headway.core.job import Job, State, Submitted
from headway.core.policy.position import place, position, waiting_in
from headway.core.policy.why import Reason, why
from headway.server.auth import Caller, tenant_for
from headway.server.problems import Problem, problem_of
from headway.server.service import Service
from headway.server.shapes import NewTask


@dataclass(frozen=True, slots=True)
class Kept:
    """A task that the store has: its id, where it stands, and its place while it waits."""

    task_id: str
    state: State
    position: int | None
    deduplicated: bool = False


async def make_call(service: Service, caller: Caller, new: NewTask, *, key: str | None, trace: str | None) -> Call[Any]:
    """Check a body against the catalogue and the policy. Raises what does not fit."""
    if key is not None and new.idempotency_key not in (None, key):
        raise Problem("invalid", "Idempotency-Key and idempotency_key differ; give one of them")
    task = await service.known.find(new.task_type)
    if not task.options.persist:
        raise Problem("not_stored", f"task {task.name} is transient: over HTTP there would be nothing to ask for")
    await service.app.follow_policy()
    asked: dict[str, Any] = {
        "priority": new.priority,
        "needs": new.required_capabilities,
        "timeout": new.timeout_seconds,
        "max_retries": new.max_retries,
        "idempotency_key": key or new.idempotency_key,
        "tenant": tenant_for(caller, new.tenant),
        "duration": new.duration,
        "run_after": new.run_after,
        "expires": new.expires,
        "trace_id": trace or new.trace_id,
    }
    return task.using(**{name: value for name, value in asked.items() if value is not None}).call_named(new.parameters)


async def submit(service: Service, calls: Sequence[Call[Any]]) -> list[Kept]:
    """Keep all or none. Gives each with its place."""
    answers = await service.app.submit_calls(calls)
    if len(calls) == 1:
        keep = _known_kept if answers[0].deduplicated else _one_kept
        return [await keep(service, calls[0], answers[0])]
    known = await _known(service, [answer for answer in answers if answer.deduplicated])
    snapshot = await service.snapshots.fresh()
    behind: dict[Any, int] = {}
    kept: list[Kept] = []
    for call, answer in zip(reversed(calls), reversed(answers), strict=True):
        if answer.deduplicated:
            job = known.get(answer.job_id)
            kept.append(Kept(answer.job_id, State.QUEUED if job is None else job.state, None, deduplicated=True))
            continue
        key = call.new.class_key
        behind[key] = behind.get(key, 0) + 1
        fair = any(view.fair for view in snapshot.classes if view.key == key)
        ahead = max(0, waiting_in(snapshot, key) - behind[key])
        kept.append(
            Kept(answer.job_id, State.QUEUED, None if fair else place(snapshot, service.app.policy, key, ahead=ahead))
        )
    return kept[::-1]


async def _one_kept(service: Service, call: Call[Any], answer: Submitted) -> Kept:
    """Place one new job: last of its class, unless tenants share that."""
    snapshot = await service.snapshots.fresh()
    key = call.new.class_key
    if any(view.fair for view in snapshot.classes if view.key == key):
        standing = await (await service.store()).standing(answer.job_id)
        found = None if standing is None else position(standing, service.app.policy)
        return Kept(answer.job_id, State.QUEUED, 0 if found is None else found)
    ahead = max(0, waiting_in(snapshot, key) - (0 if call.new.delay_ms or call.new.due_at else 1))
    return Kept(answer.job_id, State.QUEUED, place(snapshot, service.app.policy, key, ahead=ahead))


async def _known_kept(service: Service, _: Call[Any], answer: Submitted) -> Kept:
    """Place the job that stands in for one."""
    job = (await (await service.store()).get([answer.job_id]))[0]
    if job is None:
        return Kept(answer.job_id, State.QUEUED, None, deduplicated=True)
    place_now = (await stand(service, job))[0]
    return Kept(job.job_id, job.state, place_now, deduplicated=True)


async def _known(service: Service, answers: Sequence[Submitted]) -> dict[str, Job]:
    if not answers:
        return {}
    jobs = await (await service.store()).get([answer.job_id for answer in answers])
    return {job.job_id: job for job in jobs if job is not None}


async def stand(service: Service, job: Job) -> tuple[int | None, list[Reason]]:
    """Say where a job stands: its place and why it waits; nothing once it has begun."""
    if job.state is not State.QUEUED:
        return None, []
    standing = await (await service.store()).standing(job.job_id)
    if standing is None:
        return None, []
    policy = await service.policy()
    return position(standing, policy), why(standing, policy)


def at_index(index: int, error: HeadwayError | Problem) -> Problem:
    """Say which of a list does not fit."""
    problem = problem_of(error) if isinstance(error, HeadwayError) else error
    problem.facts["index"] = index
    problem.detail = f"task {index}: {problem.detail}"
    return problem
