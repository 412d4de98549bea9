# SPDX-License-Identifier: Apache-2.0
"""One rank of the benchmark on GPUs: NCCL and Headway groups of the same processes take turns.

Systems are ``nccl``, ``headway``, and variants of both. ``headway_slots``: the receive buffer is the output.
``headway_empty``: peers write directly into an output from ``headway.empty()``. ``NCCL_COPY_ENGINES``: NCCL without
kernels.

Started by ``benchmarks.cuda_all_to_all`` with the fields of ``CudaSettings``.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import headway
import torch
import torch.distributed as dist

from benchmarks.torch_ranks.all_to_all_rank import (
    Blocks,
    RankSettings,
    exchange_and_check,
    make_blocks,
    summary_of,
)
from benchmarks.torch_ranks.cuda_ranks import (
    NCCL_COPY_ENGINES,
    connect,
    device_of,
    exchange_by_copy_engines,
    symmetric_zeros,
)

#: The host waits after each call, or after many calls.
WAITS = ("each", "last")

#: Timed calls by size: (largest bytes per rank, calls). Larger sizes get _CALLS_ABOVE.
_STEPS = ((1 << 20, 200), (16 << 20, 60), (128 << 20, 16))
_CALLS_ABOVE = 6
#: Calls per timed sample if the host waits for the last one.
_CALLS_A_SAMPLE = 10


@dataclass(frozen=True, kw_only=True)
class CudaSettings(RankSettings):
    """Settings of one rank with a GPU.

    Attributes:
        hosts: number of hosts that the ranks pretend to run on, in even parts.
        transport: the one that Headway uses between these hosts.
    """

    hosts: int
    transport: str

    def act_on_hosts(self) -> None:
        """Keeps ranks of different pretended hosts from using GPU links and, with ``tcp``, shared memory.

        NCCL does not know the pretended hosts, so it loses these between all ranks. Call it before any group is made.
        """
        if self.hosts == 1:
            return
        os.environ["HEADWAY_HOST_ID"] = str(self.rank * self.hosts // self.ranks)
        os.environ["NCCL_P2P_DISABLE"] = "1"
        if self.transport == "tcp":
            os.environ |= {"NCCL_SHM_DISABLE": "1", "NCCL_NET": "Socket"}

    @property
    def device(self) -> torch.device:
        """Device of the tensors."""
        return device_of(self.rank)


@dataclass(frozen=True, kw_only=True)
class SymmetricBlocks(Blocks):
    """Even blocks in symmetric memory."""

    def exchange(self, group: dist.ProcessGroup) -> None:
        """Does one call over NCCL's copy engines."""
        exchange_by_copy_engines(self.output_B, self.input_B, group)


@dataclass(frozen=True, kw_only=True)
class SlotBlocks(Blocks):
    """Blocks exchanged in slot tensors: receive memory that peers write and that is the output itself.

    The own block is not copied, since its producer writes it into the slot.

    Attributes:
        rank: this rank.
        ring: slots of successive calls.
        received: received blocks of the last call, by source.
    """

    rank: int
    ring: headway.slots.Ring
    received: list[torch.Tensor]

    def exchange(self, group: dist.ProcessGroup) -> None:
        """Does one call. The received blocks stay until the next call."""
        self.received.clear()
        slot = self.ring.take()
        slot.exchange(self.input_B.split(self.input_splits), self.output_splits or [])
        self.received.extend(slot.received())

    def exchange_into_output(self, group: dist.ProcessGroup) -> None:
        """Does one call that leaves the received blocks in ``output_B``."""
        self.exchange(group)
        self.received[self.rank] = self.input_B.split(self.input_splits)[self.rank]
        torch.cat(self.received, out=self.output_B)
        self.received.clear()


def make_slot_blocks(settings: CudaSettings, split: str, bytes_per_rank: int, group: dist.ProcessGroup) -> SlotBlocks:
    """Makes tensors, splits and a ring for one size. A ring's blocks must be multiples of 512 bytes."""
    by_source = settings.blocks_by_source(split, bytes_per_rank)
    sent, received = by_source[settings.rank], [sizes[settings.rank] for sizes in by_source]
    largest = max(size for sizes in by_source for size in sizes)
    return SlotBlocks(
        input_B=torch.zeros(sum(sent), dtype=torch.uint8, device=settings.device),
        output_B=torch.zeros(sum(received), dtype=torch.uint8, device=settings.device),
        input_splits=sent,
        output_splits=received,
        rank=settings.rank,
        ring=headway.slots.Ring(
            capacity=(largest + 511) // 512 * 512, dtype=torch.uint8, device=settings.device, group=group, num_slots=3
        ),
        received=[],
    )


