# SPDX-License-Identifier: Apache-2.0
"""One rank of the benchmark of training steps over sequences of ids.

Started by ``benchmarks.cuda_sequence_model`` with the fields of ``SequenceSettings``.
Rank 0 prints one JSON line per point. Its other lines name the systems that are left out, and why.
"""

from __future__ import annotations

import datetime
import gc
import json
import math
import statistics
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.harness.embedding_layers import ID_MULTIPLIER, make_points
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.points import Point, fields_of
from benchmarks.harness.sequence_models import (
    ID_BITS,
    TORCHREC,
    ModelOptions,
    import_torchrec,
    make_features,
    make_model,
    table_counts,
)
from benchmarks.torch_ranks.agreeing import SystemFailure, on_all_ranks
from benchmarks.torch_ranks.cuda_ranks import device_of
from dlrm_examples.support.data.zipf import draw_zipf

_PARAMS = (
    "ranks", "length", "ids", "exponent", "warm_up", "optimizer", "eviction_interval", "dim", "factor", "slots", "batch"
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SequenceSettings:
    """Settings of one rank; see the options of ``benchmarks.cuda_sequence_model``.

    Attributes:
        systems: systems in the order of their turns.
        dim: columns of an embedding: ``factor`` times the base dimension.
        batch: lists of ids of this rank in a step.
        length: ids of a list.
        warm_up: steps that are not timed: enough to fill tables with a limit.
        ids: number of different ids.
        exponent: exponent of the power law of their popularity.
        slots: rows of a limited table, over all ranks.
        optimizer: optimizer of the tables.
        eviction_interval: batches after which TorchRec's managed collisions choose the ids that they keep.
        rounds: timed steps of each system.
        timeout_s: limit of a wait for another rank.
    """

    rank: int
    ranks: int
    systems: list[str]
    device: str
    dim: int
    factor: int
    batch: int
    length: int
    warm_up: int
    ids: int
    exponent: float
    slots: int
    optimizer: str
    eviction_interval: int
    rounds: int
    timeout_s: int


class Step(NamedTuple):
    """Times and loss of one step."""

    device_s: float  #: Seconds between two events on the device.
    wall_s: float  #: Seconds until the device was idle.
    host_s: float  #: Seconds until the host had enqueued everything.
    loss: float


@dataclass
class System:
    """One system's model, the optimizer of its dense parameters, and its timed steps."""

    model: Any
    dense: torch.optim.Optimizer
    steps: list[Step] = field(default_factory=list)


class Turns:
    """Systems that take steps in turns, on all ranks alike. A failure is reported and drops the system on all ranks."""

    def __init__(self, settings: SequenceSettings, options: ModelOptions) -> None:
        self.systems: dict[str, System] = {}
        self._settings, self._options = settings, options

    def measure(self, draw: Callable[[], Any]) -> None:
        """Makes the systems, and times their steps after the warm-up.

        ``draw`` makes one new batch per turn. All systems get this batch.
        """
        for name in self._settings.systems:
            self._try(name, partial(self._make, name))
        for turn in range(self._settings.warm_up + self._settings.rounds):
            batch, names = draw(), list(self.systems)
            for name in names if turn % 2 == 0 else reversed(names):
                of_ranks = self._try(name, partial(self._step, name, batch))
                if of_ranks is not None and turn >= self._settings.warm_up:
                    self.systems[name].steps.append(_slowest(of_ranks))

    def _try(self, name: str, action: Callable[[], Any]) -> list[Any] | None:
        """Returns the results of all ranks, or None if the system was dropped. ``action`` must not hold the system."""
        try:
            return on_all_ranks(action, self._options.device)
        except SystemFailure as failure:
            reason = textwrap.indent(str(failure), "  ")
        if self._settings.rank == 0:
            where = f"{self._settings.ranks} ranks, dim {self._settings.dim}"
            print(f"{name}, {where}, is left out:\n{reason}", flush=True)
        self.systems.pop(name, None)
        _free(self._options.device)
        return None

    def _make(self, name: str) -> None:
        model = make_model(name, self._options)
        # The dense parameters are those of `over`, the layers above the embeddings.
        dense = [
            parameter for path, parameter in model.named_parameters() if ".over." in path or path.startswith("over.")
        ]
        self.systems[name] = System(model, torch.optim.SGD(dense, lr=0.01))

    def _step(self, name: str, features: Any) -> Step:
        """Does one training step with no other work on the device."""
        system, timer = self.systems[name], _Timer(self._options.device)
        system.dense.zero_grad()
        loss = system.model(features)
        loss.backward()
        system.dense.step()
        step = Step(*timer.stop(), loss.item())
        if not math.isfinite(step.loss):
            raise BenchmarkError("the loss is not finite")
        return step

    def points(self) -> list[Point]:
        """Makes one point per remaining system. Collective: all ranks must call it."""
        if not self.systems:
            return []
        steps = {name: system.steps for name, system in self.systems.items()}
        params: dict[str, Any] = {"tables": 1} | {name: getattr(self._settings, name) for name in _PARAMS}
        params["device"] = torch.cuda.get_device_name() if self._settings.device == "cuda" else "cpu"
        return make_points(
            "cuda_sequence_model",
            params,
            {name: [step.device_s for step in each] for name, each in steps.items()},
            reference=TORCHREC,
            wall_s={name: statistics.median(step.wall_s for step in each) for name, each in steps.items()},
            host_s={name: statistics.median(step.host_s for step in each) for name, each in steps.items()},
            mean_s={name: statistics.fmean(step.device_s for step in each) for name, each in steps.items()},
            loss={name: each[-1].loss for name, each in steps.items()},
            table={name: self._table_counts(name) for name in steps},
        )

    def _table_counts(self, name: str) -> dict[str, int]:
        """Sums the table counters over all ranks."""
        of_ranks = on_all_ranks(partial(table_counts, name, self.systems[name].model), self._options.device)
        return {count: sum(of_rank[count] for of_rank in of_ranks) for count in of_ranks[0]}


def _slowest(of_ranks: Sequence[Step]) -> Step:
    """Merges the ranks' steps: maximum of each time, mean of the losses."""
    device_s, wall_s, host_s, losses = zip(*of_ranks, strict=True)
    return Step(max(device_s), max(wall_s), max(host_s), statistics.fmean(losses))


class _Timer:
    """Measures the device between two events, the time until it is idle, and the time until the host has enqueued."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        if self._is_cuda:
            torch.cuda.synchronize()
            self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self._begin.record()
        self._started = time.perf_counter()

    def stop(self) -> tuple[float, float, float]:
        host_s = time.perf_counter() - self._started
        if not self._is_cuda:
            return host_s, host_s, host_s
        self._end.record()
        torch.cuda.synchronize()
        return self._begin.elapsed_time(self._end) / 1e3, time.perf_counter() - self._started, host_s


def _free(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()  # Frees memory for the tables, which do not allocate through torch.


def _draw_ids(settings: SequenceSettings, random: np.random.Generator, device: torch.device) -> torch.Tensor:
    """Draws this rank's ids of a step: (batch, length) int64."""
    size = settings.batch * settings.length
    popularity = draw_zipf(random, num_values=settings.ids, exponent=settings.exponent, size=size)
    # An odd factor keeps the ids distinct.
    return (torch.from_numpy(popularity) * ID_MULTIPLIER & (1 << ID_BITS) - 1).to(device).view(-1, settings.length)


def main(fields: Mapping[str, Any]) -> None:
    """Measures every system in turns."""
    settings = SequenceSettings(**fields)
    import_torchrec()
    is_cuda = settings.device == "cuda"
    device = device_of(settings.rank) if is_cuda else torch.device("cpu")
    if is_cuda:
        torch.cuda.set_device(device)
    timeout = datetime.timedelta(seconds=settings.timeout_s)
    options = ModelOptions(
        dim=settings.dim,
        slots=settings.slots,
        optimizer=settings.optimizer,
        eviction_interval=settings.eviction_interval,
        device=device,
        group=dist.new_group(backend="nccl" if is_cuda else "gloo", timeout=2 * timeout),
    )
    random = np.random.default_rng(1 + settings.rank)
    turns = Turns(settings, options)
    turns.measure(lambda: make_features(_draw_ids(settings, random, device)))
    points = turns.points()
    if settings.rank == 0:
        for point in points:
            print(json.dumps(fields_of(point)), flush=True)
    turns.systems.clear()
    _free(device)
    dist.barrier()  # Leave together.
