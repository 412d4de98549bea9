"""Finds the headway backend in a group, and sets its bounds."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from headway._extension import HeadwayBackend

NAME = "headway"


def find_backend(group: dist.ProcessGroup | None = None) -> HeadwayBackend | None:
    """The headway backend of a group (of the default group where None), or None if it has none."""
    if group is None:
        group = dist.distributed_c10d._get_default_group()
    for device in group._device_types:
        backend: Any = group._get_backend(device)
        # TORCH_DISTRIBUTED_DEBUG=DETAIL puts a checker in front.
        backend = getattr(backend, "wrapped_pg", backend)
        if isinstance(backend, HeadwayBackend):
            return backend
    return None


def backend_of(group: dist.ProcessGroup | None = None) -> HeadwayBackend:
    """The headway backend of a group.

    Raises:
        ValueError: the group belongs to another backend.
    """
    backend = find_backend(group)
    if backend is None:
        raise ValueError(f"this group is not a headway group: its backend is {dist.get_backend(group)}")
    return backend


def set_max_lag(max_lag: int, *, group: dist.ProcessGroup | None = None, channel: int | None = None) -> None:
    """Changes this rank's bound from now on; other ranks need not do the same.

    The group's ``Options.max_lag`` stays what it began with; ``backend_of(group).max_lag(channel)`` is the bound now.

    Args:
        max_lag: 0 to the group's ``Options.max_lag_limit``.
        group: a headway group; the default group where None.
        channel: whose bound, 0 to ``Options.num_channels`` - 1; that of all channels where None.
    Raises:
        ValueError: the group has no room for that bound or no such channel, or is not a headway group.
    """
    backend_of(group).set_max_lag(max_lag, channel)
