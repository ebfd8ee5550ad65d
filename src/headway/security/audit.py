"""The audit: what operators did, who and when. The store keeps it and only ever adds to it.

Entries are kept in segments, documents of some dozens of entries each, so that neither adding nor pruning reads more
than a few of them. Entries of callers with a lesser scope have segments of their own, so that they cannot push out what
operators did.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator
from typing import Any, Literal, NamedTuple

import msgspec

from headway.core.errors import StoreBusy
from headway.core.policy.document import DAY
from headway.stores.base import Store

AUDIT = "audit"
LOCAL = "local"  # The ``who`` of a program that uses the store directly and does not name its user.
OPEN = "open"  # The ``who`` of a caller on this machine, at a server without tokens.
PYTHON = "python"  # The ``who`` of a program that uses the Python interface.
KEPT = 10_000  # Entries of operators, and as many of callers: months of normal use in a few megabytes.
RETENTION_MS = 90 * DAY
VALUE_MAX = 16 << 10  # Bytes of a value before or after. Of a larger value only its digest is kept.
WHO_MAX, TARGET_MAX = 200, 1_000  # Characters.
SEGMENT = 50  # Entries of one segment at most. Each new entry rewrites its segment.
SEGMENT_BYTES = 64 << 10  # A segment of this size is full as well.
TRIES = 50  # Attempts to add an entry while other processes do.
PAUSE = 0.02  # Seconds at most between two attempts. The pause is random, so that processes do not collide again.

Group = Literal["operators", "callers"]
GROUPS: tuple[Group, ...] = ("operators", "callers")


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One action. ``who`` is a token's id, ``cli:USER@HOST``, ``PYTHON``, ``LOCAL`` or ``OPEN``.

    ``before`` and ``after`` are JSON.
    """

    at: int
    who: str
    what: str
    target: str
    before: Any = None
    after: Any = None


class AuditPosition(NamedTuple):
    """The place of an entry: its group, its segment and its number there. Reading goes on below it."""

    group: Group
    segment: int
    number: int


class _SegmentIndex(msgspec.Struct, frozen=True):
    """The segments of a group, and how many entries all but the last of them hold."""

    first: int = 1
    last: int = 1
    closed: int = 0


_encode = msgspec.json.Encoder().encode
_read_head = msgspec.json.Decoder(_SegmentIndex).decode
_read_segment = msgspec.json.Decoder(list[AuditRecord]).decode


async def record(
    store: Store,
    *,
    who: str,
    what: str,
    target: str,
    before: Any = None,
    after: Any = None,
    now_at: int | None = None,
    group: Group = "operators",
    kept: int = KEPT,
) -> AuditRecord:
    """Record an action once it is done: ``policy.put``, ``dlq.replay``, ``task.cancel``, ``pause`` …

    Never pass arguments or results of jobs, nor secrets: entries are kept for long and read by many.
    """
    if now_at is None:
        now_at = (await store.snapshot()).now_at
    entry = AuditRecord(
        at=now_at,
        who=who[:WHO_MAX],
        what=what,
        target=target[:TARGET_MAX],
        before=_bounded(before),
        after=_bounded(after),
    )
    for _ in range(TRIES):
        if await _add(store, group, entry, kept):
            return entry
        await asyncio.sleep(random.uniform(0, PAUSE))
    raise StoreBusy("the audit could not be written; try again")


async def read_audit(store: Store, *, limit: int = 100) -> list[AuditRecord]:
    """Read the last entries, the newest first."""
    found: list[AuditRecord] = []
    async for entry, _ in walk_audit(store):
        found.append(entry)
        if len(found) >= limit:
            break
    return found


async def walk_audit(
    store: Store, below: tuple[AuditPosition, ...] = ()
) -> AsyncIterator[tuple[AuditRecord, AuditPosition]]:
    """Yield entries of both groups, the newest first, each with its place.

    ``below``: for each group, the place of the last entry that the caller has read. Reading goes on below it.
    """
    starts = {place.group: place for place in below}
    walks = [_walk(store, group, starts.get(group)) for group in GROUPS]
    heads = [await anext(walk, None) for walk in walks]
    while any(heads):
        newest = max((head[0].at, -index) for index, head in enumerate(heads) if head is not None)
        index = -newest[1]
        head = heads[index]
        if head is not None:
            yield head
        heads[index] = await anext(walks[index], None)


async def _walk(
    store: Store, group: Group, below: AuditPosition | None
) -> AsyncIterator[tuple[AuditRecord, AuditPosition]]:
    head, _ = await _head(store, group)
    last = head.last if below is None else min(head.last, below.segment)
    for segment in range(last, head.first - 1, -1):
        entries, _ = await _segment(store, group, segment)
        end = below.number if below is not None and below.segment == segment else len(entries)
        for number in range(min(end, len(entries)) - 1, -1, -1):
            yield entries[number], AuditPosition(group, segment, number)


async def _add(store: Store, group: Group, entry: AuditRecord, kept: int) -> bool:
    """Add an entry to the last segment. Return False if another process wrote first, so that the caller tries again."""
    head, head_version = await _head(store, group)
    entries, version = await _segment(store, group, head.last)
    if len(entries) >= SEGMENT or sum(len(_encode(one)) for one in entries) >= SEGMENT_BYTES:
        await _close_segment(
            store, group, head, head_version, closed=head.closed + len(entries), now_at=entry.at, kept=kept
        )
        return False
    return await store.write(AUDIT, _name(group, head.last), _encode([*entries, entry]), if_version=version) is not None


async def _close_segment(
    store: Store, group: Group, head: _SegmentIndex, version: int, *, closed: int, now_at: int, kept: int
) -> None:
    """Begin a new segment, and remove the oldest ones that need not be kept."""
    first = head.first
    while first <= head.last:
        entries, _ = await _segment(store, group, first)
        too_old = not entries or entries[-1].at < now_at - RETENTION_MS
        if not too_old and closed - len(entries) < kept:
            break
        # Remove the segment before the head moves: a process that dies in between leaves no segment out of reach.
        await store.write(AUDIT, _name(group, first), None)
        first, closed = first + 1, closed - len(entries)
    await store.write(
        AUDIT, _head_name(group), _encode(_SegmentIndex(first, head.last + 1, closed)), if_version=version
    )


async def _head(store: Store, group: Group) -> tuple[_SegmentIndex, int]:
    for document in await store.read(AUDIT, _head_name(group)):
        return _read_head(document.body), document.version
    return _SegmentIndex(), 0


async def _segment(store: Store, group: Group, number: int) -> tuple[list[AuditRecord], int]:
    for document in await store.read(AUDIT, _name(group, number)):
        return _read_segment(document.body), document.version
    return [], 0


def _head_name(group: Group) -> str:
    return f"{group}.head"


def _name(group: Group, segment: int) -> str:
    return f"{group}.{segment:09d}"


def _bounded(value: Any) -> Any:
    body = _encode(value)
    if len(body) <= VALUE_MAX:
        return value
    return {"bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}
