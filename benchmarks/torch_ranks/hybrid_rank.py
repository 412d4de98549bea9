# SPDX-License-Identifier: Apache-2.0
"""A dense worker of the benchmark ``hybrid``: steps of a small model whose tables are on parameter servers.

``python -m benchmarks.torch_ranks.hybrid_rank SETTINGS`` with a JSON object. Rank and size are in the environment, as
torchrun sets them. Rank 0 prints a JSON object with the seconds of each round.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from headway import hybrid
from headway.embedding import FeatureConfig, RowWiseAdagrad, Sgd, TableConfig

from dlrm_examples.support.data.zipf import draw_zipf

_DISTINCT_BATCHES = 16


def main(settings: dict[str, Any]) -> None:
    """Trains the rounds of ``settings``."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=settings["timeout_s"]))
    names = [f"feature_{number}" for number in range(settings["features"])]
    model = torch.nn.Sequential(
        torch.nn.Linear(settings["features"] * settings["dim"], 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)
    )
    dense = hybrid.DenseOptimizer(model, Sgd(lr=0.01))
    is_async = settings["system"].startswith("async")
    prepared = list(_batches(settings, names, rank))
    steps_per_round, rounds = settings["steps"], settings["rounds"] + 1  # The first one warms up.

    def step(batch: hybrid.Batch, embeddings: dict[str, torch.Tensor]) -> None:
        logits = model(torch.cat(list(embeddings.values()), dim=1))
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, batch.labels)
        time.sleep(settings["compute_ms"] / 1000)  # Stands for the compute of a device.
        dense.zero_grad()
        (loss if is_async else loss / num_ranks).backward()
        dense.step()

    times: list[float] = []
    keys = 0
    if settings["system"] == "dense_alone":
        dense.bind(dist.group.WORLD)
        shape = (settings["batch"], settings["dim"])
        for _ in range(rounds):
            began = _aligned_time()
            for number in range(steps_per_round):
                step(prepared[number % len(prepared)], {name: torch.rand(shape, requires_grad=True) for name in names})
            times.append(time.perf_counter() - began)
    else:
        tables = hybrid.connect(
            settings["config"],
            tables=[TableConfig(name, dim=settings["dim"], optimizer=RowWiseAdagrad(lr=0.01)) for name in names],
            features=[FeatureConfig(name, table=name, pooling="sum") for name in names],
            dense=dense,
        )
        source = (prepared[number % len(prepared)] for number in range(rounds * steps_per_round))
        began = _aligned_time()
        for number, batch in enumerate(hybrid.batches(tables, source), start=1):
            step(batch, tables(batch.features))
            tables.optimizer.step()
            if number % steps_per_round == 0:
                times.append(time.perf_counter() - began)
                began = _aligned_time()
        keys = sum(len(np.unique(batch.features[name][0])) for batch in prepared for name in names) / len(prepared)
    if rank == 0:
        print(json.dumps({"rounds_s": times[1:], "keys": keys}), flush=True)
    dist.destroy_process_group()


def _aligned_time() -> float:
    dist.barrier()
    return time.perf_counter()


def _batches(settings: dict[str, Any], names: list[str], rank: int) -> Iterator[hybrid.Batch]:
    random = np.random.default_rng(1 + rank)
    size = settings["batch"]
    for _ in range(_DISTINCT_BATCHES):
        features = {
            name: (
                torch.from_numpy(draw_zipf(random, num_values=settings["ids"], exponent=1.2, size=size)),
                torch.ones(size, dtype=torch.int64),
            )
            for name in names
        }
        yield hybrid.Batch(features, torch.empty(size, 0), torch.randint(0, 2, (size, 1)).float())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
