"""The documents in which processes keep what they have counted. Readers sum them.

Every process has one of its own with all it has counted so far, so writing it twice changes nothing. When the process
leaves, or has written nothing for long, its document is folded into a retired one: counters never fall.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from headway.stores.base import Store

TASK_RUNS = "tasks"  # Rows by outcome and task,
OTHER = "other"  # and what labels are that must not grow without end.

METRICS = "tally"  # The kind of these documents,
RETIRED = "retired"  # and the name of the one that holds what processes that are gone had counted.
STALE = 600.0  # Seconds without a word after which a process's document is folded. It may live: then it begins another.
TRIES = 20
TASK_ROWS_MAX = 1_000  # Rows by task in the retired document. With more, those with the fewest jobs are added up.

Row = list[float]  # How many in each bucket; last, the sum of all.


class MetricsDocument(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What was counted: numbers by key, and rows of buckets by key.

    ``folded``, of the retired one: the documents that are in it but may not have been removed yet. ``closed``: this
    one is about to be folded, and its process has to begin another.
    """

    counters: dict[str, float] = msgspec.field(default_factory=dict)
    rows: dict[str, Row] = msgspec.field(default_factory=dict)
    folded: dict[str, int] = msgspec.field(default_factory=dict)
    closed: bool = False

    def add(self, other: MetricsDocument) -> None:
        for key, count in other.counters.items():
            self.counters[key] = self.counters.get(key, 0) + count
        for key, row in other.rows.items():
            mine = self.rows.get(key)
            if mine is None:
                self.rows[key] = list(row)
            elif len(mine) == len(row):  # Else it is of a release with other buckets.
                self.rows[key] = [mine[at] + row[at] for at in range(len(row))]

    def merge_rare(self, kind: str, most: int, other: str) -> None:
        """Add up the rarest rows of a kind, if there are more than ``most``: names of tasks come and go."""
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
    """Sum what all processes have counted, those that are gone too."""
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
    """Folds the documents of processes that have said nothing for long. No leader: any number may do so at once."""

    def __init__(self, store: Store, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._monotonic = monotonic
        self._seen: dict[str, tuple[int, float]] = {}  # By name: which version, and since when.

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
    """Move documents into the retired one. Safe to do twice, and to stop anywhere: nothing is counted twice or lost.

    First each is closed, so that its process, should it live, can add nothing more to it; then it is added to the
    retired one, which names it from that moment on, so that readers pass over it; at last it is removed.
    """
    for name in names:
        if not await _close(store, name):
            continue
        for _ in range(TRIES):
            retired, version = await read_retired(store)
            documents = {document.name: document for document in await store.read(METRICS)}
            mine = documents.get(name)
            if mine is None:
                break
            if name not in retired.folded:
                retired.add(read_document(mine.body))
                retired.merge_rare(TASK_RUNS, TASK_ROWS_MAX, OTHER)
                retired.folded = {known: at for known, at in retired.folded.items() if known in documents}
                retired.folded[name] = mine.version
                if await store.write(METRICS, RETIRED, encode(retired), if_version=version) is None:
                    continue  # Another process folds: look again.
            await store.write(METRICS, name, None, if_version=mine.version)
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
