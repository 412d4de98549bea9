"""What a rank waited for: counted by the group itself, without any extra message."""

from __future__ import annotations

from typing import TypedDict

import torch.distributed as dist

from headway.groups import backend_of


class PeerStatistics(TypedDict):
    """One peer, seen from this rank."""

    wait_s: float  #: seconds that waits lasted because this peer was the last to arrive
    waits: int
    bytes_sent: int
    bytes_received: int
    messages_sent: int
    messages_received: int
    repeated_fragments: int  #: notifications dropped because the fragment had arrived before


class CudaStatistics(TypedDict):
    """Exchanges of CUDA tensors, since the first of the group."""

    operations: int  #: started
    bytes_sent: int  #: to other ranks
    bytes_received: int
    local_copies: int  #: inside the device, on its multiprocessors: out of slots, and of a rank's blocks to itself
    local_copy_bytes: int
    landing_bytes: int  #: memory of the device that is reserved for what peers send
    mapped_bytes: int  #: memory of peers' devices that this rank may write to: their outputs of ``headway.empty()``


class GroupStatistics(TypedDict):
    """One group on this rank, since its start or the last ``reset_stats()``."""

    peers: dict[int, PeerStatistics]  #: by rank in the group
    lag_histogram: list[int]  #: entry i: exchanges completed while i later ones of their channel were posted
    wait_s_by_lag: list[float]  #: seconds waited at that lag
    operations: int  #: exchanges completed
    lag_lost: int  #: exchanges with a block larger than a slot while their bound was above 0
    offers_revoked: int  #: large blocks that a receiver did not fetch in time, so that they were sent
    queued: int  #: operations that could not be posted at their start
    landing_bytes: int  #: memory reserved for what peers send
    cuda: CudaStatistics  #: not reset


def stats(group: dist.ProcessGroup | None = None) -> GroupStatistics:
    """Statistics of a headway group on this rank; local and cheap.

    Raises:
        ValueError: the group is not a headway group.
    """
    return backend_of(group).statistics()


def reset_stats(group: dist.ProcessGroup | None = None) -> None:
    """Sets all counters of a headway group on this rank to zero, but those of CUDA tensors."""
    backend_of(group).reset_statistics()
