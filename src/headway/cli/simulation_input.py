"""The input of ``headway simulate`` and ``headway trace``: jobs of the store, of a file, or of a model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

from headway.cli.operator import Operator, StoreOperator
from headway.core.distributions import Model
from headway.core.errors import ConfigError
from headway.core.job import JobRecord, State
from headway.core.policy.document import Policy
from headway.core.policy.units import parse_length
from headway.policy_store.versions import PolicyVersion
from headway.simulate.live_queue import LiveQueue
from headway.simulate.recording import Recording
from headway.simulate.trace import JOBS_MAX, Trace
from headway.stores.base import JobQuery
from headway.stores.paging import find_in_steps, without_values

LIVE_MAX = 100_000  # Jobs that run or wait.
EXAMPLES = 500  # Jobs that have ended lately, which jobs to come look like.
ENDED = (State.COMPLETED,)
REMOTE_PAGE = 500  # Jobs in one reply of a server, which leaves out arguments and results.


def read_span(text: str, name: str) -> int:
    """Read a length of time such as ``24h``. Raises ``ConfigError``."""
    try:
        length_ms = parse_length(float(text) if text.replace(".", "", 1).isdigit() else text)
    except ValueError as problem:
        raise ConfigError(f"{name} {text!r}: {problem}") from None
    if not length_ms:
        raise ConfigError(f"{name} must be longer than 0, got {text!r}")
    return length_ms


async def record_jobs(operator: Operator, span_ms: int) -> Trace:
    """Make a trace of the jobs that were submitted in the last ``span_ms``."""
    current, now_at = await operator.policy_version(), await operator.now_at()
    recording = Recording("the store", current.policy, current.version)
    async for job in _newest(operator):
        if job.submitted_at < now_at - span_ms:
            break
        recording.add(job, await _sources(operator, job))
        if len(recording) > JOBS_MAX:
            raise ConfigError(f"more than {JOBS_MAX:,} jobs ended in this time; take a shorter one")
    if not len(recording):
        out = ", ".join(f"{count:,} {why}" for why, count in recording.left_out.items())
        why = f" ({out})" if out else ""
        raise ConfigError(
            f"no job that was submitted in the last {span_ms // 1_000:,} s has ended{why}; "
            "choose a longer time with --recorded 7d, or replay a file with --trace or --model"
        )
    workers = (await operator.stats()).workers
    declared = await operator.declared_limits(current.policy) if isinstance(operator, StoreOperator) else {}
    return recording.trace(workers, declared)


async def read_now(operator: Operator) -> LiveQueue:
    """Read the queue as it is now, with what was learned."""
    if not isinstance(operator, StoreOperator):
        raise ConfigError("--now needs the store itself, because a server does not hand out what was learned")
    now_at, policy = await operator.now_at(), await operator.policy()
    jobs: list[JobRecord] = []
    for states, most in (((State.EXECUTING,), LIVE_MAX), ((State.QUEUED,), LIVE_MAX), (ENDED, EXAMPLES)):
        query = JobQuery(states=states, limit=most + 1)
        found = [without_values(job) async for job in find_in_steps(operator.find, query)]
        if len(found) > most and states != ENDED:
            raise ConfigError(f"more than {most:,} jobs are {states[0].value}; --now replays each of them")
        jobs += found[:most]
    return LiveQueue(
        now_at,
        jobs,
        (await operator.stats()).workers,
        Model(await operator.learned(now_at)),
        policy,
        await operator.paused(),
        await operator.declared_limits(policy),
    )


async def policy_versions(operator: Operator, wanted: list[int]) -> list[PolicyVersion]:
    """Read versions of the policy."""
    return [await operator.policy_version(version) for version in wanted]


async def current_policy(operator: Operator) -> tuple[Policy, int]:
    """Read the policy in force, and its version."""
    current = await operator.policy_version()
    return current.policy, current.version


async def _newest(operator: Operator) -> AsyncIterator[JobRecord]:
    if isinstance(operator, StoreOperator):
        async for job in find_in_steps(operator.find, JobQuery(limit=2 * JOBS_MAX)):
            yield job
        return
    find, query = partial(operator.find, include=None), JobQuery(limit=REMOTE_PAGE)
    while page := await find(query):
        for job in page:
            yield job
        query = query._replace(before=page[-1].seq)


async def _sources(operator: Operator, job: JobRecord) -> tuple[str, ...]:
    """Read what a job waited for, if it waited for anything. A server does not list it."""
    if not isinstance(operator, StoreOperator) or job.eligible_at == job.submitted_at:
        return ()
    return await operator.sources(job.job_id)
