"""Counts over time by lane, in documents: a row a minute for two days and a row an hour for thirty.

Any number of processes run the chore that takes samples, and one of them writes each row. A row is first kept in the
document ``LATEST`` together with the totals that the next row is counted from. The next writer moves it to the document
of its hour, so a process that dies in between loses nothing and counts nothing twice.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import TypeVar

import msgspec

from headway.core.job import ENDED_STATES, State
from headway.metrics.documents import OTHER, MetricsDocument, read_documents
from headway.metrics.recorder import LENGTHS_MS, QUEUE_WAIT, RUN_TIME
from headway.stores.base import LaneStats, Stats, Store

K = TypeVar("K", bound=Hashable)

SERIES = "series"  # The kind of these documents.
LATEST = "latest"
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
MINUTES_KEPT_MS, HOURS_KEPT_MS = 48 * HOUR_MS, 30 * DAY_MS
LANES_MAX = 24  # Lanes with rows of their own, which bounds a document at about 200 kB. The rest is one lane more.
ALL = ""  # The lane of the rows that count all lanes together.
SPREAD = 4.0  # Seconds after the minute in which processes take their turn, so that most find the row written.
ENDED = tuple(state.value for state in ENDED_STATES)
RETRIED = "retried"


class SeriesRow(msgspec.Struct, array_like=True):
    """One lane in one step. ``waits``: how many started tasks had waited how long, by bucket of ``LENGTHS_MS``."""

    submitted: int = 0
    started: int = 0
    ended: dict[str, int] = msgspec.field(default_factory=dict)
    waits: dict[int, int] = msgspec.field(default_factory=dict)
    waiting: int = 0
    running: int = 0

    def add(self, later: SeriesRow) -> None:
        """Add a later step of the same lane."""
        self.submitted += later.submitted
        self.started += later.started
        self.ended = _added(self.ended, later.ended)
        self.waits = _added(self.waits, later.waits)
        self.waiting, self.running = later.waiting, later.running


class SeriesStep(msgspec.Struct, array_like=True):
    """All lanes in one step, which begins ``at`` and takes ``length_ms``."""

    at: int
    length_ms: int
    slots: int
    lanes: dict[str, SeriesRow]

    def add(self, later: SeriesStep) -> None:
        """Add a later step."""
        self.length_ms += later.length_ms
        self.slots = later.slots
        for lane, row in later.lanes.items():
            self.lanes.setdefault(lane, SeriesRow()).add(row)


class SeriesTotals(msgspec.Struct):
    """Totals up to a moment, by lane. The difference of two of them is a row."""

    at: int = 0
    counts: dict[str, int] = msgspec.field(default_factory=dict)  # By the store, for all lanes together.
    ended: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    waits: dict[str, list[int]] = msgspec.field(default_factory=dict)
    live: dict[str, int] = msgspec.field(default_factory=dict)


class LatestStep(msgspec.Struct):
    """The last step, which is in no other document yet, and the totals at its end."""

    totals: SeriesTotals
    step: SeriesStep | None = None
    folded_at: int = 0  # The hour of the step before it.


_encode = msgspec.json.Encoder().encode
_read_latest = msgspec.json.Decoder(LatestStep).decode
_read_steps = msgspec.json.Decoder(list[SeriesStep]).decode


async def record_series(store: Store) -> float:
    """Take a sample, each minute, as a chore. There is no leader: the first process to write wins."""
    stats = await store.stats()
    minute_at = stats.now_at // MINUTE_MS * MINUTE_MS
    latest, version = await _latest(store)
    if latest is None or latest.totals.at < minute_at:
        totals = totals_of(stats, await read_documents(store), minute_at)
        await _write(store, latest, version, totals, stats)
    return (minute_at + MINUTE_MS - stats.now_at) / 1_000 + random.uniform(0.2, SPREAD)


async def read_series(store: Store, *, since_at: int, step_ms: int, now_at: int) -> list[SeriesStep]:
    """Read the steps since a moment, oldest first, with several rows merged if a step is longer than a row.

    A step shorter than an hour is made of minutes, which are kept for two days.
    """
    latest, _ = await _latest(store)
    if latest is None:
        return []
    if step_ms >= HOUR_MS:
        rows = await _hours(store, latest, max(since_at, now_at - HOURS_KEPT_MS))
    else:
        rows = await _minutes(store, latest, max(since_at, now_at - MINUTES_KEPT_MS), now_at)
    merged: list[SeriesStep] = []
    for _, group in groupby(rows, key=lambda row: row.at // step_ms):
        merged.append(_sum(group))
    return merged


def wait_quantile(waits: Mapping[int, int], part: float) -> float | None:
    """Return a quantile of the waits in seconds, as if the waits in each bucket were spread evenly."""
    wanted, below = part * sum(waits.values()), 0.0
    for bucket in sorted(waits):
        count = waits[bucket]
        if count and below + count >= wanted:
            begins = LENGTHS_MS[bucket - 1] if bucket else 0
            ends = LENGTHS_MS[min(bucket, len(LENGTHS_MS) - 1)]
            return round((begins + (ends - begins) * (wanted - below) / count) / 1_000, 3)
        below += count
    return None


def totals_of(stats: Stats, counted: MetricsDocument, at: int) -> SeriesTotals:
    """Return what the store and all processes have counted so far."""
    totals = SeriesTotals(at, {name: stats.totals.get(name, 0) for name in ("submitted", "claimed", RETRIED)})
    for end in ENDED:
        totals.counts[end] = stats.totals.get(end, 0) + stats.totals.get(f"transient_{end}", 0)
    known = _largest(stats.lanes)
    for key, row in counted.rows.items():
        kind, _, rest = key.partition("|")
        if kind == QUEUE_WAIT and len(row) == len(LENGTHS_MS) + 2:
            waits = totals.waits.setdefault(_named(rest, known), [0] * (len(LENGTHS_MS) + 1))
            for bucket, count in enumerate(row[:-1]):
                waits[bucket] += int(count)
        elif kind == RUN_TIME:
            outcome, _, lane = rest.partition("|")
            ended = totals.ended.setdefault(_named(lane, known), {})
            ended[outcome] = ended.get(outcome, 0) + int(sum(row[:-1]))
    for lane, numbers in stats.lanes.items():
        name = _named(lane, known)
        totals.live[name] = totals.live.get(name, 0) + numbers.waiting + numbers.delayed + numbers.executing
    return totals


def step_between(before: SeriesTotals, after: SeriesTotals, stats: Stats) -> SeriesStep:
    """Return the step between two totals.

    The store counts submitted tasks of all lanes together. Those of one lane follow from what is live now, what was
    live before and what has ended. A task that was cancelled while it waited ended without a run, so its lane is not
    known, and such tasks are spread over the lanes in proportion to what waited and came.
    """
    known = _largest(stats.lanes)
    rows: dict[str, SeriesRow] = {}
    for lane in dict.fromkeys([*after.live, *after.waits, *after.ended]):
        waits = _less_row(after.waits.get(lane, ()), before.waits.get(lane, ()))
        ended = _less(after.ended.get(lane, {}), before.ended.get(lane, {}))
        left = sum(count for end, count in ended.items() if end in ENDED)
        came = max(0, after.live.get(lane, 0) - before.live.get(lane, 0) + left)
        ended = {end: count for end, count in ended.items() if end in (*ENDED, RETRIED) and count}
        rows[lane] = SeriesRow(came, sum(waits.values()), ended, waits)
    whole = _less(after.counts, before.counts)
    _spread(rows, before.live, whole)
    for lane, numbers in stats.lanes.items():
        row = rows.setdefault(_named(lane, known), SeriesRow())
        row.waiting += numbers.waiting
        row.running += numbers.executing
    everything = SeriesRow(
        whole["submitted"],
        whole["claimed"],
        {end: whole[end] for end in (*ENDED, RETRIED) if whole[end]},
        functools.reduce(_added, (row.waits for row in rows.values()), {}),
        sum(lane.waiting for lane in stats.lanes.values()),
        sum(lane.executing for lane in stats.lanes.values()),
    )
    slots = sum(worker.slots for worker in stats.live_workers)
    return SeriesStep(before.at, after.at - before.at, slots, {ALL: everything, **rows})


def _spread(rows: Mapping[str, SeriesRow], waited: Mapping[str, int], whole: Mapping[str, int]) -> None:
    """Spread submitted and cancelled tasks whose lane is not known over the lanes, so that the lanes add up."""
    weights = {lane: row.submitted + waited.get(lane, 0) for lane, row in rows.items()}
    missing = whole["submitted"] - sum(row.submitted for row in rows.values())
    for lane, count in in_proportion(missing, weights).items():
        rows[lane].submitted = max(0, rows[lane].submitted + count)
    cancelled = State.CANCELLED.value
    unknown = whole[cancelled] - sum(row.ended.get(cancelled, 0) for row in rows.values())
    for lane, count in in_proportion(max(0, unknown), weights).items():
        if count:
            rows[lane].ended[cancelled] = rows[lane].ended.get(cancelled, 0) + count


def in_proportion(count: int, weights: Mapping[str, int]) -> dict[str, int]:
    """Split a count, which may be negative, in proportion to weights. The largest fractions are rounded up."""
    total = sum(weights.values())
    if not total or not count:
        return {}
    exact = {name: abs(count) * weight / total for name, weight in weights.items()}
    split = {name: int(part) for name, part in exact.items()}
    for name in sorted(exact, key=lambda name: split[name] - exact[name])[: abs(count) - sum(split.values())]:
        split[name] += 1
    return {name: part if count > 0 else -part for name, part in split.items()}


def _largest(lanes: Mapping[str, LaneStats]) -> frozenset[str]:
    """Return the lanes that have rows of their own."""
    by_size = sorted(lanes, key=lambda name: (-lanes[name].waiting - lanes[name].executing, name))
    return frozenset(by_size[:LANES_MAX])


def _named(lane: str, known: frozenset[str]) -> str:
    return lane if lane in known or len(known) < LANES_MAX else OTHER


def _less(after: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    return {key: max(0, count - before.get(key, 0)) for key, count in after.items()}


def _less_row(after: Sequence[int], before: Sequence[int]) -> dict[int, int]:
    """Return the counts of a row that have grown, by bucket."""
    grown = {at: count - (before[at] if at < len(before) else 0) for at, count in enumerate(after)}
    return {at: count for at, count in grown.items() if count > 0}


def _added(mine: Mapping[K, int], more: Mapping[K, int]) -> dict[K, int]:
    return {key: mine.get(key, 0) + more.get(key, 0) for key in {**mine, **more}}


def _sum(steps: Iterable[SeriesStep]) -> SeriesStep:
    first, *rest = (msgspec.convert(msgspec.to_builtins(step), SeriesStep) for step in steps)
    for step in rest:
        first.add(step)
    return first


# ---------------------------------------------------------------------- documents


async def _latest(store: Store) -> tuple[LatestStep | None, int]:
    for document in await store.read(SERIES, LATEST):
        return _read_latest(document.body), document.version
    return None, 0


async def _write(store: Store, latest: LatestStep | None, version: int, totals: SeriesTotals, stats: Stats) -> None:
    """Move the last step to the document of its hour, then replace it. Another process may have done either."""
    step, folded_at = None, 0
    if latest is not None:
        step, folded_at = step_between(latest.totals, totals, stats), latest.folded_at
        if latest.step is not None:
            await _fold(store, latest.step, latest.folded_at)
            folded_at = latest.step.at // HOUR_MS * HOUR_MS
    await store.write(SERIES, LATEST, _encode(LatestStep(totals, step, folded_at)), if_version=version)


async def _fold(store: Store, step: SeriesStep, folded_at: int) -> None:
    """Add a step to the document of its hour. The first step of an hour closes the hour before it."""
    hour_at = step.at // HOUR_MS * HOUR_MS
    if folded_at and folded_at < hour_at:
        minutes = await _steps(store, _minutes_name(folded_at))
        if minutes[0]:
            await _put(store, _hours_name(folded_at), _sum(minutes[0]), folded_at)
        await _prune(store, hour_at)
    await _put(store, _minutes_name(hour_at), step, step.at)


async def _put(store: Store, name: str, step: SeriesStep, at: int) -> None:
    """Add a step to a document unless it is there already."""
    while True:
        steps, version = await _steps(store, name)
        if any(known.at == at for known in steps):
            return
        whole = SeriesStep(at, step.length_ms, step.slots, step.lanes)
        if await store.write(SERIES, name, _encode([*steps, whole]), if_version=version) is not None:
            return


async def _prune(store: Store, now_at: int) -> None:
    """Remove the documents whose steps are all too old."""
    for document in await store.read(SERIES):
        kind, _, start = document.name.partition(".")
        kept_ms = MINUTES_KEPT_MS + HOUR_MS if kind == "m" else HOURS_KEPT_MS + DAY_MS
        if start.isdecimal() and int(start) < now_at - kept_ms:
            await store.write(SERIES, document.name, None, if_version=document.version)


async def _steps(store: Store, name: str) -> tuple[list[SeriesStep], int]:
    for document in await store.read(SERIES, name):
        return _read_steps(document.body), document.version
    return [], 0


async def _minutes(store: Store, latest: LatestStep, since_at: int, now_at: int) -> list[SeriesStep]:
    found: list[SeriesStep] = []
    for hour_at in range(since_at // HOUR_MS * HOUR_MS, now_at + 1, HOUR_MS):
        found += (await _steps(store, _minutes_name(hour_at)))[0]
    if latest.step is not None and all(step.at != latest.step.at for step in found[-1:]):
        found.append(latest.step)
    return [step for step in found if step.at + step.length_ms > since_at]


async def _hours(store: Store, latest: LatestStep, since_at: int) -> list[SeriesStep]:
    found: list[SeriesStep] = []
    last_at = latest.totals.at
    for day_at in range(since_at // DAY_MS * DAY_MS, last_at + 1, DAY_MS):
        found += (await _steps(store, _hours_name(day_at)))[0]
    closed_at = found[-1].at + HOUR_MS if found else (latest.folded_at or last_at // HOUR_MS * HOUR_MS)
    for hour_at in range(closed_at // HOUR_MS * HOUR_MS, last_at + 1, HOUR_MS):
        minutes = await _minutes(store, latest, hour_at, hour_at)
        minutes = [step for step in minutes if step.at // HOUR_MS * HOUR_MS == hour_at]
        if minutes:
            found.append(msgspec.structs.replace(_sum(minutes), at=hour_at))
    return [step for step in found if step.at + step.length_ms > since_at]


def _minutes_name(at: int) -> str:
    return f"m.{at // HOUR_MS * HOUR_MS:015d}"


def _hours_name(at: int) -> str:
    return f"h.{at // DAY_MS * DAY_MS:015d}"
