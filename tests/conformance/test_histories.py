"""Random histories of jobs, workers and rules: all replies of a store must agree with those of the memory store."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from headway.core.job import JobId, JobRecord, State
from headway.core.lease import ReportStatus
from headway.core.policy.document import BUILT_IN
from headway.core.policy.enforced import EnforcedRules
from headway.core.policy.ladder import Preemption
from headway.core.policy.retry import Ending
from headway.core.policy.why import class_reasons
from headway.stores.base import RULES, Exchange, ExchangeReply, JobQuery, Progress, Store
from headway.stores.rule_codec import rules_body
from tests.conformance.histories import PAUSES, StoreHistory, all_jobs, endings, numbers, play, worker_ids

pytestmark = pytest.mark.one_store  # All answers are those of one store, order keys and all.


class Histories(StoreHistory):
    """Histories without workflows, with all calls of operators and programs."""

    @rule(name=st.sampled_from(sorted(PAUSES)))
    def pause(self, name: str) -> None:
        self.paused = PAUSES[name]
        self._same(lambda store: store.write(RULES, "pauses", rules_body(EnforcedRules(paused=self.paused))))

    @rule()
    def record_wait_reasons(self) -> None:
        """Record why classes wait, as a worker does every second."""

        async def play(store: Store) -> None:
            await store.record_wait_reasons(class_reasons(await store.diagnose(), BUILT_IN))

        self._both(play)

    @rule(number=numbers, ending=endings)
    def report_stale(self, number: int, ending: Ending) -> None:
        """Report with an outdated token, and check that nothing changes."""
        self._both(lambda store: store.exchange(Exchange(None)))  # What is due becomes eligible before, not meanwhile.
        before = self._both(all_jobs)[0]
        stale = [
            pair for pair in self.leases if pair[0].job_id in before and before[pair[0].job_id].epoch > pair[0].epoch
        ]
        if stale:
            answer = self._report(stale[number % len(stale)], ending)
            assert answer is ReportStatus.STALE
            assert self._both(all_jobs)[0] == before

    @rule(number=numbers, fraction=st.sampled_from([0.0, 0.5, 1.0]), note=st.sampled_from([None, "half\0way"]))
    def progress(self, number: int, fraction: float, note: str | None) -> None:
        if not self.leases:
            return
        first, second = self._lease(number)

        async def play(store: Store) -> ExchangeReply:
            lease = first if store is self.store else second
            word = Progress(lease.job_id, lease.seq, lease.token, fraction, note)
            return await store.exchange(Exchange(None, progress=[word]))

        self._both(play)

    @rule(worker_id=worker_ids, left=st.booleans())
    def mark_dead(self, worker_id: str, left: bool) -> None:
        self._both(lambda store: store.mark_dead(worker_id, left=left))

    @rule(worker_id=worker_ids)
    def drain(self, worker_id: str) -> None:
        self._same(lambda store: store.drain(worker_id))

    @rule(picked=st.lists(st.tuples(numbers, st.sampled_from(["fast", "slow", "glacial", None])), max_size=3))
    def preempt(self, picked: list[tuple[int, str | None]]) -> None:
        ids = self._ids([number for number, _ in picked])
        amendments = [Preemption(job_id, rung) for job_id, (_, rung) in zip(ids, picked, strict=True)]
        self._same(lambda store: store.preempt(amendments))

    @rule(
        picked=st.lists(numbers, min_size=1, max_size=3),
        lane=st.sampled_from([None, "high", "low"]),
        now=st.booleans(),
    )
    def reschedule(self, picked: list[int], lane: str | None, now: bool) -> None:
        self._same(lambda store: store.reschedule(self._ids(picked), lane=lane, now=now))

    @rule(limit=st.sampled_from([1, 100]))
    def breakdown(self, limit: int) -> None:
        self._same(lambda store: store.breakdown(limit=limit))

    @rule(picked=st.lists(numbers, max_size=3))
    def get(self, picked: list[int]) -> None:
        async def play(store: Store) -> list[JobRecord | None]:
            return [job and replace(job, seq=0) for job in await store.get(self._ids(picked))]

        self._same(play)

    @rule(
        states=st.sets(st.sampled_from(list(State))),
        lane=st.sampled_from([None, "high"]),
        task=st.sampled_from([None, "resize"]),
        tenant=st.sampled_from([None, "acme"]),
        worker_id=st.none() | worker_ids,
        limit=st.integers(1, 4),
    )
    def find(
        self,
        states: set[State],
        lane: str | None,
        task: str | None,
        tenant: str | None,
        worker_id: str | None,
        limit: int,
    ) -> None:
        """Compare all pages of a query."""

        async def play(store: Store) -> list[list[JobId]]:
            query = JobQuery(tuple(sorted(states)), task, lane, tenant, worker_id, limit=limit)
            pages = []
            while page := await store.find(query):
                pages.append([job.job_id for job in page])
                query = query._replace(before=page[-1].seq)
            return pages

        self._same(play)

    @rule(
        name=st.sampled_from(["a", "b"]),
        body=st.sampled_from([b"\0", b"2", None]),
        if_version=st.sampled_from([None, 0, 1, 2]),
    )
    def write(self, name: str, body: bytes | None, if_version: int | None) -> None:
        self._same(lambda store: store.write("policy", name, body, if_version=if_version))
        self._same(lambda store: store.read("policy"))


@pytest.mark.slow
@pytest.mark.timeout(600)  # One that fails is cut down to what matters, and that takes its time.
@pytest.mark.parametrize("part", range(4))
def test_random_histories_come_out_as_on_the_memory_store(store_name: str, part: int, seed: int) -> None:
    # R1.7, R2.56, R5.51, R5.57
    examples = 18 if store_name == "postgres" else 35  # Each of its steps takes several times as long.
    play(Histories, store_name, seed * 100 + part, examples=examples, steps=40)


# Each part takes minutes on each store. A nightly run plays fewer, with another seed each day.
PARTS = int(os.environ.get("HISTORY_PARTS", "20"))


@pytest.mark.proof
@pytest.mark.parametrize("part", range(PARTS))
def test_many_long_histories_come_out_as_on_the_memory_store(store_name: str, part: int, seed: int) -> None:
    play(Histories, store_name, 1_000_000 + seed * 100 + part, examples=500, steps=100)
