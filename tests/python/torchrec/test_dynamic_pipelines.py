# SPDX-License-Identifier: Apache-2.0
"""TorchRec's training pipelines give the results of a plain loop for models with dynamic tables."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from dynamic_models import CPU, POOLED, SEQUENCE, STEPS, Kind, batches, shard_model, sharded_collection, train_in_loop
from headway.embedding import Adam
from rank_processes import run_ranks
from torchrec.distributed.train_pipeline import (
    EvalPipelineSparseDist,
    TrainPipelineBase,
    TrainPipelineSparseDist,
)
from torchrec.distributed.train_pipeline.train_pipelines import TrainPipelineSparseDistLite


def train_without_pipeline(rank: int, kind: Kind) -> list[float]:
    return train_in_loop(shard_model(kind, Adam(lr=0.1)), batches(rank))


def train_in_pipeline(rank: int, kind: Kind, pipeline_class: Any) -> list[float]:
    parallel = shard_model(kind, Adam(lr=0.1))
    dense = torch.optim.SGD(parallel.module.over.parameters(), lr=0.05)
    pipeline = pipeline_class(parallel, dense, CPU)
    source = batches(rank)
    losses = [pipeline.progress(source).item() for _ in range(STEPS)]
    if pipeline_class is not TrainPipelineBase:
        assert pipeline._pipelined_modules == [sharded_collection(parallel)], "it is pipelined"
    with pytest.raises(StopIteration):
        pipeline.progress(source)
    return losses


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("kind", [SEQUENCE, POOLED], ids=["sequence", "pooled"])
def test_pipelines_train_to_the_numbers_of_a_loop(kind: Kind, size: int) -> None:
    expected = run_ranks(train_without_pipeline, size, kind)
    assert len(set(expected[0])) == STEPS, "the losses move"
    for pipeline in (TrainPipelineBase, TrainPipelineSparseDist, TrainPipelineSparseDistLite):
        assert run_ranks(train_in_pipeline, size, kind, pipeline) == expected, pipeline.__name__


def test_a_pipeline_runs_under_gloo_too() -> None:
    expected = run_ranks(train_without_pipeline, 2, POOLED)
    assert run_ranks(train_in_pipeline, 2, POOLED, TrainPipelineSparseDist, backend="gloo") == expected


def evaluate(rank: int) -> tuple[list[float], int]:
    parallel = shard_model(POOLED, Adam(lr=0.1))
    parallel.eval()
    dense = torch.optim.SGD(parallel.module.over.parameters(), lr=0.05)
    pipeline = EvalPipelineSparseDist(parallel, dense, CPU)
    source = batches(rank)
    losses = [pipeline.progress(source).item() for _ in range(2)]
    return losses, sum(kernel.table.size()["rows"] for kernel in sharded_collection(parallel).kernels())


def test_evaluation_in_a_pipeline_inserts_nothing() -> None:
    results = run_ranks(evaluate, 2)
    assert [rows for _, rows in results] == [0, 0]
    assert all(len(set(losses)) == 2 for losses, _ in results)
