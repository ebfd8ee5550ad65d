"""What operators did, who and when: kept in the store, only ever added to."""

from __future__ import annotations

import hashlib
import secrets
import time
from typing import Any

import msgspec

from headway.core.errors import StoreBusy
from headway.core.policy.document import DAY
from headway.stores.base import Store

AUDIT = "audit"
LOCAL = "local"  # Who: somebody at the command line, with the store itself at hand.
OPEN = "open"  # Who: somebody on this machine, of a server that no token was made for.
KEPT = 10_000
KEPT_MS = 90 * DAY
VALUE_MAX = 16 << 10  # Bytes of a value before or after; of a larger one its digest is kept.
PRUNED_ONCE_IN = 64  # Entries between two looks at how many there are, on average.
PRUNED_MAX = 1_000
TRIES = 5


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was done. ``who`` is a token's id, ``LOCAL`` or ``OPEN``; ``before`` and ``after`` are JSON."""

    at: int
    who: str
    what: str
    target: str
    before: Any = None
    after: Any = None


_encode = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder(Entry)


async def record(
    store: Store, *, who: str, what: str, target: str, before: Any = None, after: Any = None, now_at: int | None = None
) -> Entry:
    """Note what somebody did, once it is done: ``policy.put``, ``dlq.replay``, ``task.cancel``, ``pause`` …

    Never give it arguments or results of jobs, nor secrets: it is kept for long and read by many.
    """
    if now_at is None:
        now_at = (await store.snapshot()).now_at
    entry = Entry(at=now_at, who=who, what=what, target=target, before=_bounded(before), after=_bounded(after))
    for _ in range(TRIES):
        # Those of one process in one millisecond stay in order.
        name = f"{now_at:015d}-{time.monotonic_ns():020d}-{secrets.token_hex(4)}"
        if await store.write(AUDIT, name, _encode(entry), if_version=0) is not None:
            break
    else:
        raise StoreBusy("the audit could not be written; try again")
    if secrets.randbelow(PRUNED_ONCE_IN) == 0:
        await prune_audit(store, now_at=now_at)
    return entry


async def read_audit(store: Store, *, limit: int = 100) -> list[Entry]:
    """Read the last entries, the newest first."""
    found = sorted(await store.read(AUDIT), key=lambda document: document.name, reverse=True)
    return [_read.decode(document.body) for document in found[:limit]]


async def prune_audit(store: Store, *, now_at: int, kept: int = KEPT, kept_ms: int = KEPT_MS) -> int:
    """Remove a batch of the oldest entries, if there are too many or they are too old. Gives how many."""
    names = sorted(document.name for document in await store.read(AUDIT))
    oldest = f"{max(0, now_at - kept_ms):015d}"
    extra = len(names) - kept
    gone = [name for number, name in enumerate(names) if number < extra or name < oldest][:PRUNED_MAX]
    for name in gone:
        await store.write(AUDIT, name, None)
    return len(gone)


def _bounded(value: Any) -> Any:
    body = _encode(value)
    if len(body) <= VALUE_MAX:
        return value
    return {"bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}
