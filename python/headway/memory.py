"""Tensors in memory that Headway owns."""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Sequence
from typing import Any

import torch

from headway import _extension

_pools: dict[int, tuple[int, torch.cuda.MemPool]] = {}  # By device: of which generation of memory, and the pool.
_pools_lock = threading.Lock()


def empty(
    *size: int | Sequence[int], dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """``torch.empty`` in memory that RDMA devices and peers can write to.

    **On a CPU**: memory that an RDMA device keeps registered. Over RDMA, blocks above 64 KiB are read where they are,
    and those above ``Options(slot_bytes=)`` are written straight into the output: such memory must be registered with
    the device. That of this function stays registered, also when it is freed and used again, up to
    ``Options(rdma_cache_bytes=)``; any other is registered for each exchange anew. From 16 KiB on a block that stays
    registered is not copied on its way out either. So it is worth having for blocks from 16 KiB that are exchanged
    again and again. With shared memory and tcp it is ordinary memory.

    **On a CUDA device**: memory that the other ranks of the host map, out of ``mem_pool()``, for the outputs of
    all-to-alls, broadcasts, gathers, scatters and all-gathers. A block above 64 KiB is copied into the output by its
    sender, where those for other outputs land in slots, out of which they are copied on the device's multiprocessors.
    The sender's host must know the output when it comes to the exchange. So of two ranks the later one always copies
    directly; the earlier one looks for the other for up to 20 us, and fills slots if it is not there. Such a copy
    starts when both ranks' streams have come to the exchange, where slots are filled at once: so ranks must start the
    operations of a group in one order, messages included. Where nothing may be copied inside a device, use
    ``headway.slots``. The memory is used again when the host has seen that the exchange is done; what is free stays
    with the pool, as with any private pool of torch.

    Args:
        size: the shape, as integers or as one sequence of them.
        dtype: ``torch.get_default_dtype()`` where None.
        device: the CPU, or a CUDA device; the current one where it has no index.
    Returns:
        Shape ``size``, contiguous, of undefined contents, without gradient. On a CPU its first byte begins a page, the
        memory goes back to Headway's pool with the last tensor that uses it, is rounded up to at least 64 KiB, and the
        storage cannot be resized. On a CUDA device it is a tensor of torch's allocator, in the order of the current
        stream as any.
    Raises:
        NotImplementedError: ``device`` is neither.
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
    """The pool of CUDA memory that peers can write to, for ``torch.cuda.use_mem_pool()``: see ``empty()``.

    One for each device, of torch's caching allocator. When a group fails, peers may still be writing to outputs of
    exchanges that were pending: these stay for ever, and from then on this returns a new pool, whose memory no peer has
    ever known. So ask for it each time.

    Args:
        device: a CUDA device; the current one where it is None or has no index.
    Raises:
        ValueError: it is not a CUDA device.
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
