"""Where a collection's tensors are, and how numbers of the host get there."""

from __future__ import annotations

from typing import Any

import torch


def resolve_device(device: torch.device | str | None) -> torch.device:
    """The CPU if none is given; of CUDA without a number the current one.

    Raises:
        ValueError: any other kind.
    """
    found = torch.device("cpu" if device is None else device)
    if found.type not in ("cpu", "cuda"):
        raise ValueError(f"tables are on the CPU or a CUDA device, not on {found}")
    if found.type == "cpu":
        return torch.device("cpu")
    return found if found.index is not None else torch.device("cuda", torch.cuda.current_device())


def place_name(device: torch.device) -> str:
    """For messages."""
    return "the CPU" if device.type == "cpu" else str(device)


def tensor_on(device: torch.device, values: Any, dtype: torch.dtype) -> torch.Tensor:
    """Numbers of the host as a tensor; does not wait for the device."""
    if device.type == "cpu":
        return torch.tensor(values, dtype=dtype)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)
