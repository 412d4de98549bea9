# SPDX-License-Identifier: Apache-2.0
"""Finds the headway backend of a process group, and sets its ``max_lag``."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from headway.comm._extension import HeadwayBackend

NAME = "headway"


def find_backend(group: dist.ProcessGroup | None = None) -> HeadwayBackend | None:
    """Returns the headway backend of ``group``, or None if it has none. None as argument: the default group."""
    if group is None:
        group = dist.distributed_c10d._get_default_group()
    for device in group._device_types:
        backend: Any = group._get_backend(device)
        # TORCH_DISTRIBUTED_DEBUG=DETAIL wraps the backend in a checker.
        backend = getattr(backend, "wrapped_pg", backend)
        if isinstance(backend, HeadwayBackend):
            return backend
    return None


def backend_of(group: dist.ProcessGroup | None = None) -> HeadwayBackend:
    """Returns the headway backend of ``group``; None: of the default group.

    Raises:
        ValueError: the group belongs to another backend.
    """
    backend = find_backend(group)
    if backend is None:
        raise ValueError(f"this group is not a headway group: its backend is {dist.get_backend(group)}")
    return backend


def set_max_lag(max_lag: int, *, group: dist.ProcessGroup | None = None, channel: int | None = None) -> None:
    """Changes ``max_lag``, the number of all-to-alls by which this rank may run ahead of its peers, from now on.

    All-to-alls on one channel are numbered together, and each channel has its own ``max_lag``. Ranks may use different
    values. ``Options.max_lag`` keeps the initial value; ``backend_of(group).max_lag(channel)`` returns the current one.

    Args:
        max_lag: 0 to the group's ``Options.max_lag_limit``.
        group: a headway group; None: the default group.
        channel: index of the channel, 0 to ``Options.num_channels`` - 1; None: all channels.
    Raises:
        ValueError: ``max_lag`` is above the group's limit, there is no such channel, or it is not a headway group.
    """
    backend_of(group).set_max_lag(max_lag, channel)
