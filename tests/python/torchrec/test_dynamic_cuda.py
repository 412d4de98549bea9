# SPDX-License-Identifier: Apache-2.0
"""Dynamic tables on GPUs in TorchRec's models match dense tables on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import fbgemm_gpu
import headway.torchrec
import pytest
import torch
from cuda_ranks import NEEDS_GPU, run_on_gpus, take_device
from dynamic_models import (
    CPU,
    FEATURES,
    POOLED,
    SEQUENCE,
    STEPS,
    WEIGHTED,
    Batch,
    Kind,
    batches,
    expect_dense,
    make_batch,
    shard_model,
    sharded_collection,
    train_in_loop,
    train_sharded,
)
from headway.embedding import Adam, NoRoomError, Sgd
from rank_processes import run_ranks
from test_dynamic_checkpoints import load, merged, save
from torchrec import KeyedJaggedTensor
from torchrec.distributed.train_pipeline import EvalPipelineSparseDist, TrainPipelineBase, TrainPipelineSparseDist

pytestmark = [
    *NEEDS_GPU,
    pytest.mark.skipif(fbgemm_gpu.__variant__ != "cuda", reason="this FBGEMM is built without CUDA"),
]

#: Number of ranks, and their backend. Two ranks may share a GPU with Headway, but not with NCCL.
GROUPS = [(1, "nccl"), (2, "headway")]

CASES: list[tuple[Kind, str, dict[str, bool]]] = [
    (SEQUENCE, "sgd", {}),
    (SEQUENCE, "adam", {"everything": True}),
    (POOLED, "sgd", {}),
    (POOLED, "adam", {"everything": True}),
    (WEIGHTED, "adagrad", {"weighted": True}),
]


# All ranks are spawned, also those on the CPU: this process may have used CUDA in other tests, so it must not fork.


def train_all(rank: int) -> list[Any]:
    device = take_device(rank)
    return [train_sharded(rank, *case, device) for case in CASES]


@pytest.mark.parametrize(("size", "backend"), GROUPS)
def test_collections_learn_what_dense_ones_do(size: int, backend: str) -> None:
    by_rank = run_on_gpus(train_all, size, backend=backend)
    for number, (kind, optimizer, batch_kind) in enumerate(CASES):
        expect_dense([results[number] for results in by_rank], kind, optimizer, **batch_kind)


def large_batches(rank: int, num_steps: int) -> Iterator[Batch]:
    """Yields batches so large that the device takes longer than the host takes to enqueue their work."""
    for step in range(num_steps):
        generator = torch.Generator().manual_seed(1000 * rank + step)
        lengths = torch.randint(0, 60, (len(FEATURES) * 4000,), generator=generator)
        ids = torch.randint(0, 100_000, (int(lengths.sum()),), generator=generator) * 0x5DEECE66D1234567
        features = KeyedJaggedTensor(keys=FEATURES, values=ids, lengths=lengths)
        yield Batch(features, torch.rand(4000, generator=generator))


def train_in_pipeline(parallel: Any, device: torch.device, pipeline_class: Any, source: Iterator[Batch]) -> list[float]:
    """Trains in a pipeline, and returns the losses. The host reads them only after all steps are enqueued."""
    dense = torch.optim.SGD(parallel.module.over.parameters(), lr=0.05)
    pipeline = pipeline_class(parallel, dense, device)
    losses = []
    while True:
        try:
            losses.append(pipeline.progress(source))
        except StopIteration:
            break
    if pipeline_class is not TrainPipelineBase:
        assert pipeline._pipelined_modules == [sharded_collection(parallel)], "it is pipelined"
    return [loss.item() for loss in losses]


def compare_pipelines(rank: int) -> None:
    device = take_device(rank)
    for kind in (SEQUENCE, POOLED):
        expected = train_in_loop(shard_model(kind, Adam(lr=0.1), device=device), batches(rank, device=device))
        assert len(set(expected)) == STEPS, "the losses move"
        for pipeline in (TrainPipelineBase, TrainPipelineSparseDist):
            parallel = shard_model(kind, Adam(lr=0.1), device=device)
            found = train_in_pipeline(parallel, device, pipeline, batches(rank))
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    expected = train_in_loop(
        shard_model(POOLED, Adam(lr=0.01), device=device), (batch.to(device) for batch in large_batches(rank, 12))
    )
    parallel = shard_model(POOLED, Adam(lr=0.01), device=device)
    found = train_in_pipeline(parallel, device, TrainPipelineSparseDist, large_batches(rank, 12))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("size", "backend"), GROUPS)
def test_pipelines_train_to_the_numbers_of_a_loop(size: int, backend: str) -> None:
    run_on_gpus(compare_pipelines, size, backend=backend)


def evaluate(rank: int) -> int:
    device = take_device(rank)
    parallel = shard_model(POOLED, Adam(lr=0.1), device=device)
    parallel.eval()
    dense = torch.optim.SGD(parallel.module.over.parameters(), lr=0.05)
    pipeline = EvalPipelineSparseDist(parallel, dense, device)
    source = batches(rank)
    assert len({pipeline.progress(source).item() for _ in range(2)}) == 2
    return sum(kernel.table.size()["rows"] for kernel in sharded_collection(parallel).kernels())


def test_evaluation_in_a_pipeline_inserts_nothing() -> None:
    assert run_on_gpus(evaluate, 1, backend="nccl") == [0]


def train_without_waiting(rank: int) -> None:
    device = take_device(rank)
    for kind in (SEQUENCE, POOLED, WEIGHTED):
        collection = sharded_collection(shard_model(kind, Adam(lr=0.1), device=device))
        for number in range(6):
            features: Any = make_batch(rank, number, weighted=kind.weighted).features
            # Steps 0 to 2 are a warm-up, which may wait.
            features.sync()  # Computes the lengths per key on the host, as a data loader may do.
            features = features.to(device)
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error" if number >= 3 else "default")
            result = collection(features)
            outputs = [result.values()] if kind.pooled else [result[name].values() for name in FEATURES]
            sum(output.square().sum() for output in outputs).backward()
            torch.cuda.set_sync_debug_mode("default")


def test_one_rank_does_not_wait_for_the_device() -> None:
    run_on_gpus(train_without_waiting, 1, backend="nccl")


@pytest.mark.parametrize("kind", [SEQUENCE, POOLED], ids=["sequence", "pooled"])
def test_checkpoints_go_from_device_to_device_and_to_other_numbers_of_ranks(kind: Kind, tmp_path: Path) -> None:
    min_count = 9 if kind.pooled else 1
    on_gpu = run_on_gpus(save_on_gpu, 1, kind, str(tmp_path / "gpu"), min_count, backend="nccl")
    on_cpu = run_ranks(save, 2, kind, str(tmp_path / "cpu"), min_count, start_method="spawn")
    for saved, folder in ((on_gpu, "gpu"), (on_cpu, "cpu")):
        for loaded in (
            run_on_gpus(load_on_gpu, 2, kind, str(tmp_path / folder), min_count, backend="headway"),
            run_ranks(load, 3, kind, str(tmp_path / folder), min_count, start_method="spawn"),
        ):
            for column in (0, 1):  # Rows, then pending ids (seen fewer than min_count times).
                whole = merged([result[column] for result in saved])
                assert merged([result[column] for result in loaded]) == whole
                assert whole or (column == 1 and min_count == 1)
            assert loaded[0][2] == saved[0][2]


def save_on_gpu(rank: int, kind: Kind, folder: str, min_count: int) -> Any:
    return save(rank, kind, folder, min_count, take_device(rank))


def load_on_gpu(rank: int, kind: Kind, folder: str, min_count: int) -> Any:
    return load(rank, kind, folder, min_count, take_device(rank))


def refuse(rank: int) -> None:
    device = take_device(rank)
    parallel = shard_model(SEQUENCE, Sgd(lr=0.1), device=device)
    with pytest.raises(ValueError, match=f"ids must be on {device}, not on the CPU"):
        sharded_collection(parallel)(make_batch(rank, 0).features)
    roomy = shard_model(SEQUENCE, Sgd(lr=0.1), device=device, strict=True)
    train_in_loop(roomy, islice(batches(rank, device=device), 2))
    assert CPU not in {parameter.device for parameter in roomy.parameters()}
    full = shard_model(SEQUENCE, Sgd(lr=0.1), device=device, strict=True, max_rows=5)
    with pytest.raises(NoRoomError, match="ids got no row: their table is full"):
        full(make_batch(rank, 0, everything=True).to(device))
    assert sum(counts["refused"] for counts in headway.torchrec.statistics(full).values()) > 0


@pytest.mark.parametrize(("size", "backend"), GROUPS)
def test_what_cannot_be_is_told(size: int, backend: str) -> None:
    run_on_gpus(refuse, size, backend=backend)
