"""The text formats of Prometheus and OpenMetrics, for every process that shows metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

PLAIN = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

Labels = tuple[tuple[str, str], ...]


class Sample(NamedTuple):
    """One number. ``suffix`` follows the name of the family: _total, or _bucket, _count and _sum of a histogram."""

    suffix: str
    labels: Labels
    value: float


class MetricFamily(NamedTuple):
    """All samples of one name. The name of a counter is without _total."""

    name: str
    kind: str  # gauge | counter | histogram | summary
    help: str
    samples: Sequence[Sample]


def by_label(label: str, values: Mapping[str, float]) -> list[tuple[Labels, float]]:
    """Return values with their names as a label."""
    return [(((label, name),), value) for name, value in values.items()]


def gauges(name: str, text: str, values: Iterable[tuple[Labels, float]]) -> MetricFamily:
    return MetricFamily(name, "gauge", text, [Sample("", labels, float(value)) for labels, value in values])


def counters(name: str, text: str, values: Iterable[tuple[Labels, float]]) -> MetricFamily:
    return MetricFamily(name, "counter", text, [Sample("_total", labels, float(value)) for labels, value in values])


def content_type_for(accept: str) -> str:
    """Return OpenMetrics if an ``Accept`` header names version 1 of it or no version, else plain text."""
    for accepted in accept.split(","):
        if accepted.split(";")[0].strip() == "application/openmetrics-text" and "version=0." not in accepted:
            return OPENMETRICS
    return PLAIN


def write_text(families: Iterable[MetricFamily], content_type: str = PLAIN) -> str:
    """Write families in the format of a content type."""
    openmetrics = content_type == OPENMETRICS
    lines: list[str] = []
    for family in families:
        # Plain text describes the samples of a counter, OpenMetrics describes the family.
        name = f"{family.name}_total" if family.kind == "counter" and not openmetrics else family.name
        lines += [f"# HELP {name} {_escape(family.help, quoted=openmetrics)}", f"# TYPE {name} {family.kind}"]
        for suffix, labels, value in family.samples:
            text = ",".join(f'{label}="{_escape(given, quoted=True)}"' for label, given in labels)
            lines.append(f"{family.name}{suffix}{{{text}}} {value!r}" if text else f"{family.name}{suffix} {value!r}")
    if openmetrics:
        lines.append("# EOF")
    return "\n".join(lines) + "\n"


def _escape(text: str, *, quoted: bool) -> str:
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if quoted else text
