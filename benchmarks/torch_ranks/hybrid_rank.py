# SPDX-License-Identifier: Apache-2.0
"""A dense worker of the benchmark ``hybrid``: steps of a small model whose tables are on parameter servers.

``python -m benchmarks.torch_ranks.hybrid_rank SETTINGS`` with a JSON object. Rank and size are in the environment, as
torchrun sets them. Rank 0 prints a JSON object with the seconds of each round.

With ``loader`` a process of PyTorch's DataLoader sends the ids to an embedding worker, and this one sees none.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from headway import hybrid
from headway.comm.process_end import end_process
from headway.embedding import FeatureConfig, RowWiseAdagrad, Sgd, TableConfig

from benchmarks.torch_ranks.hybrid_model import (
    LR,
    IdBatch,
    draw_batches,
    feature_names,
    loss_of,
    make_model,
    mean_unique_keys,
    repeat,
)


class Log(torch.utils.data.IterableDataset[hybrid.Batch]):
    """Batches whose ids are at an embedding worker."""

    def __init__(self, settings: dict[str, Any], count: int) -> None:
        self._settings, self._count = settings, count

    def __iter__(self) -> Iterator[hybrid.Batch]:
        """Submits ``count`` batches."""
        loader = hybrid.Loader(self._settings["config"], **_configurations(self._settings))
        prepared = [_to_batch(each) for each in draw_batches(self._settings, rank=0)]
        for batch in repeat(prepared, self._count):
            yield hybrid.Batch(loader.submit(batch.features), batch.dense, batch.labels)


def main(settings: dict[str, Any]) -> None:
    """Trains the rounds of ``settings``."""
    torch.set_num_threads(1)
    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=settings["timeout_s"]))
    model = make_model(settings)
    dense = hybrid.DenseOptimizer(model, Sgd(lr=LR))
    is_async = settings["system"].startswith("async")
    steps_per_round, rounds = settings["steps"], settings["rounds"] + 1  # The first one warms up.

    def step(labels: torch.Tensor, embeddings: Sequence[torch.Tensor]) -> None:
        loss = loss_of(model, embeddings, labels, compute_ms=settings["compute_ms"])
        dense.zero_grad()
        (loss if is_async else loss / num_ranks).backward()
        dense.step()

    times: list[float] = []
    drawn = draw_batches(settings, rank)
    if settings["system"] == "dense_alone":
        dense.bind(dist.group.WORLD)
        shape = (settings["batch"], settings["dim"])
        for _ in range(rounds):
            began = _aligned_time()
            for batch in repeat(drawn, steps_per_round):
                step(batch.labels, [torch.rand(shape, requires_grad=True) for _ in range(settings["features"])])
            times.append(time.perf_counter() - began)
    else:
        tables = hybrid.connect(settings["config"], **_configurations(settings), dense=dense)
        source: Iterable[hybrid.Batch]
        if settings["loader"]:
            log = Log(settings, rounds * steps_per_round)
            source = torch.utils.data.DataLoader(log, batch_size=None, num_workers=1, prefetch_factor=8)
        else:
            source = repeat([_to_batch(batch) for batch in drawn], rounds * steps_per_round)
        began = _aligned_time()
        for number, batch in enumerate(hybrid.batches(tables, source), start=1):
            step(batch.labels, list(tables(batch.features).values()))
            tables.optimizer.step()
            if number % steps_per_round == 0:
                times.append(time.perf_counter() - began)
                began = _aligned_time()
    if rank == 0:
        keys = 0 if settings["system"] == "dense_alone" else mean_unique_keys(drawn)
        print(json.dumps({"rounds_s": times[1:], "keys": keys}), flush=True)
    dist.destroy_process_group()


def _configurations(settings: dict[str, Any]) -> dict[str, Any]:
    names = feature_names(settings)
    return {
        "tables": [TableConfig(name, dim=settings["dim"], optimizer=RowWiseAdagrad(lr=LR)) for name in names],
        "features": [FeatureConfig(name, table=name, pooling="sum") for name in names],
    }


def _to_batch(batch: IdBatch) -> hybrid.Batch:
    size = len(batch.labels)
    features = {name: (ids, torch.ones(size, dtype=torch.int64)) for name, ids in batch.ids.items()}
    return hybrid.Batch(features, torch.empty(size, 0), batch.labels)


def _aligned_time() -> float:
    dist.barrier()
    return time.perf_counter()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
    end_process()
