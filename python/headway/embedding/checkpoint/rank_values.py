# SPDX-License-Identifier: Apache-2.0
"""Broadcast and all-gather of Python values. Without a group there is one rank."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist


def broadcast(value: Any, process_group: dist.ProcessGroup | None) -> Any:
    """Returns rank 0's value on all ranks."""
    if process_group is None:
        return value
    values = [value]
    dist.broadcast_object_list(values, group=process_group, group_src=0)
    return values[0]


def all_gather(value: Any, process_group: dist.ProcessGroup | None) -> list[Any]:
    """Returns the values of all ranks, by rank."""
    if process_group is None:
        return [value]
    values: list[Any] = [None] * process_group.size()
    dist.all_gather_object(values, value, group=process_group)
    return values