def time_each(blocks: Blocks, group: dist.ProcessGroup, calls: int) -> tuple[list[float], float]:
    """Returns the seconds of each call until the device is done, and the host's mean seconds per call."""
    durations_s, host_s = [], 0.0
    for _ in range(calls):
        started = time.perf_counter()
        blocks.exchange(group)
        host_s += time.perf_counter() - started
        torch.cuda.synchronize()
        durations_s.append(time.perf_counter() - started)
    return durations_s, host_s / calls


def time_last(blocks: Blocks, group: dist.ProcessGroup, calls: int) -> tuple[list[float], float]:
    """Times calls that follow each other on the stream: a sample is the mean over ``_CALLS_A_SAMPLE`` calls.

    Returns:
        the samples, and the host's mean seconds per call.
    """
    durations_s, host_s = [], 0.0
    num_samples = max(2, calls // _CALLS_A_SAMPLE)
    for _ in range(num_samples):
        started = time.perf_counter()
        for _ in range(_CALLS_A_SAMPLE):
            blocks.exchange(group)
        host_s += time.perf_counter() - started
        torch.cuda.synchronize()
        durations_s.append((time.perf_counter() - started) / _CALLS_A_SAMPLE)
    return durations_s, host_s / num_samples / _CALLS_A_SAMPLE


def measure(settings: CudaSettings, groups: dict[str, dist.ProcessGroup], split: str, size: int) -> None:
    """Prints one point per round, system and way of waiting at rank 0."""
    plain = make_blocks(settings, split, size)
    # NCCL uses copy engines for even blocks only.
    systems = [each for each in settings.systems if each != NCCL_COPY_ENGINES or plain.input_splits is None]
    blocks_of: dict[str, Blocks] = dict.fromkeys(systems, plain)
    if "headway_slots" in settings.systems:
        blocks_of["headway_slots"] = make_slot_blocks(settings, split, size, groups["headway"])
    if "headway_empty" in settings.systems:  # The output is memory that peers write directly.
        output_B = headway.empty(len(plain.output_B), dtype=plain.output_B.dtype, device=settings.device)
        blocks_of["headway_empty"] = replace(plain, output_B=output_B)
    if NCCL_COPY_ENGINES in systems:
        input_B, output_B = (symmetric_zeros(size, settings.device, groups[NCCL_COPY_ENGINES]) for _ in range(2))
        blocks_of[NCCL_COPY_ENGINES] = SymmetricBlocks(
            input_B=input_B, output_B=output_B, input_splits=None, output_splits=None
        )
    calls = settings.repetitions or next((count for limit, count in _STEPS if size <= limit), _CALLS_ABOVE)
    for index in range(settings.rounds):
        for system in systems if index % 2 == 0 else reversed(systems):
            blocks, group = blocks_of[system], groups[system]
            exchange_and_check(settings, split, blocks, group, salt=2 * index)
            for wait in WAITS:
                time_calls = time_each if wait == "each" else time_last
                time_calls(blocks, group, max(3, calls // 10))
                dist.barrier()
                durations_s, host_s = time_calls(blocks, group, calls)
                dist.barrier()
                if settings.rank == 0:
                    point = make_point(settings, system, split, size, wait, durations_s)
                    print(json.dumps({**point, "round": index, "host_s": host_s}), flush=True)
            exchange_and_check(settings, split, blocks, group, salt=2 * index + 1)


def make_point(
    settings: CudaSettings, system: str, split: str, size: int, wait: str, durations_s: list[float]
) -> dict[str, Any]:
    """Returns the fields of a point."""
    return {
        "name": "cuda_all_to_all",
        "params": {
            "ranks": settings.ranks,
            "hosts": settings.hosts,
            # Result files keep this older name of the transport.
            "wire": settings.transport if settings.hosts > 1 else None,
            "bytes_per_rank": size,
            "lag": 0,
            "split": split,
            "unit": settings.unit,
            "wait": wait,
        },
        "system": system,
        **summary_of(torch.tensor(durations_s, dtype=torch.float64), size),
    }


def main(fields: Mapping[str, Any]) -> None:
    """Measures everything."""
    settings = CudaSettings(**fields)
    settings.act_on_hosts()
    groups = connect(settings, transport=settings.transport if settings.hosts > 1 else "auto")
    for split in settings.splits:
        for size in settings.sizes:
            measure(settings, groups, split, size)
    dist.barrier()  # Leave together.
