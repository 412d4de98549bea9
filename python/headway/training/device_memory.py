# SPDX-License-Identifier: Apache-2.0
"""Memory of the device that a rank computes on, and errors when it is full.

On CUDA the memory is that of the GPU, and all processes on it count. On CPUs it is the memory that the host has
available, or the control group of this process, divided among its ranks. This process alone counts.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import torch

from headway.cli._host import memory_info_bytes, memory_limit_bytes

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  #: See proc(5): resets VmHWM to VmRSS.


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation of torch failed, on CUDA or in memory of the host."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


class DeviceMemory:
    """Measures the largest part of a device's memory that is in use.

    Args:
        device: the device.
        num_ranks: ranks of this host, which share its memory on CPUs.
        extra_bytes: bytes that are not in use yet, and will be in a step of a training.
    """

    def __init__(self, device: torch.device, *, num_ranks: int, extra_bytes: int = 0) -> None:
        self._device, self._extra_bytes = device, extra_bytes
        if device.type == "cuda":
            self._total_bytes = torch.cuda.mem_get_info(device)[1]
        else:
            own = _process_bytes("VmRSS")
            self._total_bytes = _available_bytes(num_ranks * own) // num_ranks + own

    def reset(self) -> None:
        """Forgets the peak before now."""
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self._device)
        else:
            with contextlib.suppress(OSError):  # Some sandboxes forbid it: then the peak since the start counts.
                _CLEAR.write_text(_RESET_PEAK)

    def peak_share(self) -> float:
        """Returns the largest part of the memory in use since ``reset()``, 0 to 1."""
        if self._device.type != "cuda":
            return (_process_bytes("VmHWM") + self._extra_bytes) / self._total_bytes
        free, total = torch.cuda.mem_get_info(self._device)
        of_others = total - free - torch.cuda.memory_reserved(self._device)
        return (of_others + torch.cuda.max_memory_reserved(self._device) + self._extra_bytes) / self._total_bytes


def ranks_of_host(num_ranks: int) -> int:
    """Returns the ranks on this host: all of them, unless a launcher says otherwise."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", num_ranks))


def _available_bytes(used: int) -> int:
    """Returns the bytes that ranks of this host may still take: those available, or fewer by a limit of their cgroup.

    Args:
        used: bytes that they have taken.
    """
    available, limit = memory_info_bytes("MemAvailable") or 0, memory_limit_bytes()
    return available if limit is None else min(available, max(limit - used, 0))


def _process_bytes(field: str) -> int:
    """Reads a field in KiB of /proc/self/status."""
    for line in _STATUS.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise OSError(f"{_STATUS} has no {field}")
