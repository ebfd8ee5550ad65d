"""Submits the jobs of crons: one for each tick, however many processes run this chore."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache

import msgspec

from headway.core.cron import next_tick, parse_cron, ticks_between
from headway.core.errors import HeadwayError, StoreError
from headway.core.job import SubmitReply
from headway.core.log_event import LogEvent
from headway.policy_store.catalogue import (
    DAMAGED,
    CronDocument,
    CronReader,
    cron_job,
    mark_ticked,
    read_crons,
    read_paused_crons,
)
from headway.security.audit import record
from headway.stores.base import Store

log = logging.getLogger("headway.worker")

LATE_MS = 30_000  # A tick older than this counts as missed; chores may be delayed by some seconds.
MISSED_TICKS_MAX = 1_000  # Missed ticks that are submitted at most, to bound the work after a long outage.
READ_EVERY = 15.0  # Seconds between reads of the crons; a new cron is seen within this time.


_times = lru_cache(maxsize=512)(parse_cron)


class CronSubmitter:
    """Submits the jobs of ticks that have passed.

    The idempotency key of a tick is its cron and moment, so a second submit changes nothing. A tick is marked only
    after its job is stored, so a crash in between repeats the submit instead of losing it.
    """

    def __init__(self, store: Store, knows: Callable[[str], bool]) -> None:
        self._store = store
        self._knows = knows
        self._reader = CronReader()

    async def __call__(self) -> float | None:
        crons = await read_crons(self._store, self._reader)
        crons = [(cron, version) for cron, version in crons if self._knows(cron.task)]
        if not crons:
            return READ_EVERY
        now_at, paused = (await self._store.snapshot()).now_at, await read_paused_crons(self._store)
        soonest = READ_EVERY
        for cron, version in crons:
            try:
                following = await self._tick(cron, version, now_at, paused=cron.name in paused)
            except StoreError:
                raise
            except HeadwayError as problem:  # One cron must not hold up the others.
                log.warning(LogEvent("cron.failed", task=cron.name, error=str(problem)))
                continue
            if following is not None:
                soonest = min(soonest, (following - now_at) / 1_000)
        return max(0.02, soonest)

    async def _tick(self, cron: CronDocument, version: int, now_at: int, *, paused: bool) -> int | None:
        """Submit the jobs of a cron whose ticks have passed. Return the moment of its next tick.

        The ticks of a paused cron are marked as well, so that it does not catch up with them later.
        """
        times = _times(cron.expression, cron.tz)
        passed = ticks_between(times, cron.ticked_at, now_at, limit=MISSED_TICKS_MAX)
        if passed:
            for tick_at in [] if paused else _due(cron, passed, now_at):
                await self._store.submit([cron_job(cron, str(tick_at))])
            if version == DAMAGED:
                self._reader.keep(cron.name, msgspec.structs.replace(cron, ticked_at=passed[-1]))
            else:
                await mark_ticked(self._store, cron, version, passed[-1])
        return next_tick(times, now_at)


async def run_cron_now(store: Store, name: str, *, who: str) -> SubmitReply | None:
    """Submit a job of a cron beside its schedule, and record it in the audit. Return None if there is no such cron."""
    now_at = (await store.snapshot()).now_at
    for cron, _ in await read_crons(store):
        if cron.name == name:
            [kept] = await store.submit([cron_job(cron, f"now:{now_at}")])
            facts = {"job": kept.job_id, "deduplicated": kept.deduplicated}
            await record(store, who=who, what="cron.run", target=name, after=facts, now_at=now_at)
            return kept
    return None


def _due(cron: CronDocument, passed: list[int], now_at: int) -> list[int]:
    match cron.catch_up:
        case "all":
            return passed
        case "last":
            return passed[-1:]
        case _:
            return [tick_at for tick_at in passed if now_at - tick_at <= LATE_MS]
