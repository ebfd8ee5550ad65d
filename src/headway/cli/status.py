"""``headway status``: everything about one job."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Annotated

from headway.cli import render
from headway.cli.estimate import estimate_values, start_text
from headway.cli.help import flag
from headway.cli.operator import JobReport, Operator
from headway.cli.store_access import (
    HERE,
    JobWord,
    JsonFlag,
    TargetOptions,
    ask,
    find_report,
    history_of,
    reading,
    run,
    watched_store,
    whole_ids,
)
from headway.client.client import Client
from headway.client.job_info import arguments_of, result_of
from headway.client.job_template import RETRIES_MAX
from headway.client.job_values import job_values
from headway.core.errors import JobError
from headway.core.event import Event
from headway.core.job import State
from headway.core.policy.document import Policy
from headway.core.policy.lanes import effective_lane
from headway.core.timestamps import write_moment
from headway.observability.traces import shown_trace

SOURCES_SHOWN = 5  # Jobs and batches that a job waits for; --json has all.


def status(
    job_id: JobWord,
    /,
    *,
    args: Annotated[bool, flag("Show the arguments too.")] = False,
    follow: Annotated[bool, flag("Print events until the job has ended; with --json, one object per line.")] = False,
    json: JsonFlag = False,
    place: TargetOptions = HERE,
) -> None:
    """Show one job: its times, attempts, errors and result.

    Arguments may contain secrets, so they are shown only with --args or --json.
    """
    if follow:
        run(_follow(job_id, place, json=json))
        return

    async def read(operator: Operator) -> tuple[JobReport, Policy]:
        return await find_report(operator, job_id), await operator.policy()

    report, policy = ask(place, read, history=True)
    if json:
        job = report.job
        more = {
            "effective_priority": effective_lane(policy, job, job.seen_at),
            "waited_s": {reason: ms / 1_000 for reason, ms in report.waited_ms.items()},
            "estimate": estimate_values(report.estimate),
            "after": list(report.after),
        }
        render.print_json(job_values(job) | more)
    else:
        _print(report, policy, args=args)


async def _follow(job_id: str, place: TargetOptions, *, json: bool) -> None:
    async with reading(place) as operator:
        (whole,) = await whole_ids(operator, [job_id])
    store = watched_store(place)
    client = Client(lambda: store, lambda: history_of(place, store))
    try:
        async for event in client.events(whole):
            values = {"event": event.kind, "at": write_moment(event.at), "id": event.job_id, **event.data}
            print(render.compact(values) if json else describe(event))
            sys.stdout.flush()
    finally:
        await client.close()


def describe(event: Event) -> str:
    data = event.data
    # The store keeps no time of a progress report, so progress is dated when it is seen.
    at = time.time_ns() // 1_000_000 if event.kind == "progress" else event.at
    match event.kind:
        case "queued" | "released":
            rest = f"{data['task']} in lane {data['lane']}"
        case "started":
            rest = f"attempt {data['attempt']} on {data['worker']}"
        case "progress":
            rest = f"{data['fraction']:.0%}  {data['note'] or ''}"
        case "output":
            stream, lines = data["stream"], data["text"].splitlines()
            return "\n".join(render.clean(f"{render.clock(at)}  {stream:<9} {line}".rstrip()) for line in lines)
        case "retried":
            rest = f"attempt {data['attempt']}: {data['reason']}{_cause(data)}"
        case "finished":
            reason = f" ({data['reason']})" if data["reason"] else ""
            rest = f"{data['status']}{_cause(data) or reason}"
        case _:
            rest = ", ".join(f"{name} {value}" for name, value in data.items())
    return render.clean(f"{render.clock(at)}  {event.kind:<9} {rest}".rstrip())


def _cause(data: dict[str, object]) -> str:
    return f" ({data['error']}: {data.get('message')})" if data.get("error") else ""


def _print(report: JobReport, policy: Policy, *, args: bool) -> None:
    console, job = render.console(), report.job
    console.print(render.facts(_facts(report, policy)))
    if args:
        console.print()
        console.print("Arguments", style="bold")
        named = arguments_of(job) or {}
        console.print(
            render.facts({render.clean(name): render.compact(value) for name, value in named.items()} or {"none": ""})
        )
    if job.history:
        console.print()
        console.print("Attempts that did not complete it", style="bold")
        for attempt in job.history:
            began, took = render.local(attempt.started_at), render.duration(attempt.ended_at - attempt.started_at)
            console.print(render.text(f"{attempt.number}. {began}, {took}, on {attempt.worker_id}: {attempt.reason}"))
            if attempt.error is not None:
                console.print(render.text(f"   {_first_line(attempt.error)}", "red"))
    if job.error is not None and job.error.traceback:
        console.print()
        console.print("Last traceback", style="bold")
        console.print(render.text(job.error.traceback.rstrip(), lines=True), soft_wrap=True)


def _facts(report: JobReport, policy: Policy) -> dict[str, object]:
    """Return what there is to say, leaving out what does not apply. A job in the history alone stands nowhere."""
    job, estimate = report.job, report.estimate
    now_at = job.seen_at
    effective = effective_lane(policy, job, now_at)
    first = next(iter(report.reasons), None)
    waited = [f"{render.duration(ms)} {reason}" for reason, ms in report.waited_ms.items()]
    took_ms = None if job.started_at is None else (job.finished_at or now_at) - job.started_at
    facts: dict[str, object | None] = {
        "job": job.job_id,
        "task": job.task,
        "status": render.status_text(job.state.value),
        "reason": job.reason,
        "error": None if job.error is None else render.text(_first_line(job.error), "red"),
        "lane": job.lane if effective == job.lane else f"{job.lane}, risen to {effective}",
        "duration": job.rung if job.assigned in (None, job.rung) else f"{job.rung}, assigned {job.assigned}",
        "tenant": job.tenant,
        "needs": ", ".join(job.needs) or None,
        "attempts": f"{job.attempts} of {'any number' if job.max_retries == RETRIES_MAX else job.max_retries + 1}",
        "crashes": job.crashes or None,
        "timeout": render.duration(job.timeout_ms),
        "batch": job.batch_id,
        "after": _after(report.after),
        "submitted": render.moment(job.submitted_at, now_at),
        "due": render.moment(job.due_at, now_at),
        "waiting since": render.moment(job.eligible_at, now_at) if job.state is State.QUEUED else None,
        "starts": None if estimate is None else start_text(estimate),
        "waits because": None if first is None else f"{first.code}: {first.text}",
        "had waited": ", ".join(waited) or None,
        "started": render.moment(job.started_at, now_at),
        "finished": render.moment(job.finished_at, now_at),
        "took" if job.state.ended else "running for": None if took_ms is None else render.duration(took_ms),
        "expires": None if job.state.ended else render.moment(job.expires_at, now_at),
        "cancel asked": render.moment(job.cancel_requested_at, now_at),
        "worker": job.worker_id,
        "progress": None if job.progress is None else f"{job.progress:.0%}  {job.note or ''}".rstrip(),
        "result": render.compact(result_of(job)) if job.state is State.COMPLETED else None,
        "result error": job.result_error,
        "idempotency key": job.idempotency_key,
        "unique key": job.unique_key,
        "trace id": job.trace_id and shown_trace(job.trace_id, job.job_id),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _after(sources: Sequence[str]) -> str | None:
    """Write the first sources of a job, and how many more there are."""
    more = f" and {len(sources) - SOURCES_SHOWN} more" if len(sources) > SOURCES_SHOWN else ""
    return ", ".join(sources[:SOURCES_SHOWN]) + more or None


def _first_line(error: JobError) -> str:
    return f"{error.type}: {error.message}".partition("\n")[0]
