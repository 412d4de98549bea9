# SPDX-License-Identifier: Apache-2.0
"""One rank of ``benchmarks.futures``: exchanges of two floats per peer, each awaited by its future.

``main()`` takes the fields of ``FuturesSettings``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import headway  # noqa: F401 - registers the backend
import torch
import torch.distributed as dist

_TORCH_ALONE = "torch"  #: A future of torch's own thread pool, without communication.
_WARM_UP = 10  #: Timed calls per warm-up call.


@dataclass(frozen=True, kw_only=True)
class FuturesSettings:
    """Settings of one rank; see the options of ``benchmarks.futures``.

    Attributes:
        systems: backends, and ``torch``.
    """

    rank: int
    ranks: int
    systems: list[str]
    rounds: int
    repetitions: int
    timeout_s: int


@torch.jit.script
def _return_argument(x: torch.Tensor) -> torch.Tensor:
    return x


def make_call(system: str, settings: FuturesSettings) -> Callable[[], None]:
    """Returns a function that starts one operation of ``system`` and waits for its future.

    F: floats of a tensor, two for each rank.
    """
    input_F = torch.full((2 * settings.ranks,), float(settings.rank))
    if system == _TORCH_ALONE:
        return lambda: torch.jit.wait(torch.jit.fork(_return_argument, input_F))
    group = dist.new_group(backend=system)
    output_F = torch.empty_like(input_F)

    def exchange() -> None:
        dist.all_to_all_single(output_F, input_F, group=group, async_op=True).get_future().wait()

    exchange()
    expected_F = torch.arange(settings.ranks, dtype=output_F.dtype).repeat_interleave(2)
    if not torch.equal(output_F, expected_F):
        raise RuntimeError(f"wrong result at rank {settings.rank} over {system}: {output_F.tolist()}")
    return exchange


def time_calls(call: Callable[[], None], count: int) -> torch.Tensor:
    """Times calls back to back: (count,) float64 seconds."""
    ends = [time.perf_counter()]
    for _ in range(count):
        call()
        ends.append(time.perf_counter())
    return torch.tensor(ends, dtype=torch.float64).diff()


def main(fields: Mapping[str, Any]) -> None:
    """Measures all rounds."""
    settings = FuturesSettings(**fields)
    calls = {system: make_call(system, settings) for system in settings.systems}
    for index in range(settings.rounds):
        for system, call in calls.items():
            dist.barrier()
            time_calls(call, max(1, settings.repetitions // _WARM_UP))
            durations_s = time_calls(call, settings.repetitions)
            if settings.rank == 0:
                levels = torch.tensor([0.05, 0.5, 0.9, 0.95, 0.99, 1], dtype=torch.float64)
                p5_s, median_s, p90_s, p95_s, p99_s, longest_s = torch.quantile(durations_s, levels).tolist()
                point = {
                    "name": "futures", "params": {"ranks": settings.ranks, "run": index + 1}, "system": system,
                    "median_s": median_s, "p5_s": p5_s, "p95_s": p95_s,
                    "p90_s": p90_s, "p99_s": p99_s, "longest_s": longest_s,
                    "samples": settings.repetitions, "round": index,
                }  # fmt: skip
                print(json.dumps(point), flush=True)
    dist.barrier()  # Leave together.
