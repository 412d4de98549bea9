# SPDX-License-Identifier: Apache-2.0
"""The device of a collection, and copies of host numbers to it."""

from __future__ import annotations

from typing import Any

import torch


def resolve_device(device: torch.device | str | None) -> torch.device:
    """Returns the CPU for None, and the current CUDA device for CUDA without an index.

    Raises:
        ValueError: the device is neither the CPU nor CUDA.
    """
    found = torch.device("cpu" if device is None else device)
    if found.type not in ("cpu", "cuda"):
        raise ValueError(f"tables are on the CPU or a CUDA device, not on {found}")
    if found.type == "cpu":
        return torch.device("cpu")
    return found if found.index is not None else torch.device("cuda", torch.cuda.current_device())


def place_name(device: torch.device) -> str:
    """Returns the name of a device for messages."""
    return "the CPU" if device.type == "cpu" else str(device)


def tensor_on(device: torch.device, values: Any, dtype: torch.dtype) -> torch.Tensor:
    """Makes a tensor of host numbers on ``device``, through pinned memory. Does not wait for the device."""
    if device.type == "cpu":
        return torch.tensor(values, dtype=dtype)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)
