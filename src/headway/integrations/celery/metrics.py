"""The metrics of a ledger in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headway.integrations.celery.ledger import Ledger, QueueLoad
from headway.metrics.text_format import MetricFamily, Sample, write_text

_GAUGES: dict[str, tuple[str, Callable[[QueueLoad], float]]] = {
    "pending": ("Tasks that wait in a queue.", lambda load: load.pending),
    "running": ("Tasks that run from a queue.", lambda load: load.running),
    "work_seconds": (
        "Seconds of work that a queue is expected to have waiting or running.",
        lambda load: load.work_ms / 1_000,
    ),
    "oldest_seconds": ("For how long a queue's oldest task has waited.", lambda load: (load.oldest_ms or 0) / 1_000),
    "read": ("Whether a live worker reads a queue.", lambda load: int(load.read is not False)),
}
_COUNTERS = {
    "counted": "Tasks that were sent.",
    "started": "Runs that began.",
    "finished": "Runs that ended.",
    "revoked": "Tasks that were revoked or expired before they began.",
    "refused": "Tasks that the broker refused.",
    "discarded": "Tasks that no worker knew.",
    "unannounced": "Runs of tasks that no sender had counted.",
    "lost": "Runs that ended with a worker that died.",
    "dropped": "Tasks that were counted and not in the broker.",
    "adopted": "Tasks that were in the broker and not counted.",
    "reset": "Times that an operator reset the counters.",
}


def metrics_text(ledger: Ledger, queues: Sequence[str] = ()) -> str:
    """Read all metrics and return them as text. Raises ``StoreError``."""
    loads, figures = ledger.loads(queues), ledger.figures()
    families = [
        _family(name, "gauge", text, [Sample("", (("queue", load.queue),), read(load)) for load in loads])
        for name, (text, read) in _GAUGES.items()
    ]
    families += [
        _family(name, "counter", text, [Sample("_total", (), figures.tally.get(name, 0))])
        for name, text in _COUNTERS.items()
    ]
    families += [
        _family(name, "gauge", text, [Sample("", (), value)])
        for name, text, value in (
            (
                "drift",
                "Numbers of the ledger that do not agree with each other; anything but 0 is an error.",
                ledger.check(),
            ),
            ("workers", "Workers that live.", len(figures.nodes)),
            ("errors", "What this process could not count since it began.", ledger.errors),
        )
    ]
    return write_text(families)


def _family(name: str, kind: str, text: str, samples: Sequence[Sample]) -> MetricFamily:
    return MetricFamily(f"headway_celery_{name}", kind, text, samples)
