"""Statistics of a group: how long this rank waited for which peer, and traffic. They cost no extra messages."""

from __future__ import annotations

from typing import TypedDict

import torch.distributed as dist

from headway.groups import backend_of


class PeerStatistics(TypedDict):
    """One peer, seen from this rank."""

    wait_s: float  #: seconds that waits lasted because this peer was the last to arrive
    waits: int  #: waits that ended with the arrival of this peer
    bytes_sent: int
    bytes_received: int
    messages_sent: int
    messages_received: int
    repeated_fragments: int  #: notifications dropped because the fragment had arrived before


class CudaStatistics(TypedDict):
    """Operations on CUDA tensors since the group was created."""

    operations: int  #: operations started
    bytes_sent: int  #: to other ranks
    bytes_received: int
    #: Copies inside the device, on its multiprocessors: out of slots, and of the rank's blocks to itself.
    local_copies: int
    local_copy_bytes: int
    landing_bytes: int  #: device memory reserved as receive buffer
    mapped_bytes: int  #: memory of peers' devices (their ``headway.empty()``) that this rank can write to


class GroupStatistics(TypedDict):
    """Statistics of one group on this rank since it was created or ``reset_stats()`` was last called."""

    peers: dict[int, PeerStatistics]  #: by rank in the group
    lag_histogram: list[int]  #: entry i: exchanges completed while i later ones of their channel were posted
    wait_s_by_lag: list[float]  #: seconds waited at that lag
    operations: int  #: exchanges completed
    lag_lost: int  #: blocks that were larger than a slot, in exchanges whose bound was above 0
    offers_revoked: int  #: large blocks that the sender sent itself, because the receiver did not fetch them in time
    queued: int  #: operations that could not be posted at their start
    landing_bytes: int  #: host memory reserved as receive buffer
    cuda: CudaStatistics  #: not reset


def stats(group: dist.ProcessGroup | None = None) -> GroupStatistics:
    """Returns the statistics of a headway group on this rank. Local and cheap.

    Raises:
        ValueError: the group is not a headway group.
    """
    return backend_of(group).statistics()


def reset_stats(group: dist.ProcessGroup | None = None) -> None:
    """Sets all counters of a headway group on this rank to zero, except those in ``cuda``."""
    backend_of(group).reset_statistics()
