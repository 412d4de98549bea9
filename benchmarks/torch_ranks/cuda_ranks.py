# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the ranks of GPU benchmarks: their device and their groups."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

import headway
import torch
import torch.distributed as dist
from torch.distributed import _symmetric_memory as symmetric_memory

#: The system "NCCL without multiprocessors": all-to-alls of even blocks in symmetric memory use copy engines.
NCCL_COPY_ENGINES = "nccl_copy_engines"


def device_of(rank: int) -> torch.device:
    """Returns the GPU of a rank. Ranks share GPUs if there are too few."""
    if not torch.cuda.is_available():
        raise RuntimeError("this host has no GPU that torch can use")
    return torch.device("cuda", rank % torch.cuda.device_count())


class ConnectSettings(Protocol):
    """Fields that the settings of every benchmark's ranks have."""

    @property
    def rank(self) -> int: ...
    @property
    def timeout_s(self) -> int: ...
    @property
    def systems(self) -> Sequence[str]: ...


def connect(settings: ConnectSettings, *, transport: str = "auto") -> dict[str, dist.ProcessGroup]:
    """Makes one group per system. Headway's systems share a group: they differ in the memory of their tensors only."""
    torch.cuda.set_device(device_of(settings.rank))
    timeout = timedelta(seconds=settings.timeout_s)
    options = headway.Options(transport=transport)
    groups = {"headway": dist.new_group(backend="headway", timeout=timeout, pg_options=options)}
    groups["headway_slots"] = groups["headway_empty"] = groups["headway"]
    if "nccl" in settings.systems:
        groups["nccl"] = dist.new_group(backend="nccl", timeout=timeout)
    if NCCL_COPY_ENGINES in settings.systems:
        groups[NCCL_COPY_ENGINES] = _copy_engine_group(device_of(settings.rank), timeout)
    return groups


def _copy_engine_group(device: torch.device, timeout: timedelta) -> dist.ProcessGroup:
    options: Any = dist.ProcessGroupNCCL.Options()
    options.config.cta_policy = dist.ProcessGroupNCCL.NCCL_CTA_POLICY_ZERO
    group = dist.new_group(backend="nccl", timeout=timeout, pg_options=options)
    # Connects the group: symmetric memory needs a connected group.
    dist.all_reduce(torch.zeros(1, device=device), group=group)
    symmetric_memory.set_backend("NCCL")
    return group


def symmetric_zeros(size: int, device: torch.device, group: dist.ProcessGroup) -> torch.Tensor:
    """Makes (size,) uint8 in memory that NCCL's copy engines reach. Collective: all ranks call it at the same point."""
    tensor = symmetric_memory.empty(size, dtype=torch.uint8, device=device)
    symmetric_memory.rendezvous(tensor, group)
    return tensor.zero_()


def exchange_by_copy_engines(output_B: torch.Tensor, input_B: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Does one exchange of even blocks, not on the current stream: on the default stream NCCL falls back to kernels."""
    work = dist.all_to_all_single(output_B, input_B, group=group, async_op=True)
    assert work is not None
    work.wait()
