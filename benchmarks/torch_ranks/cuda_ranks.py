"""What the ranks of benchmarks on GPUs share: their device, and their groups."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

import headway
import torch
import torch.distributed as dist
from torch.distributed import _symmetric_memory as symmetric_memory

from benchmarks.torch_ranks.joining import JoinSettings, join

#: The system that is NCCL under its policy to use no multiprocessors: all-to-alls of even blocks in symmetric memory go
#: by copy engines.
NCCL_COPY_ENGINES = "nccl_copy_engines"


def device_of(rank: int) -> torch.device:
    """The GPU of a rank; ranks share those that are there."""
    if not torch.cuda.is_available():
        raise RuntimeError("this host has no GPU that torch can use")
    return torch.device("cuda", rank % torch.cuda.device_count())


class ConnectSettings(JoinSettings, Protocol):
    """The same, with the systems that are measured."""

    @property
    def systems(self) -> Sequence[str]: ...


def connect(settings: ConnectSettings, *, engine: str = "auto") -> dict[str, dist.ProcessGroup]:
    """Joins the default group, of Gloo, and makes a group for each system; Headway's have one."""
    torch.cuda.set_device(device_of(settings.rank))
    timeout = join(settings)
    options = headway.Options(engine=engine)
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
    dist.all_reduce(torch.zeros(1, device=device), group=group)  # Connects it, which symmetric memory needs.
    symmetric_memory.set_backend("NCCL")
    return group


def symmetric_zeros(size: int, device: torch.device, group: dist.ProcessGroup) -> torch.Tensor:
    """(size,) uint8 in memory that the copy engines of NCCL reach; all ranks of the group make it at the same point."""
    tensor = symmetric_memory.empty(size, dtype=torch.uint8, device=device)
    symmetric_memory.rendezvous(tensor, group)
    return tensor.zero_()


def exchange_by_copy_engines(output_B: torch.Tensor, input_B: torch.Tensor, group: dist.ProcessGroup) -> None:
    """One exchange of even blocks; not on the current stream, as it falls back to kernels on the default one."""
    work = dist.all_to_all_single(output_B, input_B, group=group, async_op=True)
    assert work is not None
    work.wait()
