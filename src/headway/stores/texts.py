"""Which texts a store accepts, so that every store keeps the same ones and reads them back equal."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from headway.core.errors import JobError, PayloadError
from headway.core.job import NewJob
from headway.core.worker import WorkerInfo

TEXT_BYTES_MAX = 1_200  # Bytes of one text: an index of PostgreSQL holds two of them in one row of 2,704 bytes.
CLASS_BYTES_MAX = 2_400  # Bytes of all texts that make a class, for the same index.
ELEMENT_BYTES = 8  # Bytes that PostgreSQL adds to each element of an array.

_rest = itemgetter(*map(NewJob._fields.index, (
    "lane", "needs", "rung", "tenant", "idempotency_key", "unique_key", "trace_id", "limits",
)))  # fmt: skip


def check_jobs(jobs: Sequence[NewJob]) -> None:
    """Raise ``PayloadError`` for a job with a text that not every store could keep.

    Stores call it before they keep anything.
    """
    task: str | None = None
    known: object = None
    for index, job in enumerate(jobs):
        if "," in job.job_id or not job.job_id.isprintable():  # Ids are told as lists, with a comma or a line for each.
            raise PayloadError(f"job {index} of the batch: its id must be printable, not {job.job_id[:100]!r}")
        rest = _rest(job)
        if rest != known or job.task != task:  # The jobs of a batch mostly differ in their ids and payloads alone.
            known, task = rest, job.task
            _check_job(job, f"job {index} of the batch: its")


def check_worker(worker: WorkerInfo) -> None:
    """Raise ``PayloadError`` for a worker with a text that not every store could keep."""
    for name, text in (("id", worker.worker_id), ("host", worker.host), ("version", worker.version)):
        check_text(text, f"a worker's {name}")
    for offer in worker.offers:
        check_text(offer, "a worker's capability")


def check_text(text: str, what: str) -> None:
    """Raise ``PayloadError`` for a text that not every store could keep."""
    if not is_writable(text):
        raise PayloadError(f"{what} must be text without NUL and lone surrogates, not {text[:100]!r}")
    if len(text) * 4 > TEXT_BYTES_MAX and (size := len(text.encode())) > TEXT_BYTES_MAX:
        raise PayloadError(f"{what} may have {TEXT_BYTES_MAX:,} bytes, but has {size:,}")


def is_writable(text: str | None) -> bool:
    """Return whether every store can keep a text of this kind, whatever its length."""
    if text is None:
        return True
    if "\0" in text:
        return False
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def escape_surrogates(text: str) -> str:
    """Return a text that has an encoding: a lone surrogate becomes the six letters of its escape.

    For words of a running job (progress, errors, results), which must not fail because of how they are written.
    """
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def escape_error(error: JobError) -> JobError:
    """Return an error whose texts have an encoding."""
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
            f"{whose} task, lane, duration and capabilities may have {CLASS_BYTES_MAX:,} bytes together, "
            f"but have {size:,}"
        )
