"""What the ranks of benchmarks on GPUs share: their device, and their groups."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import headway  # noqa: F401  importing registers the backend
import torch
import torch.distributed as dist


def device_of(rank: int) -> torch.device:
    """The GPU of a rank; ranks share those that are there."""
    if not torch.cuda.is_available():
        raise RuntimeError("this host has no GPU that torch can use")
    return torch.device("cuda", rank % torch.cuda.device_count())


def connect(
    *, rank: int, ranks: int, store: str, systems: Sequence[str], timeout_s: int
) -> dict[str, dist.ProcessGroup]:
    """Joins the default group, of Gloo, and makes a group for each system; slots are exchanged in Headway's."""
    torch.cuda.set_device(device_of(rank))
    timeout = datetime.timedelta(seconds=timeout_s)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=timeout)
    groups = {"headway": dist.new_group(backend="headway", timeout=timeout)}
    groups["headway_slots"] = groups["headway"]
    if "nccl" in systems:
        groups["nccl"] = dist.new_group(backend="nccl", timeout=timeout)
    return groups


def leave() -> None:
    """Leaves all groups, once every rank is done."""
    dist.barrier()
    dist.destroy_process_group()
