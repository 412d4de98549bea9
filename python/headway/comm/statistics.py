# SPDX-License-Identifier: Apache-2.0
"""Statistics of a group: how long this rank waited for which peer, and traffic. They cost no extra messages.

A block is the data from one rank to another in an exchange, and a slot is its receive buffer. The lag of an exchange is
the number of later exchanges of its channel that this rank had posted when it completed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict, cast

import torch.distributed as dist

from headway.comm._former_keys import WithFormerKeys
from headway.comm.groups import backend_of

#: New name of each former key.
_NEW_NAMES = {"landing_bytes": "receive_buffer_bytes", "offers_revoked": "rendezvous_fallbacks"}


class PeerStatistics(TypedDict):
    """One peer, seen from this rank."""

    wait_s: float  #: seconds that waits lasted because this peer was the last to arrive
    waits: int  #: waits that ended with the arrival of this peer
    bytes_sent: int
    bytes_received: int
    messages_sent: int
    messages_received: int
    #: notifications of a message or part of one (fragment), dropped because it had arrived before
    repeated_fragments: int


class CudaStatistics(TypedDict):
    """Operations on CUDA tensors since the group was created."""

    operations: int  #: operations started
    bytes_sent: int  #: to other ranks
    bytes_received: int
    #: Copies inside the device, on its multiprocessors: out of slots, and of the rank's blocks to itself.
    local_copies: int
    local_copy_bytes: int
    receive_buffer_bytes: int  #: device memory reserved as receive buffer
    mapped_bytes: int  #: memory of peers' devices (their ``headway.empty()``) that this rank can write to


class GroupStatistics(TypedDict):
    """Statistics of one group on this rank since it was created or ``reset_stats()`` was last called."""

    peers: dict[int, PeerStatistics]  #: by rank in the group
    lag_histogram: list[int]  #: entry i: exchanges completed while i later ones of their channel were posted
    wait_s_by_lag: list[float]  #: entry i: seconds that exchanges of lag i were waited for
    operations: int  #: exchanges completed
    lag_lost: int  #: blocks larger than a slot, which cannot lag, in exchanges whose ``max_lag`` was above 0
    #: large blocks that the receiver did not get in time, so that the sender sent them through the slot
    rendezvous_fallbacks: int
    queued: int  #: all-to-alls that ``max_lag`` kept from being posted at their start
    receive_buffer_bytes: int  #: host memory reserved as receive buffer
    cuda: CudaStatistics  #: not reset


def stats(group: dist.ProcessGroup | None = None) -> GroupStatistics:
    """Returns the statistics of a headway group on this rank. Local and cheap.

    Raises:
        ValueError: the group is not a headway group.
    """
    found = backend_of(group).statistics()
    return cast(GroupStatistics, _with_former_keys({**found, "cuda": _with_former_keys(found["cuda"])}))


def reset_stats(group: dist.ProcessGroup | None = None) -> None:
    """Sets all counters of a headway group on this rank to zero, except those in ``cuda``."""
    backend_of(group).reset_statistics()


def _with_former_keys(values: Mapping[str, Any]) -> WithFormerKeys:
    return WithFormerKeys(values, new_names=_NEW_NAMES, owner="headway.stats()")
