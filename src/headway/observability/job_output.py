"""The output of running programs: the latest part of it, kept in the store for the readers of a job's events.

The worker writes one document for each job, about once a second, and then reports progress, which wakes the readers.
It writes nothing for a program that ends within the first second. The job's result holds all of the output.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headway.core.event import Event, output_place
from headway.core.job import JobId, JobRecord
from headway.stores.base import Store

OUTPUT = "output"  # The kind of document.
KEPT_MAX = 16 << 10  # Characters of the latest output that a reader can still see.
CHUNKS_MAX = 200
STREAMS = ("stdout", "stderr")
PRUNED_AFTER_MS = 60_000  # A reader has this long after the end of a job to read the last of its output.
PRUNED_MAX = 500  # Jobs that ``prune_output`` reads in one call of the store.


class Chunk(msgspec.Struct, frozen=True):
    """A piece of output. ``at`` grows with every piece of a run; ``offset``: characters of the stream before it."""

    at: int
    stream: str
    offset: int
    text: str


class JobOutput(msgspec.Struct, frozen=True):
    """The latest output of one run of a job."""

    epoch: int
    chunks: list[Chunk]


_decode = msgspec.json.Decoder(JobOutput).decode
_encode = msgspec.json.Encoder().encode


class OutputTail:
    """Collects the output of a program and drops the oldest part."""

    def __init__(self) -> None:
        self._chunks: list[Chunk] = []
        self._size = 0
        self._offsets: dict[str, int] = dict.fromkeys(STREAMS, 0)
        self._at = 0
        self.changed = False

    def add(self, stream: str, text: str, now_at: int) -> None:
        """Add what a program wrote to one of its streams."""
        if not text:
            return
        offset = self._offsets[stream]
        self._offsets[stream] = offset + len(text)
        if len(text) > KEPT_MAX:
            offset, text = offset + len(text) - KEPT_MAX, text[-KEPT_MAX:]
        self._at = max(self._at + 1, now_at)
        self._chunks.append(Chunk(self._at, stream, offset, text))
        self._size += len(text)
        while self._size > KEPT_MAX or len(self._chunks) > CHUNKS_MAX:
            self._size -= len(self._chunks.pop(0).text)
        self.changed = True

    def take(self) -> list[Chunk]:
        """Return the collected output for writing."""
        self.changed = False
        return list(self._chunks)

    @property
    def last_line(self) -> str:
        """The last line that is not empty."""
        for chunk in reversed(self._chunks):
            for line in reversed(chunk.text.splitlines()):
                if line.strip():
                    return line.strip()
        return ""


async def write_output(store: Store, job_id: JobId, epoch: int, chunks: Iterable[Chunk]) -> bool:
    """Write the latest output of a run, unless a later run has written already. Return whether it did."""
    found = await store.read(OUTPUT, job_id)
    if found and (known := read_output(found[0].body)) is not None and known.epoch > epoch:
        return False
    body = _encode(JobOutput(epoch, list(chunks)))
    return await store.write(OUTPUT, job_id, body, if_version=found[0].version if found else 0) is not None


def read_output(body: bytes) -> JobOutput | None:
    """Decode a document. Return None if another release wrote it in another format."""
    try:
        return _decode(body)
    except msgspec.DecodeError:
        return None


async def output_events(store: Store, job: JobRecord, after: tuple[int, ...]) -> list[Event]:
    """Return the output of a job's latest run that comes after a place in its events, oldest first.

    A job without progress has no output, because every worker that writes output reports progress with it.
    """
    if job.progress is None:
        return []
    found = await store.read(OUTPUT, job.job_id)
    output = read_output(found[0].body) if found else None
    if output is None or output.epoch != job.epoch:
        return []
    return [
        Event("output", one.at, job.job_id, {"stream": one.stream, "offset": one.offset, "text": one.text}, place)
        for one in output.chunks
        if (place := output_place(job.epoch, one.at)) > after
    ]


async def prune_output(store: Store) -> int:
    """Remove the output of jobs that ended a while ago, or are gone. Return how many documents it removed."""
    names = [JobId(document.name) for document in await store.read(OUTPUT)]
    removed = 0
    for start in range(0, len(names), PRUNED_MAX):
        batch = names[start : start + PRUNED_MAX]
        for job_id, job in zip(batch, await store.get(batch), strict=True):
            if job is None or (job.finished_at is not None and job.seen_at - job.finished_at > PRUNED_AFTER_MS):
                await store.write(OUTPUT, job_id, None)
                removed += 1
    return removed
