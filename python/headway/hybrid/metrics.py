# SPDX-License-Identifier: Apache-2.0
"""Counts of a dense worker as Prometheus metrics, through the ``prometheus_client`` package.

Usage, in a training script::

    import headway.hybrid.metrics, prometheus_client

    headway.hybrid.metrics.register(tables)
    prometheus_client.start_http_server(9500 + rank, "127.0.0.1")

The label ``rank`` is the dense worker. Parameter servers and embedding workers have pages of their own.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from headway.hybrid.tables import HybridTables

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Metric
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError(
        "headway.hybrid.metrics needs the package prometheus_client: pip install 'headway[metrics]'"
    ) from error


class TablesCollector(Collector):
    """Metrics of one ``HybridTables``; none once it is gone, to which it holds only a weak reference."""

    def __init__(self, tables: HybridTables) -> None:
        self._tables = weakref.ref(tables)
        self._rank = str(tables.rank)

    def collect(self) -> Iterable[Metric]:
        """Yields the current value of every metric."""
        tables = self._tables()
        if tables is None:
            return
        counts = tables.counts()
        for name, text, value in (
            ("begun_batches", "Batches whose lookup was sent.", counts.begun),
            ("trained_batches", "Batches whose gradients all servers have taken.", counts.trained),
            ("empty_batches", "Batches without samples, since the worker has run out of data.", counts.empty),
        ):
            family = CounterMetricFamily(f"headway_hybrid_dense_{name}", text, labels=["rank"])
            family.add_metric([self._rank], value)
            yield family
        lost = CounterMetricFamily(
            "headway_hybrid_dense_lost_batches", "Batches that were not trained, by cause.", labels=["rank", "cause"]
        )
        for cause, value in counts.lost.items():
            lost.add_metric([self._rank, cause], value)
        yield lost
        in_flight = GaugeMetricFamily(
            "headway_hybrid_dense_batches_in_flight", "Batches that have begun and not ended.", labels=["rank"]
        )
        in_flight.add_metric([self._rank], counts.in_flight)
        yield in_flight
        waits = CounterMetricFamily(
            "headway_hybrid_dense_wait_seconds",
            "Time that this dense worker waited, by the server or embedding worker.",
            labels=["rank", "peer"],
        )
        for peer, seconds in tables.waits():
            waits.add_metric([self._rank, peer], seconds)
        yield waits


def register(tables: HybridTables, *, registry: CollectorRegistry = REGISTRY) -> TablesCollector:
    """Adds the counts of a dense worker to a registry.

    Args:
        tables: what ``headway.hybrid.connect()`` returned, with a mode other than ``local``.
        registry: registry of ``prometheus_client``, by default its global one.
    Returns:
        the collector, to be passed to ``registry.unregister()``.
    """
    collector = TablesCollector(tables)
    registry.register(collector)
    return collector
