# SPDX-License-Identifier: Apache-2.0
"""Statistics of headway groups as Prometheus metrics, through the ``prometheus_client`` package.

Usage, in a process that serves metrics::

    import headway.metrics, prometheus_client

    headway.metrics.register(group, name="lookups")
    prometheus_client.start_http_server(9400)

It adds no messages and no counters: a scrape reads the counters of ``headway.stats()``. The lag of an exchange is the
number of later exchanges of its channel that this rank had posted when it completed. A slot is the receive buffer of
one block, the data from one rank to another in an exchange.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch.distributed as dist

from headway.comm._extension import HeadwayBackend
from headway.comm.groups import backend_of
from headway.comm.statistics import GroupStatistics, PeerStatistics

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Metric
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError("headway.metrics needs the package prometheus_client: pip install 'headway[metrics]'") from error

#: Key of ``PeerStatistics`` -> (name of the metric, its help text).
_PEER_COUNTERS = {
    "wait_s": ("headway_wait_seconds", "Time that waits lasted because this peer was the last to arrive."),
    "waits": ("headway_waits", "Waits that ended with the arrival of this peer."),
    "bytes_sent": ("headway_sent_bytes", "Payload sent to this peer."),
    "bytes_received": ("headway_received_bytes", "Payload received from this peer."),
    "messages_sent": ("headway_sent_messages", "Messages sent to this peer."),
    "messages_received": ("headway_received_messages", "Messages received from this peer."),
    "repeated_fragments": ("headway_repeated_fragments", "Notifications dropped because they had come before."),
}
#: Key of ``GroupStatistics`` -> (name of the metric, its help text).
_GROUP_COUNTERS = {
    "operations": ("headway_exchanges", "Exchanges completed."),
    "lag_lost": ("headway_lag_lost_exchanges", "Blocks larger than a slot, which cannot lag."),
    "rendezvous_fallbacks": (
        "headway_revoked_offers",
        "Large blocks that were not fetched in time, so that they were sent.",
    ),
    "queued": ("headway_queued_exchanges", "Exchanges that could not be posted at their start."),
}


class GroupCollector(Collector):
    """Metrics of one group on this rank; none once the group is destroyed. Holds only a weak reference to the group."""

    def __init__(self, group: dist.ProcessGroup | None, name: str) -> None:
        """Creates a collector that is not yet registered.

        Args:
            group: a headway group; None: the default group.
            name: label ``group`` of every metric. The label ``rank`` is the rank in the group.
        Raises:
            ValueError: the group is not a headway group.
        """
        backend_of(group)
        self._group = weakref.ref(dist.distributed_c10d._get_default_group() if group is None else group)
        self._labels = [name, str(dist.get_rank(group))]

    def collect(self) -> Iterable[Metric]:
        """Yields the current value of every metric; nothing if the group was destroyed."""
        group = self._group()
        if group is None or group not in dist.distributed_c10d._world.pg_map:
            return
        backend = backend_of(group)
        statistics = backend.statistics()
        yield from self._of_peers(statistics["peers"])
        yield from self._of_group(backend, statistics)

    def _of_peers(self, peers: dict[int, PeerStatistics]) -> Iterable[Metric]:
        for key, (name, text) in _PEER_COUNTERS.items():
            metric = CounterMetricFamily(name, text, labels=["group", "rank", "peer"])
            for peer, counters in peers.items():
                metric.add_metric([*self._labels, str(peer)], counters[key])  # type: ignore[literal-required]
            yield metric

    def _of_group(self, backend: HeadwayBackend, statistics: GroupStatistics) -> Iterable[Metric]:
        for key, (name, text) in _GROUP_COUNTERS.items():
            counter = CounterMetricFamily(name, text, labels=["group", "rank"])
            counter.add_metric(self._labels, statistics[key])  # type: ignore[literal-required]
            yield counter
        by_lag = CounterMetricFamily(
            "headway_exchanges_by_lag",
            "Exchanges completed while this many later ones were posted.",
            labels=["group", "rank", "lag"],
        )
        for lag, count in enumerate(statistics["lag_histogram"]):
            by_lag.add_metric([*self._labels, str(lag)], count)
        yield by_lag
        gauges = {
            ("headway_landing_bytes", "Memory reserved for what peers send."): statistics["receive_buffer_bytes"],
            ("headway_failed", "1 once the group has failed."): 1 if backend.health_message() else 0,
        }
        for (name, text), value in gauges.items():
            gauge = GaugeMetricFamily(name, text, labels=["group", "rank"])
            gauge.add_metric(self._labels, value)
            yield gauge


def register(
    group: dist.ProcessGroup | None = None, *, name: str = "default", registry: CollectorRegistry = REGISTRY
) -> GroupCollector:
    """Adds a group's metrics to a registry.

    Args:
        group: a headway group; None: the default group.
        name: label ``group`` of its metrics. Groups of one process need different names.
        registry: registry of ``prometheus_client``, by default its global one.
    Returns:
        the collector, to be passed to ``registry.unregister()``.
    Raises:
        ValueError: the group is not a headway group.
    """
    collector = GroupCollector(group, name)
    registry.register(collector)
    return collector
