"""Goes on with the ranks that are left when others are lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from headway.groups import NAME, backend_of


@dataclass(frozen=True, kw_only=True)
class ShrunkGroup:
    """A group of the ranks that are left, and where to resume.

    Every rank of it has completed the first ``all_to_alls[c]`` all-to-alls of channel ``c`` of the old group, and the
    first ``collectives`` of its other collectives (reductions, which Gloo or NCCL do, do not count). A rank may have
    completed a few more, up to its bound; those are to be done again, from the state of that time.
    """

    group: dist.ProcessGroup
    ranks: list[int]  #: rank in the old group of each rank of the new one, ascending
    all_to_alls: list[int]  #: (num_channels)
    collectives: int


def shrink(
    group: dist.ProcessGroup | None = None,
    *,
    exclude: Sequence[int] = (),
    timeout: timedelta = timedelta(seconds=30),
) -> ShrunkGroup:
    """Makes a group of the ranks that are left, after an error named a rank that is lost or silent.

    All ranks that are left must call it. They agree over the connections of the old group: neither the store by which
    it was made nor its rank 0 is needed. The old group is destroyed; the default group is replaced by the new one, and
    then all other groups are destroyed too, as their ranks are numbered anew.
    The bounds of the old group's channels are those of the new one's.

    Args:
        group: a headway group; None: the default one.
        exclude: ranks of the group to leave out though they may be alive.
        timeout: ranks that say nothing for so long are left out. If one wakes up later, it gets an error.
    Raises:
        ValueError: not a headway group, one of a single rank, or a wrong rank in ``exclude``.
        torch.distributed.DistBackendError: others go on without this rank, or those that are left could not agree or
            connect; it says who.
    """
    c10d: Any = dist.distributed_c10d  # Its functions for shrunk groups take the store to be alive, and are private.
    info = c10d._prepare_shrink_target_group(group)
    old = info["process_group"]
    global_ranks = dist.get_process_group_ranks(old)
    result = backend_of(old).shrink_to_survivors(list(exclude), timeout)
    left_out = {rank for index, rank in enumerate(global_ranks) if index not in result.ranks}
    c10d._world.pg_map[old] = (NAME, result.backend.store)
    info["pg_options_override"] = None
    new = c10d._finalize_shrunk_group(info, left_out, result.backend)
    if info["is_default_group"]:  # Global ranks are those of the default group.
        c10d._world.pg_group_ranks[new] = {rank: rank for rank in range(len(result.ranks))}
    return ShrunkGroup(group=new, ranks=result.ranks, all_to_alls=result.all_to_alls, collectives=result.collectives)
