"""The systems under comparison: which loop runs over which backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import headway
import torch.distributed as dist

from dlrm_examples.bls_dlrm.devices import DeviceName

_LEAST_CUDA_SLOT_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class System:
    """One line of the comparison."""

    name: str
    description: str
    backends: Mapping[DeviceName, str]  # of the devices on which it runs
    bounded_lag: bool  # listing 2; else listing 1, which has no bound


SYSTEMS = {
    system.name: system
    for system in (
        System(
            name="sync",
            description="synchronous DLRM (listing 1) over Gloo, or NCCL on GPUs",
            backends={"cpu": "gloo", "cuda": "nccl"},
            bounded_lag=False,
        ),
        System(
            name="bls-gloo",
            description="bounded-lag DLRM (listing 2) over Gloo",
            backends={"cpu": "gloo"},
            bounded_lag=True,
        ),
        System(
            name="bls-nccl",
            description="bounded-lag DLRM (listing 2) over NCCL",
            backends={"cuda": "nccl"},
            bounded_lag=True,
        ),
        System(
            name="bls-headway",
            description="bounded-lag DLRM (listing 2) over Headway",
            backends={"cpu": "headway", "cuda": "headway"},
            bounded_lag=True,
        ),
    )
}


def systems_on(device: DeviceName) -> list[str]:
    """Names of the systems that run there."""
    return [system.name for system in SYSTEMS.values() if device in system.backends]


def make_group(backend: str, *, max_lag: int, slot_bytes: int) -> dist.ProcessGroup:
    """A new group of all ranks for one backend and bound; every rank calls this in the same order.

    Args:
        backend: of ``torch.distributed``.
        max_lag: bound of a Headway group.
        slot_bytes: largest block that one rank sends to another in one exchange.
    """
    options = None
    if backend == "headway":
        options = headway.Options(
            max_lag=max_lag, slot_bytes=slot_bytes, cuda_slot_bytes=max(slot_bytes, _LEAST_CUDA_SLOT_BYTES)
        )
    return cast(dist.ProcessGroup, dist.new_group(backend=backend, pg_options=options))
