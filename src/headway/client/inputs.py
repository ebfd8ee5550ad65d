"""Puts the results of a job's sources into its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headway.client.codec import REFERENCES_VERSION, fill_references, raw_payload
from headway.core.errors import UpstreamFailed
from headway.core.job import State
from headway.core.workflow import Upstream, is_batch


def has_inputs(payload: bytes) -> bool:
    """Return whether arguments contain results of other jobs, which ``fill_inputs`` puts in."""
    return payload[:1] == REFERENCES_VERSION


def fill_inputs(payload: bytes, upstreams: Sequence[Upstream]) -> bytes:
    """Return arguments with the results of other jobs. Raises ``UpstreamFailed`` for a job that has none.

    The results of a batch are its id: the task reads them in pages.
    """

    def result(index: int) -> Any:
        upstream = upstreams[index]
        if is_batch(upstream.source):
            return {"batch_id": upstream.source}
        if upstream.state is not State.COMPLETED:
            raise UpstreamFailed(
                f"an argument is the result of job {upstream.source}, which ended as {upstream.state or 'unknown'}",
                job_id=upstream.source,
            )
        return None if upstream.result is None else raw_payload(upstream.result)

    return fill_references(payload, result)
