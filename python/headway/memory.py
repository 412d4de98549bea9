"""Tensors in memory that Headway owns."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from headway import _extension


def empty(
    *size: int | Sequence[int], dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """``torch.empty`` in memory that an RDMA device keeps registered.

    Over RDMA, blocks above 64 KiB are read where they are, and those above ``Options(slot_bytes=)`` are written
    straight into the output: such memory must be registered with the device. That of this function stays registered,
    also when it is freed and used again, up to ``Options(rdma_cache_bytes=)``; any other is registered for each
    exchange anew. From 16 KiB on a block that stays registered is not copied on its way out either. So it is worth
    having for blocks from 16 KiB that are exchanged again and again. With shared memory and tcp it is ordinary memory.

    Args:
        size: the shape, as integers or as one sequence of them.
        dtype: ``torch.get_default_dtype()`` where None.
        device: the CPU.
    Returns:
        Shape ``size``, contiguous, of undefined contents, without gradient; its first byte begins a page. The memory
        goes back to Headway's pool with the last tensor that uses it. It is rounded up to at least 64 KiB, and the
        storage cannot be resized.
    Raises:
        NotImplementedError: ``device`` is not the CPU.
        RuntimeError: a size is negative, or there is no memory.
        TypeError: a size is not an integer.
    """
    if torch.device(device).type != "cpu":
        raise NotImplementedError(f"headway.empty() makes tensors on cpu only, not on {device}")
    shape: Sequence[Any] = size[0] if len(size) == 1 and isinstance(size[0], Sequence) else size
    return _extension.empty([operator.index(each) for each in shape], dtype or torch.get_default_dtype())
