"""A batch as JSON values, the same over HTTP and on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headway.core.timestamps import write_moment
from headway.core.workflow import BatchRecord

COUNTS = ("total", "held", "waiting", "running", "completed", "failed", "cancelled")


def batch_values(batch: BatchRecord) -> dict[str, Any]:
    """Return a batch in numbers."""
    return {
        "batch_id": batch.batch_id,
        "name": batch.name,
        "key": batch.key,
        "tenant": batch.tenant,
        "status": batch.status,
        "counts": {name: getattr(batch, name) for name in COUNTS},
        "round": batch.round,
        "created_at": write_moment(batch.created_at),
        "finished_at": write_moment(batch.finished_at),
        "ends_in_seconds": batch.ends_in,
    }


def batch_page(found: Sequence[BatchRecord], limit: int) -> dict[str, Any]:
    """Return a page of at most ``limit`` batches. ``found`` has one more if another page follows."""
    after = str(found[limit - 1].seq) if len(found) > limit else None
    return {"items": [batch_values(batch) for batch in found[:limit]], "next_cursor": after}
