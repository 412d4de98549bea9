"""What the ranks of benchmarks on GPUs share: their device, and their groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import headway
import torch
import torch.distributed as dist

from benchmarks.torch_ranks.joining import JoinSettings, join


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
    return groups
