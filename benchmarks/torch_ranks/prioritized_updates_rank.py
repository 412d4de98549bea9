# SPDX-License-Identifier: Apache-2.0
"""One rank of the benchmark of prioritized updates.

Started by ``benchmarks.prioritized_updates`` with the fields of ``Settings``. Rank 0 prints one JSON line per system.
"""

from __future__ import annotations

import datetime
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from headway.embedding import FeatureConfig, HashTableCollection, RowWiseAdagrad, TableConfig, Uniform
from torch import nn
from torch.nn import functional

from benchmarks.harness.points import Point, fields_of
from benchmarks.torch_ranks.cuda_ranks import device_of
from dlrm_examples.support.data.zipf import draw_zipf

_LR = 0.01
_TRACED_STEPS = 4


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of one rank; see the options of ``benchmarks.prioritized_updates``."""

    rank: int
    ranks: int
    systems: list[str]
    device: str
    batch: int
    dim: int
    ids: int
    exponent: float
    hidden: int
    layers: int
    warm_up: int
    rounds: int
    backend: str
    timeout_s: int


class Dense(nn.Module):
    """Layers of two linear maps with a residual; four embeddings side by side are a token. Returns a loss."""

    def __init__(self, settings: Settings, device: torch.device) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.width = 4 * settings.dim
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(self.width, settings.hidden), nn.SiLU(), nn.Linear(settings.hidden, self.width))
            for _ in range(settings.layers)
        ).to(device)

    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        x = embeddings.view(-1, self.width)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
            for layer in self.layers:
                x = x + layer(functional.layer_norm(x, (self.width,)))
        loss: torch.Tensor = (x.float() - 1).square().mean()
        return loss


Step = Callable[[], None]


class Headway:
    """The table of headway.embedding. ``reads_ahead``: prioritized updates."""

    def __init__(self, settings: Settings, batches: Iterator[torch.Tensor], group: Any, *, reads_ahead: bool) -> None:
        device = _device(settings)
        self._reads_ahead = reads_ahead
        self.tables = HashTableCollection(
            tables=[
                TableConfig(
                    "items", dim=settings.dim, optimizer=RowWiseAdagrad(lr=_LR), initializer=Uniform(-0.05, 0.05)
                )
            ],
            features=[FeatureConfig("item", table="items", pooling=None)],
            process_group=group,
            prioritized=reads_ahead,
            device=device,
        )
        self._dense = Dense(settings, device)
        self._optimizer = torch.optim.SGD(self._dense.parameters(), lr=_LR)
        self._batches = batches
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._device = device
        self._pending = [self._begin() for _ in range(2)]

    def step(self) -> None:
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
        self._optimizer.zero_grad()
        loss = self._dense(self.tables(self._pending.pop(0))["item"])
        self._pending.append(self._begin())
        if self._reads_ahead:
            self.tables.read_ahead(self._pending[:1])
        loss.backward()
        self._optimizer.step()
        self.tables.optimizer.step()

    def _begin(self) -> Any:
        ids = next(self._batches)
        with torch.cuda.stream(self._stream):  # None: no effect.
            if self._stream is not None:
                self._stream.wait_stream(torch.cuda.current_stream(self._device))
            return self.tables.begin({"item": (ids, torch.ones_like(ids))})


class TorchRec:
    """An EmbeddingCollection, row-wise sharded, in TrainPipelineSparseDist."""

    tables = None  #: It measures no waits.

    def __init__(self, settings: Settings, batches: Iterator[torch.Tensor], group: Any) -> None:
        from torchrec import EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
        from torchrec.distributed import DistributedModelParallel
        from torchrec.distributed.embedding import EmbeddingCollectionSharder
        from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
        from torchrec.distributed.planner.types import ParameterConstraints
        from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
        from torchrec.distributed.types import ShardingEnv
        from torchrec.optim import RowWiseAdagrad as PeerAdagrad
        from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

        device = _device(settings)
        collection = EmbeddingCollection(
            tables=[EmbeddingConfig(name="item_table", embedding_dim=settings.dim, num_embeddings=settings.ids,
                                    feature_names=["item"])],
            device=torch.device("meta"),
        )  # fmt: skip
        apply_optimizer_in_backward(PeerAdagrad, collection.parameters(), {"lr": _LR})

        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.embeddings, self.dense = collection, Dense(settings, device)

            def forward(self, features: Any) -> tuple[torch.Tensor, None]:
                return self.dense(self.embeddings(features)["item"].values()), None

        sharder = EmbeddingCollectionSharder()
        planner = EmbeddingShardingPlanner(
            topology=Topology(world_size=settings.ranks, compute_device=device.type, local_world_size=settings.ranks,
                              hbm_cap=120 << 30),
            constraints={"item_table": ParameterConstraints(sharding_types=["row_wise"], compute_kernels=["fused"])},
        )  # fmt: skip
        model = Model()
        plan = planner.collective_plan(model, [sharder], group)
        sharded = DistributedModelParallel(
            model, env=ShardingEnv.from_process_group(group), device=device, plan=plan, sharders=[sharder],
            init_data_parallel=False,
        )  # fmt: skip
        dense = [each for name, each in sharded.named_parameters() if "dense." in name]
        self._pipeline = TrainPipelineSparseDist(sharded, torch.optim.SGD(dense, lr=_LR), device)
        self._features = (
            KeyedJaggedTensor(
                keys=["item"], values=ids, lengths=torch.ones(len(ids), dtype=torch.int64, device=ids.device),
                stride=len(ids), length_per_key=[len(ids)],
            )
            for ids in batches
        )  # fmt: skip

    def step(self) -> None:
        self._pipeline.progress(self._features)


def main(fields: Mapping[str, Any]) -> None:
    """Measures each system in turn, on the same batches."""
    settings = Settings(**fields)
    device = _device(settings)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    group = dist.new_group(backend=settings.backend, timeout=datetime.timedelta(seconds=settings.timeout_s))
    for name in settings.systems:
        batches = _batches(settings, device)
        if name == "torchrec":
            system: Any = TorchRec(settings, batches, group)
        else:
            system = Headway(settings, batches, group, reads_ahead=name == "headway_prioritized")
        point = _measure(settings, name, system, device)
        if settings.rank == 0:
            print(json.dumps(fields_of(point)), flush=True)
        del system
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        dist.barrier()


def _measure(settings: Settings, name: str, system: Any, device: torch.device) -> Point:
    for _ in range(settings.warm_up):
        system.step()
    steps = []
    waited_s = None
    if system.tables is not None:
        system.tables.time_waits()
    for _ in range(settings.rounds):
        _synchronize(device)
        dist.barrier()
        began = time.perf_counter()
        system.step()
        _synchronize(device)
        steps.append(time.perf_counter() - began)
    if system.tables is not None:
        waited_s = system.tables.waited_s() / settings.rounds
        system.tables.time_waits(False)
    exposed_s = _exposed(system.step, device) if device.type == "cuda" else waited_s
    exposed_s, waited_s = _least(exposed_s), _least(waited_s)
    share = None
    if name == "headway_prioritized":
        traffic = system.tables.statistics()["traffic"]
        share = traffic["collisions"] / max(traffic["keys_ahead"], 1)
    _synchronize(device)
    slowest = torch.tensor(steps)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    ordered = sorted(slowest.tolist())
    params = {
        each: getattr(settings, each) for each in ("ranks", "batch", "dim", "ids", "exponent", "hidden", "layers")
    }
    return Point(
        name="prioritized_updates", params=params | {"backend": settings.backend}, system=name,
        median_s=statistics.median(ordered), p5_s=ordered[len(ordered) // 20],
        p95_s=ordered[-1 - len(ordered) // 20], samples=len(ordered), rate=settings.batch / statistics.median(ordered),
        unit="ids/s",
        extra={
            "exposed_s": exposed_s, "waited_s": waited_s, "collision_share": share,
            "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        },
    )  # fmt: skip


def _least(seconds: float | None) -> float | None:
    """Returns the least of all ranks. What a faster rank waits beyond it is for the compute of a slower one."""
    if seconds is None:
        return None
    least = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    return least.item()


def _exposed(step: Step, device: torch.device) -> float:
    """Returns the seconds of a step in which exchanges run on this device and nothing else does, from a trace.

    Exchanges are kernels of NCCL and copies between devices, as those of Headway.
    """
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    step()
    _synchronize(device)
    dist.barrier()
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(_TRACED_STEPS):
            step()
        _synchronize(device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    on_device = [each for each in events if each.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    exchanges, others = [], []
    for each in on_device:
        is_exchange = "nccl" in each["name"] or "PtoP" in each["name"]
        (exchanges if is_exchange else others).append((each["ts"], each["ts"] + each["dur"]))
    return (_covered(exchanges + others) - _covered(others)) / 1e6 / _TRACED_STEPS


def _covered(spans: list[tuple[float, float]]) -> float:
    """Returns the length of the union of some spans."""
    total, end = 0.0, float("-inf")
    for first, last in sorted(spans):
        total += max(last - max(first, end), 0.0)
        end = max(end, last)
    return total


def _batches(settings: Settings, device: torch.device) -> Iterator[torch.Tensor]:
    """Yields ids on the device. They are drawn before, so drawing takes no time of a step."""
    random = np.random.default_rng(1 + settings.rank)
    count = settings.warm_up + settings.rounds + _TRACED_STEPS + 8
    drawn = [
        torch.from_numpy(
            draw_zipf(random, num_values=settings.ids, exponent=settings.exponent, size=settings.batch)
        ).to(device)
        for _ in range(count)
    ]
    yield from drawn


def _device(settings: Settings) -> torch.device:
    return device_of(settings.rank) if settings.device == "cuda" else torch.device("cpu")


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
