# SPDX-License-Identifier: Apache-2.0
"""A trainer of TorchRec in the benchmark ``hybrid``: the same model and batches, tables sharded over all trainers.

``python -m benchmarks.hybrid_peers.torchrec_rank SETTINGS`` with a JSON object. Rank and size are in the environment,
as torchrun sets them. Rank 0 prints a JSON object with the seconds of each round.

Tables are those of an ``EmbeddingBagCollection`` with a fused row-wise Adagrad, the dense model is in DDP, and
``TrainPipelineSparseDist`` exchanges the ids of the next batch before the forward pass of this one. All that runs on
the CPU over Gloo. Every row is allocated at the start.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from headway.comm.process_end import end_process
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise, table_wise
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.streamable import Pipelineable

from benchmarks.torch_ranks.hybrid_model import LR, IdBatch, draw_batches, feature_names, loss_of, make_model, repeat


@dataclass
class KeyedBatch(Pipelineable):
    """A batch in TorchRec's form."""

    features: KeyedJaggedTensor
    labels: torch.Tensor

    @staticmethod
    def of(batch: IdBatch) -> KeyedBatch:
        """Joins the ids of all features. Each sample has one id of a feature."""
        values = torch.cat(list(batch.ids.values()))
        size = len(batch.labels)
        features = KeyedJaggedTensor(
            keys=list(batch.ids), values=values, lengths=torch.ones(len(values), dtype=torch.int64), stride=size,
            length_per_key=[size] * len(batch.ids),
        )  # fmt: skip
        return KeyedBatch(features, batch.labels)

    def to(self, device: torch.device, non_blocking: bool = False) -> KeyedBatch:
        """Copies the batch to a device."""
        return KeyedBatch(self.features.to(device, non_blocking), self.labels.to(device, non_blocking=non_blocking))

    def record_stream(self, stream: Any) -> None:
        """Does nothing: on the CPU there are no streams."""

    def pin_memory(self) -> KeyedBatch:
        """Returns the batch itself: nothing copies it to a device."""
        return self


class Model(torch.nn.Module):
    """Tables and the dense model. It returns the loss, as the pipeline asks."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__()
        self._names, self._compute_ms = feature_names(settings), settings["compute_ms"]
        self.tables = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(name=name, embedding_dim=settings["dim"], num_embeddings=settings["ids"],
                                   feature_names=[name])
                for name in self._names
            ],
            device=torch.device("meta"),
        )  # fmt: skip
        self.dense = make_model(settings)

    def forward(self, batch: KeyedBatch) -> tuple[torch.Tensor, None]:
        """Returns the loss of a batch, and no output."""
        found = self.tables(batch.features)
        embeddings = [found[name] for name in self._names]
        return loss_of(self.dense, embeddings, batch.labels, compute_ms=self._compute_ms), None


def main(settings: dict[str, Any]) -> None:
    """Trains the rounds of ``settings``."""
    torch.set_num_threads(1)
    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=settings["timeout_s"]))
    device = torch.device("cpu")
    model = Model(settings)
    apply_optimizer_in_backward(RowWiseAdagrad, model.tables.parameters(), {"lr": LR})
    sharder = EmbeddingBagCollectionSharder()
    # The planner offers row-wise shards on GPUs alone, and the CPU runs them: so the plan is made by hand.
    shard = {
        "row_wise": lambda _: row_wise(compute_kernel="fused"),
        "table_wise": lambda index: table_wise(rank=index % num_ranks, compute_kernel="fused"),
    }[settings["sharding"]]
    plan = construct_module_sharding_plan(
        model.tables,
        {name: shard(index) for index, name in enumerate(feature_names(settings))},
        sharder=sharder,  # type: ignore[arg-type]
        local_size=num_ranks,
        world_size=num_ranks,
        device_type="cpu",
    )
    group = dist.group.WORLD
    assert group is not None
    sharded = DistributedModelParallel(
        model, env=ShardingEnv.from_process_group(group), device=device, plan=ShardingPlan(plan={"tables": plan}),
        sharders=[sharder],  # type: ignore[list-item]
    )  # fmt: skip
    dense = [each for name, each in sharded.named_parameters() if "dense." in name]
    steps_per_round, rounds = settings["steps"], settings["rounds"] + 1  # The first one warms up.
    prepared = [KeyedBatch.of(batch) for batch in draw_batches(settings, rank)]
    source: Iterator[KeyedBatch] = repeat(prepared, rounds * steps_per_round)
    pipeline = TrainPipelineSparseDist(sharded, torch.optim.SGD(dense, lr=LR), device)
    times = []
    for _ in range(rounds):
        dist.barrier()
        began = time.perf_counter()
        for _ in range(steps_per_round):
            pipeline.progress(source)
        times.append(time.perf_counter() - began)
    if rank == 0:
        print(json.dumps({"rounds_s": times[1:], "keys": 0}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
    end_process()
