"""The documents in which processes publish their metrics. Readers sum them.

Every process has one document with everything it has counted so far, so writing it twice changes nothing. When the
process leaves, or has not written for ``STALE`` seconds, its document is added to the retired one, so
counters never fall.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from headway.stores.base import Store

TASK_RUNS = "tasks"  # Kind of rows by outcome and task.
OTHER = "other"  # Label of values beyond a bound, so that the number of labels stays small.

METRICS = "tally"  # The kind of these documents in the store.
RETIRED = "retired"  # The name of the document with the sums of processes that are gone.
STALE = 600.0  # Seconds without an update after which a document is compacted. A live process then starts a new one.
TRIES = 20  # Attempts at a write that other processes compete for.
TASK_ROWS_MAX = 1_000  # Rows by task in the retired document. Beyond this, the rarest are merged.

MetricRow = list[float]  # The count of each bucket, then the sum of all values.


class MetricsDocument(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Counters and histogram rows by key.

    ``folded`` names the documents that the retired one contains and that may still exist. A ``closed`` document is
    about to be added to the retired one, and its process must start another.
    """

    counters: dict[str, float] = msgspec.field(default_factory=dict)
    rows: dict[str, MetricRow] = msgspec.field(default_factory=dict)
    folded: dict[str, int] = msgspec.field(default_factory=dict)
    closed: bool = False

    def add(self, other: MetricsDocument) -> None:
        for key, count in other.counters.items():
            self.counters[key] = self.counters.get(key, 0) + count
        for key, row in other.rows.items():
            own = self.rows.get(key)
            if own is None:
                self.rows[key] = list(row)
            elif len(own) == len(row):  # Another release may have other buckets.
                self.rows[key] = [own[at] + row[at] for at in range(len(row))]

    def merge_rare(self, kind: str, most: int, other: str) -> None:
        """Merge the rarest rows of a kind beyond ``most``, because task names come and go."""
        keys = [key for key in self.rows if key.startswith(f"{kind}|")]
        if len(keys) <= most:
            return
        for key in sorted(keys, key=lambda key: self.rows[key][0])[: len(keys) - most]:
            row = self.rows.pop(key)
            outcome = key.split("|", 2)[1]
            self.add(MetricsDocument(rows={f"{kind}|{outcome}|{other}": row}))


encode = msgspec.json.Encoder().encode
read_document = msgspec.json.Decoder(MetricsDocument).decode


async def read_documents(store: Store) -> MetricsDocument:
    """Return the sums over all processes, including those that are gone."""
    documents = await store.read(METRICS)
    total = MetricsDocument()
    for document in documents:
        if document.name == RETIRED:
            total = read_document(document.body)
    for document in documents:
        if document.name != RETIRED and document.name not in total.folded:
            total.add(read_document(document.body))
    return total


class MetricsCompactor:
    """Compacts documents that have not changed for ``STALE`` seconds. Any number of processes may run it."""

    def __init__(self, store: Store, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._monotonic = monotonic
        self._seen: dict[str, tuple[int, float]] = {}  # By name: the version, and since when it is unchanged.

    async def __call__(self) -> float | None:
        now = self._monotonic()
        seen, stale = self._seen, []
        self._seen = {}
        for document in await self._store.read(METRICS):
            if document.name == RETIRED:
                continue
            version, since = seen.get(document.name, (0, now))
            since = since if version == document.version else now
            self._seen[document.name] = (document.version, since)
            if now - since >= STALE:
                stale.append(document.name)
        if stale:
            await compact(self._store, stale)
        return None


async def compact(store: Store, names: Sequence[str]) -> None:
    """Move documents into the retired one. A repeated or interrupted call counts nothing twice and loses nothing.

    A document is closed first, so that its process cannot write to it any more. Then it is added to the retired one,
    which names it from then on, so that readers skip it. Finally it is removed.
    """
    for name in names:
        if not await _close(store, name):
            continue
        for _ in range(TRIES):
            retired, version = await read_retired(store)
            documents = {document.name: document for document in await store.read(METRICS)}
            own = documents.get(name)
            if own is None:
                break
            if name not in retired.folded:
                retired.add(read_document(own.body))
                retired.merge_rare(TASK_RUNS, TASK_ROWS_MAX, OTHER)
                retired.folded = {known: at for known, at in retired.folded.items() if known in documents}
                retired.folded[name] = own.version
                if await store.write(METRICS, RETIRED, encode(retired), if_version=version) is None:
                    continue  # Another process compacted meanwhile.
            await store.write(METRICS, name, None, if_version=own.version)
            break


async def _close(store: Store, name: str) -> bool:
    for _ in range(TRIES):
        found = await store.read(METRICS, name)
        if not found:
            return False
        document = read_document(found[0].body)
        if document.closed:
            return True
        document.closed = True
        if await store.write(METRICS, name, encode(document), if_version=found[0].version) is not None:
            return True
    return False


async def read_retired(store: Store) -> tuple[MetricsDocument, int]:
    found = await store.read(METRICS, RETIRED)
    return (read_document(found[0].body), found[0].version) if found else (MetricsDocument(), 0)
