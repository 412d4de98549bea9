# SPDX-License-Identifier: Apache-2.0
"""Tensors in memory that RDMA devices and peers can access directly."""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Sequence
from typing import Any

import torch

from headway.comm import _extension

# By device: (generation, pool). The generation rises when a group fails; older pools are then no longer used.
_pools: dict[int, tuple[int, torch.cuda.MemPool]] = {}
_pools_lock = threading.Lock()


def empty(
    *size: int | Sequence[int], dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """``torch.empty`` in memory that RDMA devices and peers can access directly.

    **On a CPU**: memory that stays registered with the RDMA device. Over RDMA, blocks (the data from one rank to
    another in an exchange) above 64 KiB are read in place. Blocks above ``Options(slot_bytes=)``, the size of a slot
    (receive buffer of one block), are also written straight into the output. Both need registered memory.

    * Memory of this function stays registered, even after it is freed and reused, up to ``Options(rdma_cache_bytes=)``.
      Any other memory is registered anew for each exchange.
    * Blocks of at least 16 KiB in memory that stays registered are sent without a copy.
    * It therefore pays off for blocks of at least 16 KiB that are exchanged repeatedly.
    * Over shared memory and tcp it behaves like ordinary memory.

    **On a CUDA device**: memory from ``mem_pool()`` that the other ranks of the host map. Use it for the outputs of
    all-to-alls, broadcasts, gathers, scatters and all-gathers.

    * The sender copies a block above 64 KiB straight into such an output. Blocks for other outputs arrive in slots;
      a copy on the device's multiprocessors moves them into the output.
    * The sender's host must know the output when it starts the exchange. Of two ranks, the later one always copies
      directly. The earlier one looks for the output of the other for up to 20 us and else uses slots.
    * A direct copy starts when the streams of both ranks have reached the exchange; slots are filled at once. All ranks
      must therefore start the operations of a group in one order, messages included.
    * ``headway.slots`` avoids all copies inside a device.
    * The memory is reused after the host has seen that the exchange is done. Free memory stays in the pool, as with any
      private pool of torch.

    Args:
        size: the shape, as integers or as one sequence of integers.
        dtype: None: ``torch.get_default_dtype()``.
        device: the CPU or a CUDA device; without an index the current CUDA device.
    Returns:
        contiguous tensor of shape ``size`` with undefined contents, without gradient. On a CPU the data is aligned to a
        page, the memory is rounded up to at least 64 KiB, it returns to Headway's pool with the last tensor that uses
        it, and the storage cannot be resized. On a CUDA device it comes from torch's allocator and is ordered by the
        current stream.
    Raises:
        NotImplementedError: ``device`` is neither a CPU nor a CUDA device.
        RuntimeError: a size is negative, or there is no memory (``torch.OutOfMemoryError`` on a CUDA device).
        TypeError: a size is not an integer.
    """
    device = torch.device(device)
    if device.type not in ("cpu", "cuda"):
        raise NotImplementedError(f"headway.empty() makes tensors on cpu and cuda, not on {device}")
    shape: Sequence[Any] = size[0] if len(size) == 1 and isinstance(size[0], Sequence) else size
    shape = [operator.index(each) for each in shape]
    dtype = dtype or torch.get_default_dtype()
    if device.type == "cpu":
        return _extension.empty(shape, dtype)
    index = _index_of(device)
    with torch.cuda.use_mem_pool(mem_pool(index), index):
        return torch.empty(shape, dtype=dtype, device=torch.device("cuda", index))


def mem_pool(device: torch.device | str | int | None = None) -> torch.cuda.MemPool:
    """Returns the pool of CUDA memory that peers can write to, for ``torch.cuda.use_mem_pool()``; see ``empty()``.

    There is one pool of torch's caching allocator per device. When a group fails, peers may still write to the outputs
    of pending exchanges. The memory of these outputs is then never freed, and this function returns a new pool, whose
    memory no peer has mapped. Therefore call it each time instead of keeping the pool.

    Args:
        device: a CUDA device; None or without an index: the current CUDA device.
    Raises:
        ValueError: ``device`` is not a CUDA device.
    """
    index = _index_of(device)
    with _pools_lock:
        generation = _extension.cuda_memory_generation()
        if index not in _pools or _pools[index][0] != generation:
            with torch.cuda.device(index):
                _pools[index] = generation, torch.cuda.MemPool(_allocator())
        return _pools[index][1]


def _index_of(device: torch.device | str | int | None) -> int:
    device = torch.device("cuda" if device is None else device)
    if device.type != "cuda":
        raise ValueError(f"CUDA memory that peers can write to cannot be on {device}")
    return torch.cuda.current_device() if device.index is None else device.index


@functools.cache
def _allocator() -> Any:
    functions = _extension.path, "headway_cuda_allocate", "headway_cuda_free"
    pluggable: Any = torch.cuda.memory.CUDAPluggableAllocator(*functions)
    return pluggable.allocator()
