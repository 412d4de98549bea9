# SPDX-License-Identifier: Apache-2.0
"""One rank of the adaptive-lag benchmark: loops with several patterns of lateness, under fixed bounds and "auto".

The bound, max_lag, is the number of exchanges that may be pending after each step.

Started by ``benchmarks.adaptive_lag`` with the fields of ``RankSettings``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import headway
import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

_ROW_BYTES = 256  #: From each rank to each rank per exchange.
_WARM_UP_STEPS = 5

MaxLag = int | Literal["auto"]
Delays = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class RankSettings:
    """Settings of one rank; see the options of ``benchmarks.adaptive_lag``.

    Attributes:
        patterns: patterns of lateness, by the names that ``draw_delays()`` takes.
        max_lags: fixed values and "auto".
        limit: largest bound that "auto" may choose.
        steps: exchanges of a run.
        rounds: runs of each pattern and bound.
    """

    rank: int
    ranks: int
    patterns: list[str]
    max_lags: list[MaxLag]
    limit: int
    steps: int
    rounds: int
    timeout_s: int


@dataclass(frozen=True, kw_only=True)
class Run:
    """Results of one run of this rank: seconds of the run, mean seconds from request to completion, mean bound."""

    elapsed_s: float
    request_latency_s: float
    mean_lag: float


def draw_delays(pattern: str, *, rank: int, num_ranks: int, num_steps: int, seed: int) -> Delays:
    """Draws the seconds for which a rank is busy in each step; the same for every bound.

    Raises:
        ValueError: there is no such pattern.
    """
    own = np.random.default_rng((seed, rank))
    if pattern == "random":
        return own.uniform(0.0, 0.010, num_steps)
    if pattern == "drifting":  # Another rank is slow every two steps, before it has fallen far behind.
        turn = np.random.default_rng(seed).integers(0, num_ranks, num_steps // 2 + 1).repeat(2)[:num_steps]
        return np.where(turn == rank, 0.008, 0.002)
    if pattern == "bursts":
        return np.where(own.random(num_steps) < 0.05, 0.020, 0.002)
    if pattern == "straggler":
        return np.full(num_steps, 0.006 if rank == num_ranks - 1 else 0.002)
    if pattern == "balanced":
        return np.full(num_steps, 0.004)
    raise ValueError(f"no pattern {pattern!r}")


def run_loop(group: dist.ProcessGroup, max_lag: MaxLag, delays_s: Delays, num_ranks: int) -> Run:
    """Works and exchanges once per step, as far ahead as the bound allows."""
    sent = torch.zeros(num_ranks * _ROW_BYTES, dtype=torch.uint8)
    queue: headway.LagQueue[float] = headway.LagQueue(group, max_lag=max_lag)
    latencies_s: list[float] = []
    lags: list[int] = []
    started = time.perf_counter()
    for delay_s in delays_s.tolist():
        arrived = time.perf_counter()
        time.sleep(delay_s)
        work = dist.all_to_all_single(torch.empty_like(sent), sent, group=group, async_op=True)
        # Waits until at most max_lag exchanges are pending. Returns the arrival times of those that completed.
        for earlier in queue.push(work, arrived):
            latencies_s.append(time.perf_counter() - earlier)
        lags.append(queue.max_lag)
    for earlier in queue.drain():
        latencies_s.append(time.perf_counter() - earlier)
    elapsed_s = time.perf_counter() - started
    return Run(elapsed_s=elapsed_s, request_latency_s=float(np.mean(latencies_s)), mean_lag=float(np.mean(lags)))


def measure(settings: RankSettings, pattern: str, index: int) -> None:
    """Prints one point per bound at rank 0, with means over ranks. ``index`` is the round."""
    # The seed is the same on all ranks, so they agree on the order.
    order = np.random.default_rng((index, len(pattern))).permutation(len(settings.max_lags))
    for position in order:
        max_lag = settings.max_lags[position]
        limit = settings.limit if max_lag == "auto" else max_lag
        options = headway.Options(max_lag=max_lag, max_lag_limit=limit, slot_bytes=4096)
        group = dist.new_group(backend="headway", pg_options=options)
        delays_s = draw_delays(
            pattern, rank=settings.rank, num_ranks=settings.ranks, num_steps=settings.steps, seed=index
        )
        run_loop(group, max_lag, np.zeros(_WARM_UP_STEPS), settings.ranks)
        dist.barrier()
        run = run_loop(group, max_lag, delays_s, settings.ranks)
        means = torch.tensor([run.elapsed_s, run.request_latency_s, run.mean_lag], dtype=torch.float64)
        dist.all_reduce(means)
        dist.destroy_process_group(group)
        if settings.rank == 0:
            elapsed_s, request_latency_s, mean_lag = (means / settings.ranks).tolist()
            point = {
                "name": "adaptive_lag",
                "params": {"ranks": settings.ranks, "pattern": pattern, "lag": max_lag, "steps": settings.steps},
                "system": "headway",
                "median_s": elapsed_s / settings.steps,
                "samples": settings.steps,
                "rate": settings.steps / elapsed_s,
                "unit": "steps/s",
                "request_latency_s": request_latency_s,
                "mean_lag": mean_lag,
            }
            print(json.dumps(point), flush=True)


def main(fields: Mapping[str, Any]) -> None:
    """Measures everything."""
    settings = RankSettings(**fields)
    for pattern in settings.patterns:
        for index in range(settings.rounds):
            measure(settings, pattern, index)
    dist.barrier()  # Leave together.
