# SPDX-License-Identifier: Apache-2.0
"""One rank of the torch benchmark: Gloo and Headway groups of the same processes take turns.

Started by ``benchmarks.torch_all_to_all`` with the fields of ``RankSettings``.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.torch_ranks.block_sizes import block_sizes

#: Timed calls by size: (largest bytes per rank, calls). Larger sizes get _REPETITIONS_ABOVE.
_STEPS = ((64 << 10, 1000), (1 << 20, 200), (8 << 20, 40))
_REPETITIONS_ABOVE = 8


@dataclass(frozen=True, kw_only=True)
class RankSettings:
    """Settings of one rank; see the options of ``benchmarks.torch_all_to_all``.

    Attributes:
        systems: backends, in the order of the first round.
        splits: distributions of a rank's bytes over the destinations (``block_sizes.SPLITS``).
        unit: block sizes are multiples of this number of bytes.
        repetitions: timed calls; None: chosen by size.
    """

    rank: int
    ranks: int
    systems: list[str]
    sizes: list[int]
    splits: list[str]
    unit: int
    rounds: int
    repetitions: int | None
    timeout_s: int

    @property
    def device(self) -> torch.device:
        """CPU; GPUs have a subclass of their own."""
        return torch.device("cpu")

    def blocks_by_source(self, split: str, bytes_per_rank: int) -> list[list[int]]:
        """Returns the bytes from each rank to each rank, by source and destination."""
        return [
            block_sizes(split, bytes_per_rank, source=source, num_ranks=self.ranks, unit=self.unit)
            for source in range(self.ranks)
        ]


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """Tensors and splits of one call, with B bytes in all."""

    input_B: torch.Tensor
    output_B: torch.Tensor
    input_splits: list[int] | None
    output_splits: list[int] | None

    def exchange(self, group: dist.ProcessGroup) -> None:
        """Does one blocking call."""
        dist.all_to_all_single(self.output_B, self.input_B, self.output_splits, self.input_splits, group=group)

    def exchange_into_output(self, group: dist.ProcessGroup) -> None:
        """Does one blocking call that leaves the received blocks in ``output_B``.

        A subclass may receive elsewhere in ``exchange()``, and copy here.
        """
        self.exchange(group)


def make_blocks(settings: RankSettings, split: str, bytes_per_rank: int) -> Blocks:
    """Makes the tensors of one size. Splits are None if torch does not need them."""
    by_source = settings.blocks_by_source(split, bytes_per_rank)
    sent, received = by_source[settings.rank], [sizes[settings.rank] for sizes in by_source]
    is_even = len({size for sizes in by_source for size in sizes}) == 1
    return Blocks(
        input_B=torch.zeros(sum(sent), dtype=torch.uint8, device=settings.device),
        output_B=torch.zeros(sum(received), dtype=torch.uint8, device=settings.device),
        input_splits=None if is_even else sent,
        output_splits=None if is_even else received,
    )


def block_contents(size: int, *, source: int, destination: int, salt: int, device: torch.device) -> torch.Tensor:
    """Makes a block: (size,) uint8 below 251, so that 255 never occurs.

    Contents differ between positions, blocks of up to 8 ranks, and values of ``salt``, a number of the call.
    """
    index = torch.arange(size, dtype=torch.int64, device=device)
    return ((index * 131 + (index >> 8) * 7 + source * 37 + destination * 113 + salt * 101) % 251).to(torch.uint8)


def exchange_and_check(settings: RankSettings, split: str, blocks: Blocks, group: dist.ProcessGroup, salt: int) -> None:
    """Does one call and compares every byte.

    Raises:
        RuntimeError: a block is wrong; names the ranks.
    """
    size = blocks.input_B.numel()
    by_source = settings.blocks_by_source(split, size)
    blocks.input_B.copy_(
        torch.cat(
            [
                block_contents(count, source=settings.rank, destination=peer, salt=salt, device=settings.device)
                for peer, count in enumerate(by_source[settings.rank])
            ]
        )
    )
    blocks.output_B.fill_(255)
    blocks.exchange_into_output(group)
    offset = 0
    for source in range(settings.ranks):
        count = by_source[source][settings.rank]
        expected = block_contents(count, source=source, destination=settings.rank, salt=salt, device=settings.device)
        if not torch.equal(blocks.output_B[offset : offset + count], expected):
            raise RuntimeError(f"wrong result at rank {settings.rank}: block of {count} bytes from rank {source}")
        offset += count


def time_calls(blocks: Blocks, group: dist.ProcessGroup, calls: int) -> torch.Tensor:
    """Times calls back to back: (calls,) float64 seconds."""
    ends = [time.perf_counter()]
    for _ in range(calls):
        blocks.exchange(group)
        ends.append(time.perf_counter())
    return torch.tensor(ends, dtype=torch.float64).diff()


def measure(settings: RankSettings, groups: dict[str, dist.ProcessGroup], split: str, size: int) -> None:
    """Prints one point per round and system at rank 0."""
    blocks = make_blocks(settings, split, size)
    calls = settings.repetitions or next((count for limit, count in _STEPS if size <= limit), _REPETITIONS_ABOVE)
    for index in range(settings.rounds):
        for system in settings.systems if index % 2 == 0 else reversed(settings.systems):
            group = groups[system]
            exchange_and_check(settings, split, blocks, group, salt=2 * index)
            dist.barrier()
            time_calls(blocks, group, max(2, calls // 10))
            dist.barrier()
            durations_s = time_calls(blocks, group, calls)
            dist.barrier()
            exchange_and_check(settings, split, blocks, group, salt=2 * index + 1)
            if settings.rank == 0:
                print(json.dumps(make_point(settings, system, split, size, index, durations_s)), flush=True)


def make_point(
    settings: RankSettings, system: str, split: str, size: int, index: int, durations_s: torch.Tensor
) -> dict[str, Any]:
    """Returns the fields of a JSON line. The lag is 0: calls are blocking."""
    return {
        "name": "torch_all_to_all",
        "params": {"ranks": settings.ranks, "bytes_per_rank": size, "lag": 0, "split": split, "unit": settings.unit},
        "system": system,
        **summary_of(durations_s, size),
        "mean_s": durations_s.mean().item(),
        "round": index,
    }


def summary_of(durations_s: torch.Tensor, size: int) -> dict[str, Any]:
    """Summarises calls of ``size`` bytes per rank that took (calls,) float64 seconds, as fields of a point."""
    quantiles = torch.quantile(durations_s, torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)).tolist()
    return {
        "median_s": quantiles[1],
        "p5_s": quantiles[0],
        "p95_s": quantiles[2],
        "samples": durations_s.numel(),
        "rate": size / quantiles[1] / 1e9,
        "unit": "GB/s per rank",
    }


def main(fields: Mapping[str, Any]) -> None:
    """Makes the groups, measures each size and split on all systems, and prints points on rank 0."""
    settings = RankSettings(**fields)
    timeout = datetime.timedelta(seconds=settings.timeout_s)
    groups = {system: dist.new_group(backend=system, timeout=timeout) for system in settings.systems}
    for split in settings.splits:
        for size in settings.sizes:
            measure(settings, groups, split, size)
    dist.barrier()  # Leave together.
