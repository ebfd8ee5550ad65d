"""The figures of a ledger as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headway.integrations.celery.ledger import Ledger

_GAUGES = {
    "pending": "Tasks that wait in a queue.",
    "running": "Tasks that run from a queue.",
    "work_seconds": "Seconds of work that a queue is expected to have waiting or running.",
    "oldest_seconds": "For how long a queue's oldest task has waited.",
    "read": "Whether a live worker reads a queue.",
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
    """Read all figures and write them as text. Raises ``StoreError``."""
    loads, figures = ledger.loads(queues), ledger.figures()
    lines: list[str] = []
    for name, help_text in _GAUGES.items():
        lines += _head(f"headway_celery_{name}", "gauge", help_text)
        for load in loads:
            value = {
                "pending": load.pending,
                "running": load.running,
                "work_seconds": load.work_ms / 1_000,
                "oldest_seconds": (load.oldest_ms or 0) / 1_000,
                "read": int(load.read is not False),
            }[name]
            lines.append(f'headway_celery_{name}{{queue="{_escape(load.queue)}"}} {value:g}')
    for name, help_text in _COUNTERS.items():
        lines += _head(f"headway_celery_{name}_total", "counter", help_text)
        lines.append(f"headway_celery_{name}_total {figures.tally.get(name, 0)}")
    for name, value, help_text in (
        (
            "drift",
            ledger.check(),
            "Numbers of the ledger that do not agree with each other; anything but 0 is an error.",
        ),
        ("workers", len(figures.nodes), "Workers that live."),
        ("errors", ledger.errors, "What this process could not count since it began."),
    ):
        lines += [*_head(f"headway_celery_{name}", "gauge", help_text), f"headway_celery_{name} {value}"]
    return "\n".join(lines) + "\n"


def _head(name: str, kind: str, help_text: str) -> Iterable[str]:
    return f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
