"""The systems under comparison: which loop runs over which backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import headway
import torch.distributed as dist


@dataclass(frozen=True, kw_only=True)
class System:
    """One line of the comparison."""

    name: str
    description: str
    backend: str
    bounded_lag: bool  # listing 2; else listing 1, which has no bound


SYSTEMS = {
    system.name: system
    for system in (
        System(name="sync", description="synchronous DLRM (listing 1) over Gloo", backend="gloo", bounded_lag=False),
        System(name="bls-gloo", description="bounded-lag DLRM (listing 2) over Gloo", backend="gloo", bounded_lag=True),
        System(
            name="bls-headway",
            description="bounded-lag DLRM (listing 2) over Headway",
            backend="headway",
            bounded_lag=True,
        ),
    )
}


def make_group(system: System, *, max_lag: int, slot_bytes: int) -> dist.ProcessGroup:
    """A new group of all ranks for one system and bound; every rank calls this in the same order.

    Args:
        system: which backend.
        max_lag: bound of a Headway group.
        slot_bytes: largest block that one rank sends to another in one exchange.
    """
    options = None
    if system.backend == "headway":
        options = headway.Options(max_lag=max_lag, slot_bytes=slot_bytes)
    return cast(dist.ProcessGroup, dist.new_group(backend=system.backend, pg_options=options))
