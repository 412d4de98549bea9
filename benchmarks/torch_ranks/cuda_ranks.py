"""What the ranks of benchmarks on GPUs share: their device, and their groups."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Protocol

import headway  # noqa: F401  importing registers the backend
import torch
import torch.distributed as dist


def device_of(rank: int) -> torch.device:
    """The GPU of a rank; ranks share those that are there."""
    if not torch.cuda.is_available():
        raise RuntimeError("this host has no GPU that torch can use")
    return torch.device("cuda", rank % torch.cuda.device_count())


class ConnectSettings(Protocol):
    """What every benchmark's settings of a rank hold."""

    @property
    def rank(self) -> int: ...
    @property
    def ranks(self) -> int: ...
    @property
    def store(self) -> str: ...
    @property
    def systems(self) -> Sequence[str]: ...
    @property
    def timeout_s(self) -> int: ...


def connect(settings: ConnectSettings) -> dict[str, dist.ProcessGroup]:
    """Joins the default group, of Gloo, and makes a group for each system; slots are exchanged in Headway's."""
    torch.cuda.set_device(device_of(settings.rank))
    timeout = datetime.timedelta(seconds=settings.timeout_s)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{settings.store}",
        rank=settings.rank,
        world_size=settings.ranks,
        timeout=timeout,
    )
    groups = {"headway": dist.new_group(backend="headway", timeout=timeout)}
    groups["headway_slots"] = groups["headway"]
    if "nccl" in settings.systems:
        groups["nccl"] = dist.new_group(backend="nccl", timeout=timeout)
    return groups


def leave() -> None:
    """Leaves all groups, once every rank is done."""
    dist.barrier()
    dist.destroy_process_group()
