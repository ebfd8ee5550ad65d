"""Checks texts before they are stored, so that every store accepts the same ones and reads them back equal."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from headway.core.errors import JobError, PayloadError
from headway.core.job import NewJob
from headway.core.worker import WorkerInfo

TEXT_BYTES_MAX = 1_200  # Bytes of one text. An index row of PostgreSQL has 2,704 bytes and holds two of them.
CLASS_BYTES_MAX = 2_400  # Bytes of all texts that make a class, for the same index.
ELEMENT_BYTES = 8  # Bytes that PostgreSQL adds to each element of an array.

_rest = itemgetter(*map(NewJob._fields.index, (
    "lane", "needs", "rung", "tenant", "idempotency_key", "unique_key", "trace_id", "limits",
)))  # fmt: skip


def check_jobs(jobs: Sequence[NewJob]) -> None:
    """Raise ``PayloadError`` for a job with a text that not every store can keep.

    Stores call it before they store anything.
    """
    task: str | None = None
    known: object = None
    for index, job in enumerate(jobs):
        if "," in job.job_id or not job.job_id.isprintable():  # Lists of ids are separated by commas or lines.
            text = f"its id must be printable and without commas, got {job.job_id[:100]!r}"
            raise PayloadError(f"job {index} of the batch: {text}")
        rest = _rest(job)
        if rest != known or job.task != task:  # Most jobs of a batch differ only in id and payload.
            known, task = rest, job.task
            _check_job(job, f"job {index} of the batch: its")


def check_worker(worker: WorkerInfo) -> None:
    """Raise ``PayloadError`` for a worker with a text that not every store can keep."""
    for name, text in (("id", worker.worker_id), ("host", worker.host), ("version", worker.version)):
        check_text(text, f"a worker's {name}")
    for offer in worker.offers:
        check_text(offer, "a worker's capability")


def check_text(text: str, what: str) -> None:
    """Raise ``PayloadError`` for a text that not every store can keep."""
    if not is_writable(text):
        raise PayloadError(f"{what} must be text without NUL and lone surrogates, got {text[:100]!r}")
    if len(text) * 4 > TEXT_BYTES_MAX and (size := len(text.encode())) > TEXT_BYTES_MAX:
        raise PayloadError(f"{what} must have at most {TEXT_BYTES_MAX:,} bytes, got {size:,}")


def is_writable(text: str | None) -> bool:
    """Return whether every store can keep a text like this, whatever its length."""
    if text is None:
        return True
    if "\0" in text:
        return False
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def escape_surrogates(text: str) -> str:
    """Return a text that can be encoded: a lone surrogate becomes the six characters of its escape.

    For texts from a running job (progress, errors, results), which must not fail because of their characters.
    """
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def escape_error(error: JobError) -> JobError:
    """Return an error whose texts can be encoded."""
    kind, message, traceback = map(escape_surrogates, (error.type, error.message, error.traceback))
    return JobError(kind, message, traceback, error.retriable)


def _check_job(job: NewJob, whose: str) -> None:
    size = len(job.task.encode("utf-8", "replace"))
    check_text(job.task, f"{whose} task")
    for name, text in (("lane", job.lane), ("rung", job.rung), ("tenant", job.tenant),
                       ("idempotency key", job.idempotency_key), ("unique key", job.unique_key),
                       ("trace id", job.trace_id)):  # fmt: skip
        if text is not None:
            check_text(text, f"{whose} {name}")
    for name, texts in (("capability", job.needs), ("limit", job.limits)):
        for text in texts:
            check_text(text, f"{whose} {name}")
    # The task counts too: a worker that does not know it sends the job back with the capability ``task:NAME``.
    size += len(job.lane.encode()) + len((job.rung or "").encode())
    size += sum(len(need.encode()) + ELEMENT_BYTES for need in job.needs)
    if size > CLASS_BYTES_MAX:
        raise PayloadError(
            f"{whose} task, lane, duration and capabilities must have at most {CLASS_BYTES_MAX:,} bytes together, "
            f"got {size:,}"
        )
