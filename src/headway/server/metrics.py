"""The numbers for a monitoring system, in the format it asks for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from headway.core.policy.document import Policy
from headway.metrics.export import MetricFamily, collect
from headway.stores.base import Store


async def render(store: Store, policy: Policy, accept: str = "") -> tuple[bytes, str]:
    """Return the whole store in numbers and their content type: OpenMetrics if ``accept`` names it, else plain text.

    Whichever process is asked, the answer is the same; nothing is kept between two of them.
    """
    registry = CollectorRegistry()
    registry.register(_Once(await collect(store, policy)))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Once(Collector):
    def __init__(self, families: Iterable[MetricFamily]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            metric = Metric(family.name, family.help, family.kind)
            for suffix, labels, value in family.samples:
                metric.add_sample(f"{family.name}{suffix}", dict(labels), value)
            yield metric
