# SPDX-License-Identifier: Apache-2.0
"""One rank of the benchmark of deduplication before and after the exchange of ids.

Started by ``benchmarks.dedup_steps`` with the fields of ``DedupSettings``.
"""

from __future__ import annotations

import datetime
import json
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from headway.embedding import FeatureConfig, HashTableCollection, RowWiseAdagrad, TableConfig

from benchmarks.dedup_traffic import DEDUPS
from benchmarks.harness.embedding_layers import ID_MULTIPLIER
from benchmarks.torch_ranks.cuda_ranks import device_of
from dlrm_examples.support.data.zipf import draw_zipf

_NUM_BATCHES = 4


@dataclass(frozen=True, kw_only=True)
class DedupSettings:
    """Settings of one rank; see the options of ``benchmarks.dedup_steps``.

    Attributes:
        keys: ids of this rank in a step.
        length: ids of a list.
        ids: number of different ids.
        exponent: exponent of the power law of their popularity.
    """

    rank: int
    ranks: int
    device: str
    keys: int
    length: int
    ids: int
    exponent: float
    dim: int
    steps: int
    rounds: int
    timeout_s: int


class Course:
    """A collection with one of ``DEDUPS`` (dedup nowhere, before or after the exchange, or both), and its batches."""

    def __init__(self, settings: DedupSettings, dedup: str, batches: list[torch.Tensor], group: dist.ProcessGroup):
        self._device = batches[0].device
        self._batches, self._num_steps = batches, 0
        self._tables = HashTableCollection(
            tables=[TableConfig("items", dim=settings.dim, optimizer=RowWiseAdagrad(lr=0.01))],
            features=[FeatureConfig("ids", table="items", pooling=None)],
            process_group=group,
            dedup=dedup,  # type: ignore[arg-type]
            device=self._device,
        )
        self._lengths = torch.full((len(batches[0]) // settings.length,), settings.length, device=self._device)

    def step(self, gradients: torch.Tensor) -> float:
        """Looks up a batch and applies gradients. Returns the seconds from a barrier until the device is done."""
        ids = self._batches[self._num_steps % len(self._batches)]
        self._num_steps += 1
        dist.barrier()
        started = time.perf_counter()
        self._tables({"ids": (ids, self._lengths)})["ids"].backward(gradients)
        self._tables.optimizer.step()
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started


def main(fields: Mapping[str, Any]) -> None:
    """Measures every entry of ``DEDUPS`` in turns."""
    settings = DedupSettings(**fields)
    is_cuda = settings.device == "cuda"
    device = device_of(settings.rank) if is_cuda else torch.device("cpu")
    if is_cuda:
        torch.cuda.set_device(device)
    timeout = datetime.timedelta(seconds=settings.timeout_s)
    group = dist.new_group(backend="nccl" if is_cuda else "gloo", timeout=timeout)
    random = np.random.default_rng(settings.rank)
    size = settings.keys // settings.length * settings.length
    drawn = [
        draw_zipf(random, num_values=settings.ids, exponent=settings.exponent, size=size) for _ in range(_NUM_BATCHES)
    ]
    batches = [torch.from_numpy(ids * ID_MULTIPLIER).to(device) for ids in drawn]
    gradients = torch.full((size, settings.dim), 1e-3, device=device)
    courses = {dedup: Course(settings, dedup, batches, group) for dedup in DEDUPS}
    for course in courses.values():
        for _ in range(_NUM_BATCHES):
            course.step(gradients)  # Inserts all ids.
    for number in range(settings.rounds):
        for dedup in DEDUPS if number % 2 == 0 else reversed(DEDUPS):
            times = [courses[dedup].step(gradients) for _ in range(settings.steps)]
            _report(settings, dedup, statistics.median(times), number)
    courses.clear()
    dist.barrier()  # Leave together.


def _report(settings: DedupSettings, dedup: str, median_s: float, number: int) -> None:
    """Prints a point at rank 0 with the time of the slowest rank."""
    of_ranks: list[float] = [0.0] * settings.ranks
    dist.all_gather_object(of_ranks, median_s)
    if settings.rank != 0:
        return
    params = {name: getattr(settings, name) for name in ("ranks", "device", "keys", "length", "ids", "exponent", "dim")}
    point = {
        "name": "dedup_steps", "params": params, "system": dedup, "median_s": max(of_ranks),
        "samples": settings.steps, "unit": "s", "round": number,
    }  # fmt: skip
    print(json.dumps(point), flush=True)
