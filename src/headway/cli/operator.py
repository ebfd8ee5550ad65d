"""The verbs of commands: on a store that this process opens, or through a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from headway.client.batch import RetryMode, retry_batch
from headway.client.batch_values import batch_page, batch_values
from headway.client.job_reader import JobReader
from headway.core.distributions import ModelData
from headway.core.errors import ConfigError, StoreBusy
from headway.core.job import JobId, JobRecord, State, SubmitReply
from headway.core.policy.document import BUILT_IN, LimitRule, Policy
from headway.core.policy.enforced import PauseSet, pausing, resuming
from headway.core.policy.estimate import Estimate
from headway.core.policy.lint import Finding, OfferedLoad
from headway.core.policy.why import Reason, why
from headway.core.search import JobSearch, parse_search
from headway.core.workflow import BatchId, BatchQuery
from headway.estimates.accuracy import AccuracySummary, summaries
from headway.estimates.forecaster import Forecaster
from headway.estimates.history import read_learned
from headway.estimates.load import check_here, recent_load
from headway.estimates.scaling import ScaleAdvice, advise_slots
from headway.maintenance.bulk import (
    Action,
    BulkRunner,
    check_expected,
    count_matching,
    matching,
    narrow,
    read_operation,
    start_operation,
)
from headway.maintenance.cron import run_cron_now
from headway.metrics.documents import read_documents
from headway.policy_store import versions
from headway.policy_store.catalogue import pause_cron, resume_cron
from headway.policy_store.cron_views import CronView, read_cron_views
from headway.policy_store.rule_documents import change_paused, read_paused
from headway.policy_store.versions import PolicyVersion
from headway.security.audit import LOCAL
from headway.stores.base import Store
from headway.stores.paging import passed_over

if TYPE_CHECKING:
    from headway.cli.remote import HttpOperator


class JobReport(NamedTuple):
    """A job with its place in the queue. ``waited_ms``: once it has started, how long it waited for what.

    ``after``: the jobs and batches that it waits or waited for.
    """

    job: JobRecord
    estimate: Estimate | None = None
    reasons: Sequence[Reason] = ()
    waited_ms: Mapping[str, int] = {}
    after: Sequence[str] = ()


class PolicyChange(NamedTuple):
    """The policy before a change and after it, with what to be warned of."""

    before: PolicyVersion
    after: PolicyVersion
    findings: Sequence[Finding]


class BulkEnd(NamedTuple):
    """The result of a bulk action."""

    operation_id: str
    status: str
    changed: int
    visited: int
    error: str | None


class StoreOperator:
    """The verbs on an open store. ``history_url``: where to find the jobs that the store has forgotten.

    ``who``: the name of the operator for the audit.
    """

    def __init__(self, store: Store, history_url: str | None = None, who: str | None = None) -> None:
        self._store = store
        self._who = who or LOCAL
        self._reader = JobReader(store, history_url)
        self.get, self.find, self.close = self._reader.get, self._reader.find, self._reader.close
        self.stats, self.cancel, self.retry, self.drain = store.stats, store.cancel, store.retry, store.drain

    async def now_at(self) -> int:
        return (await self._store.snapshot()).now_at

    async def search(self, search: JobSearch, *, before: int | None, limit: int) -> list[JobRecord]:
        """Return the jobs that fit a search, newest first. ``before``: the ``seq`` at which the previous page ended."""
        found: list[JobRecord] = []
        async with aclosing(matching(self._store, await self.policy(), search, None, before)) as jobs:
            async for _, _, job, fits in jobs:
                if job is not None and fits:
                    found.append(job)
                if len(found) == limit:
                    break
        return found

    async def report(self, job_id: JobId) -> JobReport | None:
        """Read a job and where it stands. One that only the history has stands nowhere."""
        found = await self._store.diagnose_job(job_id)
        if found is None:
            (job,) = await self.get([job_id])
            return None if job is None else JobReport(job)
        policy = await self.policy()
        estimate = await Forecaster().estimate(self._store, found, policy)
        (upstreams,) = await self._store.upstreams([job_id])
        after = [upstream.source for upstream in upstreams]
        return JobReport(found.job, estimate, why(found, policy), found.waited_ms, after)

    async def passed_over(self, job: JobRecord) -> int:
        return await passed_over(self._store.find, job)

    async def purge_dead(self, job_ids: Sequence[JobId]) -> int:
        """Remove dead letters. Returns how many."""
        return await self._store.purge((State.DEAD_LETTER,), job_ids, limit=len(job_ids))

    async def paused(self) -> PauseSet:
        return await read_paused(self._store)

    async def pause(self, lane: str | None, task: str | None, tenant: str | None) -> PauseSet:
        return await change_paused(self._store, pausing(lane, task, tenant))

    async def resume(self, lane: str | None, task: str | None, tenant: str | None) -> PauseSet:
        return await change_paused(self._store, resuming(lane, task, tenant))

    async def policy(self) -> Policy:
        """Read the policy in force."""
        current = await versions.read_current(self._store)
        return BUILT_IN if current is None else current.policy

    async def policy_version(self, version: int | None = None) -> PolicyVersion:
        """Read a version of the policy; the current one if none is named."""
        return await versions.read_applied(
            self._store, await versions.current_version(self._store) if version is None else version
        )

    async def policy_versions(self) -> list[PolicyVersion]:
        """Read all versions, newest first."""
        return (await versions.history(self._store))[::-1]

    async def apply_policy(self, policy: Policy, note: str) -> PolicyChange:
        before, checked = await self.policy_version(), await check_here(self._store, policy)
        after = await versions.apply_policy(self._store, policy, now_at=await self.now_at(), note=note)
        return PolicyChange(before, after, checked.findings)

    async def roll_back(self, to: int | None) -> PolicyChange:
        before = await self.policy_version()
        after = await versions.roll_back(self._store, to=to, now_at=await self.now_at())
        return PolicyChange(before, after, (await check_here(self._store, after.policy)).findings)

    async def recent_load(self, policy: Policy) -> OfferedLoad | None:
        return await recent_load(self._store, policy)

    async def declared_limits(self, policy: Policy) -> dict[str, LimitRule]:
        """Return the limits in force that tasks declare and the policy does not name."""
        rules = (await self._store.diagnose()).rules
        return {name: rule for name, rule in rules.limits.items() if name not in policy.limits}

    async def learned(self, now_at: int) -> ModelData:
        """Return the run times and arrivals that workers have learned."""
        return await read_learned(self._store, now_at)

    async def sources(self, job_id: JobId) -> tuple[str, ...]:
        """Return the jobs and batches that a job waits or waited for."""
        (upstreams,) = await self._store.upstreams([job_id])
        return tuple(upstream.source for upstream in upstreams)

    async def accuracy(self) -> dict[str, AccuracySummary]:
        """Return how estimates turned out, by lane."""
        return summaries(await read_documents(self._store))

    async def scale(self, lane: str, within: float) -> ScaleAdvice:
        """Return how many slots let a lane start its jobs within some seconds."""
        policy = await self.policy()
        forecast = await Forecaster().build(self._store, policy)
        return advise_slots(forecast, await self._store.stats(), policy, lane, within)

    async def crons(self) -> list[CronView]:
        return await read_cron_views(self._store)

    async def run_cron(self, name: str) -> SubmitReply | None:
        """Submit a job of a cron now. Return None if there is no such cron."""
        return await run_cron_now(self._store, name, who=self._who)

    async def pause_cron(self, name: str) -> bool:
        """Pause a cron. Return False if there is no such cron."""
        return await pause_cron(self._store, name)

    async def resume_cron(self, name: str) -> bool:
        """Resume a cron. Return False if there is no such cron."""
        return await resume_cron(self._store, name)

    async def count_bulk(self, action: Action, where: str, lane: str | None) -> tuple[int, list[JobId]]:
        """Count the jobs that a bulk action would change. Return the number, and some of their ids."""
        search = narrow(action, parse_search(where, await self.now_at()))
        counted = await count_matching(self._store, await self.policy(), action, search, None, lane)
        if not counted.exact:
            raise ConfigError("too many jobs fit to count them in time; narrow the search")
        return counted.found, [job.job_id for job in counted.examples]

    async def run_bulk(self, action: Action, where: str, lane: str | None, expect: int) -> BulkEnd:
        """Run a bulk action to its end in this process."""
        policy, search = await self.policy(), narrow(action, parse_search(where, await self.now_at()))
        count = (await count_matching(self._store, policy, action, search, None, lane)).found
        check_expected(expect, count)
        operation_id = await start_operation(
            self._store,
            action=action,
            search=search,
            who=self._who,
            group="operators",
            tenant=None,
            lane=lane,
            expect=expect,
            count=count,
        )
        ended = await BulkRunner(self._store, lambda: policy).run(operation_id)
        if ended is None:  # A server has taken it over.
            ended = await read_operation(self._store, operation_id)
        if ended is None:
            raise StoreBusy(f"the operation {operation_id} was removed while it ran")
        return BulkEnd(operation_id, ended.status, ended.changed, ended.visited, ended.error)

    async def batches(self, query: BatchQuery) -> dict[str, Any]:
        """Return a page of batches, newest first, as values."""
        found = await self._store.find_batches(query._replace(limit=query.limit + 1))
        return batch_page(found, query.limit)

    async def batch(self, batch_id: BatchId) -> dict[str, Any] | None:
        (found,) = await self._store.get_batches([batch_id])
        return None if found is None else batch_values(found)

    async def cancel_batch(self, batch_id: BatchId) -> dict[str, Any] | None:
        found = await self._store.cancel_batch(batch_id)
        return None if found is None else batch_values(found)

    async def retry_batch(self, batch_id: BatchId, mode: RetryMode) -> int:
        """Queue members of a batch again. Returns how many."""
        return await retry_batch(self._store, self._store.retry, batch_id, mode)


Operator: TypeAlias = "StoreOperator | HttpOperator"
