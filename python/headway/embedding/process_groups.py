"""The process group of a collection: the world group unless the caller asks for another one or for none."""

from __future__ import annotations

import enum
from typing import Final, Literal

import torch.distributed as dist


class Local(enum.Enum):
    """The type of ``LOCAL``."""

    LOCAL = "local"

    def __repr__(self) -> str:
        return "LOCAL"


#: As ``process_group``: this rank has all ids to itself and exchanges nothing, whatever groups there are.
LOCAL: Final = Local.LOCAL

GroupOrLocal = dist.ProcessGroup | Literal[Local.LOCAL] | None


def resolve_group(process_group: GroupOrLocal) -> dist.ProcessGroup | None:
    """The group whose ranks share the ids out; None: this rank alone.

    Args:
        process_group: None is the world group, as in ``torch.distributed``; without one, this rank is alone.
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
