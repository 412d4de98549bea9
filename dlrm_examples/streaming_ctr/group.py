# SPDX-License-Identifier: Apache-2.0
"""Exchanges among the ranks of a training, besides those of the tables. A group of None means a single rank."""

from __future__ import annotations

from typing import Any, TypeVar

import torch.distributed as dist

T = TypeVar("T")


def all_ranks() -> dist.ProcessGroup:
    """The default group; ``init_process_group()`` must have been called."""
    group = dist.group.WORLD
    assert group is not None, "init_process_group() comes first"
    return group


def rank_of(group: dist.ProcessGroup | None) -> int:
    """This process's rank in ``group``; 0 without a group."""
    return 0 if group is None else group.rank()


def slice_of(begin: int, end: int, group: dist.ProcessGroup | None) -> tuple[int, int]:
    """This rank's part (begin, end) of examples ``begin`` to ``end - 1``. Parts differ by at most one; may be empty."""
    rank, size = (0, 1) if group is None else (group.rank(), group.size())
    return begin + (end - begin) * rank // size, begin + (end - begin) * (rank + 1) // size


def all_gather(value: T, group: dist.ProcessGroup | None) -> list[T]:
    """All-gathers a small picklable value of each rank; returns them by rank. Collective."""
    if group is None:
        return [value]
    values: list[Any] = [None] * group.size()
    dist.all_gather_object(values, value, group=group)
    return values
