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
            self._total_bytes = _bytes_of(Path("/proc/meminfo"), "MemAvailable") // num_ranks + _bytes_of(
                _STATUS, "VmRSS"
            )

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
            return (_bytes_of(_STATUS, "VmHWM") + self._extra_bytes) / self._total_bytes
        free, total = torch.cuda.mem_get_info(self._device)
        of_others = total - free - torch.cuda.memory_reserved(self._device)
        return (of_others + torch.cuda.max_memory_reserved(self._device) + self._extra_bytes) / self._total_bytes


def ranks_of_host(num_ranks: int) -> int:
    """Returns the ranks on this host: all of them, unless a launcher says otherwise."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", num_ranks))


def _available_bytes() -> int:
    """Returns the bytes that the host has available, or the control group of this process if it has fewer left."""
    available = _bytes_of(Path("/proc/meminfo"), "MemAvailable")
    with contextlib.suppress(OSError, ValueError):  # No limit, no such file, or version 1 of control groups.
        limit, used = (int(Path("/sys/fs/cgroup", name).read_text()) for name in ("memory.max", "memory.current"))
        available = min(available, max(limit - used, 0))
    return available


def _bytes_of(path: Path, field: str) -> int:
    """Reads a field in KiB of a file such as /proc/meminfo."""
    for line in path.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise OSError(f"{path} has no {field}")
