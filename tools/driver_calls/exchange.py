# SPDX-License-Identifier: Apache-2.0
"""Profiles the host time of an all-to-all of CUDA tensors: number and duration of the driver calls, by size.

Compile ``driver_calls.cpp`` to a shared library and start two or more ranks with it. Ranks share the available GPUs:

    g++ -std=c++20 -O2 -shared -fPIC -I /usr/local/cuda/include tools/driver_calls/driver_calls.cpp -o driver_calls.so
    LD_PRELOAD=$PWD/driver_calls.so torchrun --nproc-per-node 2 tools/driver_calls/exchange.py
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable

import headway
import torch
import torch.distributed as dist

#: Bytes that each rank sends to all ranks together; measured exchanges per size; exchanges before them.
_SIZES_B = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 128 << 20, 512 << 20)
_CALLS = 20
_WARM_UP = 3


class DriverCalls:
    """Counters of the library loaded by LD_PRELOAD."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        if not hasattr(self._library, "driver_calls_reset"):
            raise RuntimeError("start this under LD_PRELOAD=driver_calls.so; see its first lines")

    def reset(self) -> None:
        """Begins a new measurement."""
        self._library.driver_calls_reset()

    def read(self) -> list[tuple[str, int, int, int]]:
        """Reads (name, number of calls, total ns, longest ns) of each function."""
        text = ctypes.create_string_buffer(4096)
        self._library.driver_calls_report(text, ctypes.c_size_t(len(text)))
        rows = [line.split() for line in text.value.decode().splitlines()]
        return [(name, int(count), int(total), int(longest)) for name, count, total, longest in rows]


def make_exchange(kind: str, size_B: int) -> Callable[[], object]:
    """Returns a function that starts an exchange with even splits.

    Args:
        kind: "ordinary" (``torch.empty``), "empty()" (``headway.empty``: senders write into the output), or "slots"
            (``headway.slots``: parts of the receive memory, which are read in place).
        size_B: bytes that each rank sends to all ranks together, a multiple of the number of ranks.
    """
    input_B = torch.zeros(size_B, dtype=torch.uint8, device="cuda")
    if kind == "slots":
        block_B = size_B // dist.get_world_size()
        # The capacity of a slot is a multiple of 512 bytes per rank.
        ring = headway.slots.Ring(capacity=-(-block_B // 512) * 512, dtype=torch.uint8)
        rows, splits = list(input_B.split(block_B)), [block_B] * dist.get_world_size()
        return lambda: ring.take().exchange(rows, splits)
    make = headway.empty if kind == "empty()" else torch.empty
    output_B = make(size_B, dtype=torch.uint8, device=input_B.device)
    return lambda: dist.all_to_all_single(output_B, input_B)


def profile(calls: DriverCalls, host_group: dist.ProcessGroup, kind: str, size_B: int, *, is_waited: bool) -> None:
    """Prints the host time of an exchange of ``size_B`` bytes per rank, and of its driver calls.

    Args:
        calls: counters of driver calls; reset after the warm-up.
        host_group: Gloo group for barriers.
        kind: see ``make_exchange()``.
        size_B: bytes that each rank sends, rounded up to a multiple of the number of ranks.
        is_waited: synchronise device and ranks before each exchange; otherwise exchanges are started back to back.
    """
    num_ranks = dist.get_world_size()
    exchange = make_exchange(kind, -(-size_B // num_ranks) * num_ranks)
    host_s = 0.0
    for index in range(-_WARM_UP, _CALLS):
        if is_waited or index <= 0:
            torch.cuda.synchronize()
            dist.barrier(host_group)
        if index == 0:
            calls.reset()
            host_s = 0.0
        started = time.perf_counter()
        exchange()
        host_s += time.perf_counter() - started
    rows = calls.read()
    torch.cuda.synchronize()
    dist.barrier(host_group)
    if dist.get_rank() > 0:
        return
    driver_us = sum(total for _, _, total, _ in rows) / 1000 / _CALLS
    how = "waits for each" if is_waited else f"{_CALLS} in a row"
    print(f"\n{kind}, {size_B >> 10} KiB a rank, {how}: host {host_s / _CALLS * 1e6:.1f} us, driver {driver_us:.1f} us")
    for name, count, total, longest in rows:
        times = f"{total / count / 1000:6.2f} us each, longest {longest / 1000:6.1f}"
        print(f"  {name:24} {count / _CALLS:6.1f} calls, {times}")


def main() -> None:
    """Prints host time and driver calls of an exchange for each size and kind of output."""
    calls = DriverCalls()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("headway")
    host_group = dist.new_group(backend="gloo")
    for kind in ("ordinary", "slots", "empty()"):
        for size_B in _SIZES_B:
            for is_waited in (True, False):
                profile(calls, host_group, kind, size_B, is_waited=is_waited)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
