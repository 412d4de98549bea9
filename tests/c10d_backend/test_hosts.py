# SPDX-License-Identifier: Apache-2.0
"""Ranks on this host that pretend to be on several hosts. ``hosts`` has a letter for each rank: its host."""

from __future__ import annotations

from datetime import timedelta

import headway
import pytest
import torch
import torch.distributed as dist
from rank_processes import run_ranks


def exchange(rank: int) -> list[float]:
    size = dist.get_world_size()
    output = torch.empty(size * 50_000)
    dist.all_to_all_single(output, torch.full((size * 50_000,), float(rank)))
    total = torch.tensor([1.0])
    dist.all_reduce(total)
    return [*output.view(size, -1).mean(dim=1).tolist(), float(total)]


@pytest.mark.parametrize("hosts", ["ab", "aab"])
def test_ranks_on_different_hosts_reach_each_other(hosts: str) -> None:
    size = len(hosts)
    assert run_ranks(exchange, size, hosts=hosts) == [[*map(float, range(size)), float(size)]] * size


def transport_to_the_other(rank: int, transport: str) -> str:
    options = headway.Options(transport=transport, connect_timeout=timedelta(seconds=20))
    group = dist.new_group(backend="headway", pg_options=options)
    dist.all_to_all_single(torch.empty(2), torch.ones(2), group=group)
    return headway.backend_of(group).transports()[1 - rank]


def test_ranks_on_different_hosts_share_no_memory_unless_they_are_asked_to() -> None:
    assert run_ranks(transport_to_the_other, 2, "auto") == ["shm", "shm"]
    assert run_ranks(transport_to_the_other, 2, "auto", hosts="ab") == ["tcp", "tcp"]
    assert run_ranks(transport_to_the_other, 2, "shm", hosts="ab") == ["shm", "shm"]
