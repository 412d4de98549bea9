# SPDX-License-Identifier: Apache-2.0
"""Shrinks a group to its surviving ranks after a failure.

Idea: the survivors agree on their membership over the control connections of the old group; no store and no coordinator
takes part. Each rank announces the set of ranks that it takes for members, at first all that it does not know to be
lost. It drops every rank that another member has dropped, and announces again, until all members have announced the
same set. Ranks that stay silent for ``timeout`` are dropped. The members then connect a new group, whose rank 0 runs a
new store.

Example: rank 2 of 4 dies. Ranks 0, 1 and 3 call shrink() and become ranks 0, 1 and 2: ``ranks == [0, 1, 3]``. They have
completed 12, 11 and 12 all-to-alls, so ``all_to_alls == [11]``. All three redo the twelfth in the new group.

Invariants: all members return the same ``ranks``, ``all_to_alls`` and ``collectives``.
    ``all_to_alls`` and ``collectives`` are minima over the members, so no member has to redo an operation before them.
    A rank that the others have excluded gets an error when it wakes up.
Complexity: an announcement goes to all other ranks of the old group. If one more rank is lost while the members
    connect, they agree again; there are at most as many attempts as the old group has ranks, plus one.
    An agreement takes at most two timeouts.
Implementation: libcomm/src/group/survivors.cpp (agreement), libcomm/src/group/shrink.cpp,
    c10d_backend/backend/shrink.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from headway.comm.groups import NAME, backend_of


@dataclass(frozen=True, kw_only=True)
class ShrunkGroup:
    """A group of the surviving ranks, and the operation at which to resume.

    Every member has completed the first ``all_to_alls[c]`` all-to-alls of channel ``c`` of the old group (exchanges on
    different channels are numbered apart), and the first ``collectives`` of its other collectives. Reductions, which
    Gloo or NCCL execute, do not count. A member may have completed a few more, up to its ``max_lag``, the number of
    all-to-alls by which it may run ahead. The caller must restore its state from before these, and redo them.
    """

    group: dist.ProcessGroup
    ranks: list[int]  #: (new size,) rank in the old group, indexed by rank in the new group; ascending
    all_to_alls: list[int]  #: (num_channels,) all-to-alls that every member has completed
    collectives: int  #: other collectives that every member has completed


def shrink(
    group: dist.ProcessGroup | None = None,
    *,
    exclude: Sequence[int] = (),
    timeout: timedelta = timedelta(seconds=30),
) -> ShrunkGroup:
    """Creates a group of the surviving ranks, after an error has named a lost or silent rank.

    All surviving ranks must call it. It needs neither the store of the old group nor its rank 0. The old group is
    destroyed. If it is the default group, the new group replaces it, and all other groups are destroyed too, because
    global ranks change. The channels keep their ``max_lag``.

    Args:
        group: a headway group; None: the default group.
        exclude: ranks of the group to leave out even if they are alive.
        timeout: ranks that stay silent for this long are left out. Such a rank gets an error when it wakes up.
    Raises:
        ValueError: it is not a headway group, it has a single rank, or ``exclude`` has an invalid rank.
        torch.distributed.DistBackendError: the others go on without this rank, or the survivors could not agree or
            connect. The message names the ranks.
    """
    c10d: Any = dist.distributed_c10d  # Its public shrink function needs a living store, so this uses private ones.
    info = c10d._prepare_shrink_target_group(group)
    old = info["process_group"]
    global_ranks = dist.get_process_group_ranks(old)
    result = backend_of(old).shrink_to_survivors(list(exclude), timeout)
    left_out = {rank for index, rank in enumerate(global_ranks) if index not in result.ranks}
    # _finalize_shrunk_group() takes the store of the new group from the entry of the old one.
    c10d._world.pg_map[old] = (NAME, result.backend.store)
    info["pg_options_override"] = None
    new = c10d._finalize_shrunk_group(info, left_out, result.backend)
    if info["is_default_group"]:  # The new default group defines new global ranks.
        c10d._world.pg_group_ranks[new] = {rank: rank for rank in range(len(result.ranks))}
    return ShrunkGroup(group=new, ranks=result.ranks, all_to_alls=result.all_to_alls, collectives=result.collectives)
