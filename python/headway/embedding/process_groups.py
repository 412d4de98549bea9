# SPDX-License-Identifier: Apache-2.0
"""The process group of a collection, by default the world group, and what its ranks gather."""

from __future__ import annotations

import enum
from typing import Final, Literal

import torch
import torch.distributed as dist


class Local(enum.Enum):
    """The type of ``LOCAL``, the ``process_group`` of a rank that has all ids itself and exchanges nothing."""

    LOCAL = "local"

    def __repr__(self) -> str:
        return "LOCAL"


#: Value of ``process_group`` for a rank that has all ids itself and exchanges nothing, even if there are groups.
LOCAL: Final = Local.LOCAL

GroupOrLocal = dist.ProcessGroup | Literal[Local.LOCAL] | None


def resolve_group(process_group: GroupOrLocal) -> dist.ProcessGroup | None:
    """Returns the group whose ranks share the ids, or None if this rank is alone.

    Args:
        process_group: a group or ``LOCAL``; None: the world group, or this rank alone if there is none.
    Raises:
        ValueError: this rank is not a member of the group, or the argument is no group.
    """
    if process_group is LOCAL:
        return None
    if process_group is None:
        return dist.group.WORLD if dist.is_available() and dist.is_initialized() else None
    if not isinstance(process_group, dist.ProcessGroup):
        if process_group == dist.GroupMember.NON_GROUP_MEMBER:  # new_group() returns it on ranks outside the group.
            raise ValueError("this rank is not a member of process_group, so it cannot share its tables")
        raise ValueError(f"process_group must be a ProcessGroup, None or LOCAL, not {process_group!r}")
    return process_group


def gather_scalars(own: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Returns the () tensors of all ranks of a group as an (R,) tensor."""
    return _gathered(own.view(1), group)


def gather_vectors(own_N: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Returns the (N,) tensors of all ranks of a group as an (R, N) tensor on the CPU."""
    of_ranks = _gathered(own_N.cuda() if dist.get_backend(group) == "nccl" else own_N, group)
    return of_ranks.view(-1, len(own_N)).cpu()


def _gathered(own_N: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    of_ranks = own_N.new_empty(dist.get_world_size(group) * len(own_N))
    # PyTorch 2.14 renamed the function, and warns of the former name.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    gather(of_ranks, own_N, group=group)
    return of_ranks


def any_rank(group: dist.ProcessGroup | None, flag: bool) -> bool:
    """Returns whether the flag of any rank of a group is set. All ranks call it. None: this rank is alone."""
    if group is None or group.size() == 1:
        return flag
    of_rank = torch.tensor(int(flag), device="cuda" if dist.get_backend(group) == "nccl" else "cpu")
    dist.all_reduce(of_rank, dist.ReduceOp.MAX, group=group)
    return bool(of_rank.item())
