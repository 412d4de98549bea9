"""Ranks of this host that act as if they were on several."""

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


def share_memory(rank: int) -> str:
    options = headway.Options(engine="shm", connect_timeout=timedelta(seconds=20))
    try:
        dist.all_to_all_single(
            torch.empty(2), torch.ones(2), group=dist.new_group(backend="headway", pg_options=options)
        )
    except (dist.DistBackendError, ValueError, RuntimeError) as error:
        return str(error)
    return "no error"


def test_ranks_on_different_hosts_share_no_memory() -> None:
    assert run_ranks(share_memory, 2) == ["no error", "no error"]
    for text in run_ranks(share_memory, 2, hosts="ab"):
        assert "shm" in text and "host" in text, text
