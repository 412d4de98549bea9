# SPDX-License-Identifier: Apache-2.0
"""Metrics of a group in the format of Prometheus."""

from __future__ import annotations

import headway
import headway.metrics
import pytest
import torch
import torch.distributed as dist
from prometheus_client import CollectorRegistry
from rank_processes import run_ranks

_CALLS = 3


def scrape(rank: int) -> None:
    group = dist.new_group(backend="headway", pg_options=headway.Options(max_lag=1))
    registry = CollectorRegistry()
    collector = headway.metrics.register(group, name="lookups", registry=registry)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"group": "lookups", "rank": str(rank), **labels})

    assert value("headway_exchanges_total") == 0
    for _ in range(_CALLS):
        dist.all_to_all_single(torch.empty(8, dtype=torch.uint8), torch.zeros(8, dtype=torch.uint8), group=group)
    assert value("headway_exchanges_total") == _CALLS
    assert value("headway_sent_bytes_total", peer=str(1 - rank)) == 4 * _CALLS
    assert value("headway_received_messages_total", peer=str(1 - rank)) == _CALLS
    assert value("headway_exchanges_by_lag_total", lag="0") == _CALLS
    # The metric has kept the former name of the receive buffer.
    assert value("headway_landing_bytes") == headway.stats(group)["receive_buffer_bytes"]
    assert value("headway_failed") == 0

    dist.barrier()
    headway.backend_of(group).abort()
    assert value("headway_failed") == 1
    dist.destroy_process_group(group)
    assert value("headway_exchanges_total") is None, "the group is gone"
    registry.unregister(collector)


def test_a_scrape_shows_what_the_group_counted() -> None:
    run_ranks(scrape, 2)


def refuse(rank: int) -> None:
    with pytest.raises(ValueError, match="not a headway group"):
        headway.metrics.register(dist.new_group(backend="gloo"), registry=CollectorRegistry())


def test_only_headway_groups_have_metrics() -> None:
    run_ranks(refuse, 1)
