# SPDX-License-Identifier: Apache-2.0
"""The compared systems: each is one inference loop over a backend of ``torch.distributed``, chosen by device.

Listings are those of Dichev et al., arXiv 2512.19342. Bounded lag: a rank that is ahead goes on for up to
``max_lag`` exchanges before it waits for the slowest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import headway
import torch.distributed as dist

from dlrm_examples.dlrm_inference.devices import DeviceName

_LEAST_CUDA_SLOT_BYTES = 1 << 16  # Headway refuses smaller slots (receive buffers of a block).


@dataclass(frozen=True, kw_only=True)
class System:
    """One compared system."""

    name: str
    description: str
    backends: Mapping[DeviceName, str]  # backend by device; a device without an entry is not supported
    bounded_lag: bool  # True: listing 2; False: listing 1, which has no bound


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
    """Names of the systems that run on ``device``."""
    return [system.name for system in SYSTEMS.values() if device in system.backends]


def make_group(backend: str, *, max_lag: int, slot_bytes: int) -> dist.ProcessGroup:
    """Creates a group of all ranks. Collective: all ranks call it in the same order.

    Args:
        backend: backend name of ``torch.distributed``.
        max_lag: bound of a Headway group; ignored for others.
        slot_bytes: largest block that a rank sends to another in one exchange; ignored for other backends.
    """
    options = None
    if backend == "headway":
        options = headway.Options(
            max_lag=max_lag, slot_bytes=slot_bytes, cuda_slot_bytes=max(slot_bytes, _LEAST_CUDA_SLOT_BYTES)
        )
    return cast(dist.ProcessGroup, dist.new_group(backend=backend, pg_options=options))
