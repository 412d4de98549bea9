# SPDX-License-Identifier: Apache-2.0
"""TorchRec on headway groups: real communication with the shim, and the same results as under Gloo.

TorchRec takes a group named "custom", torch's name for any plug-in backend, for a fake one, and makes results up. The
shim lets headway groups return "headway".
"""

from __future__ import annotations

import copy
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from headway.comm import torchrec_shim
from rank_processes import run_ranks
from torch import nn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torchrec = pytest.importorskip("torchrec")
    from torchrec import (
        EmbeddingBagCollection,
        EmbeddingBagConfig,
        EmbeddingCollection,
        EmbeddingConfig,
        KeyedJaggedTensor,
    )
    from torchrec.distributed import comm_ops, dist_data
    from torchrec.distributed.embedding import EmbeddingCollectionSharder
    from torchrec.distributed.embedding_types import EmbeddingComputeKernel
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
    from torchrec.distributed.planner.types import ParameterConstraints
    from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
    from torchrec.distributed.types import ShardingType
    from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
    from torchrec.streamable import Pipelineable

STEPS = 8
ROWS, COLUMNS, BATCH = 64, 8, 6
CPU = torch.device("cpu")


def exchange_pooled(rank: int) -> list[float]:
    """Runs TorchRec's synchronous variable-batch pooled exchange. Values depend on sender and receiver."""
    size = dist.get_world_size()
    comm_ops.set_use_sync_collectives(True)
    comm_ops.set_gradient_division(False)
    # One feature of dimension 2 on each rank; every rank has a batch of 3.
    sends = torch.cat([torch.full((3 * 2,), 10.0 * rank + receiver) for receiver in range(size)])
    awaitable = comm_ops.variable_batch_alltoall_pooled(
        a2a_pooled_embs_tensor=sends,
        batch_size_per_rank_per_feature=[[3]] * size,
        batch_size_per_feature_pre_a2a=[3] * size,
        emb_dim_per_rank_per_feature=[[2]] * size,
        group=dist.group.WORLD,
    )
    received: list[float] = awaitable.wait().tolist()
    return received


def exchange_splits(rank: int) -> list[float]:
    """Runs the exchange of counts of ids as it is compiled."""
    with mock.patch.object(dist_data, "is_torchdynamo_compiling", lambda: True):
        counts = torch.tensor([10 * rank + receiver for receiver in range(2)])
        (received,) = dist_data.SplitsAllToAllAwaitable([counts], dist.group.WORLD).wait()
    return [float(count) for count in received]


def exchange_ids(rank: int) -> list[float]:
    """Runs the exchange of ids as it is compiled: two ids from each rank for rank 0, and one for rank 1."""
    sent, received = [2, 1], [[2, 2], [1, 1]][rank]
    ids = torch.tensor([10.0 * rank + receiver for receiver, count in enumerate(sent) for _ in range(count)])
    with mock.patch.object(dist_data, "is_torchdynamo_compiling", lambda: True):
        awaitable = dist_data.KJTAllToAllTensorsAwaitable(
            pg=dist.group.WORLD,
            input=KeyedJaggedTensor(["f0", "f1"], ids, lengths=torch.tensor(sent)),
            splits=[1, 1],
            input_splits=[sent],
            output_splits=[received],
            input_tensors=[ids],
            labels=["values"],
            keys=[f"f{rank}"],
            device=CPU,
            stagger=1,
            stride_per_rank=None,
        )
    (ids_received,) = awaitable._output_tensors
    found: list[float] = ids_received.tolist()
    return found


# For each place where TorchRec asks for the name "custom": an exchange, what both ranks receive, and what TorchRec
# makes up there from what the rank itself sends.
EXCHANGES = pytest.mark.parametrize(
    ("exchange", "received", "made_up"),
    [
        (
            exchange_pooled,
            [[*[0.0] * 6, *[10.0] * 6], [*[1.0] * 6, *[11.0] * 6]],
            [[*[0.0] * 6, *[1.0] * 6], [*[10.0] * 6, *[11.0] * 6]],
        ),
        (exchange_splits, [[0.0, 10.0], [1.0, 11.0]], [[0.0, 0.0], [10.0, 10.0]]),
        (exchange_ids, [[0.0, 0.0, 10.0, 10.0], [1.0, 11.0]], [[0.0, 0.0, 0.0, 0.0], [10.0, 10.0]]),
    ],
)
Exchange = Callable[[int], list[float]]


@EXCHANGES
def test_torchrec_communicates_through_a_headway_group(
    exchange: Exchange, received: list[list[float]], made_up: list[list[float]]
) -> None:
    assert run_ranks(exchange, 2) == received


@pytest.fixture
def without_shim(monkeypatch: pytest.MonkeyPatch) -> None:
    torchrec_shim.uninstall()
    monkeypatch.setattr(torchrec_shim, "install_when_imported", lambda: None)


@EXCHANGES
@pytest.mark.usefixtures("without_shim")
def test_without_the_shim_torchrec_makes_results_up(
    exchange: Exchange, received: list[list[float]], made_up: list[list[float]]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = run_ranks(exchange, 2)
    assert results == made_up, "TorchRec has changed: the shim may go"


def test_torchrec_asks_for_the_name_custom_in_the_tested_places_only() -> None:
    folder = Path(torchrec.__file__).parent
    found = Counter(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        for _ in re.findall(r"_get_backend_name\(\)", path.read_text())
    )
    assert found == {"distributed/comm_ops.py": 1, "distributed/dist_data.py": 2}


def ask_for_names(rank: int) -> None:
    gloo, ours = dist.new_group(backend="gloo"), dist.new_group(backend="headway")
    assert (gloo._get_backend_name(), ours._get_backend_name()) == ("gloo", "headway")


def test_the_shim_renames_headway_groups_only() -> None:
    run_ranks(ask_for_names, 1)


def ask_in_a_graph(rank: int) -> None:
    group = dist.group.WORLD

    @torch.compile(backend="eager", fullgraph=True)
    def names_it(number: torch.Tensor) -> torch.Tensor:
        return number + 1 if group._get_backend_name() == "headway" else number - 1

    assert names_it(torch.tensor(1)) == 2


def test_compiled_code_sees_the_name_that_the_shim_gives() -> None:
    run_ranks(ask_in_a_graph, 1)


class Batch(Pipelineable):
    """Sparse features and target of one rank."""

    def __init__(self, features: KeyedJaggedTensor, target_B: torch.Tensor) -> None:
        self.features, self.target_B = features, target_B

    def to(self, device: torch.device, non_blocking: bool = False) -> Batch:
        return Batch(self.features.to(device), self.target_B.to(device))

    def record_stream(self, stream: torch.Stream) -> None:
        """Nothing to record on CPU."""

    def pin_memory(self) -> Batch:
        return self


def batches(rank: int) -> Iterator[Batch]:
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(100 * rank + step)
        lengths = torch.randint(0, 5, (2 * BATCH,), generator=generator)
        values = torch.randint(0, ROWS, (int(lengths.sum()),), generator=generator)
        features = KeyedJaggedTensor.from_lengths_sync(["f0", "f1"], values, lengths)
        yield Batch(features, torch.rand(BATCH, generator=generator))


class PooledModel(nn.Module):
    """Embedding bags and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        tables = [
            EmbeddingBagConfig(name=f"t{i}", embedding_dim=COLUMNS, num_embeddings=ROWS, feature_names=[f"f{i}"])
            for i in range(2)
        ]
        self.embeddings = EmbeddingBagCollection(tables=tables, device=CPU)
        self.over = nn.Linear(2 * COLUMNS, 1)

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        logits_B = self.over(self.embeddings(batch.features).values()).squeeze(1)
        loss = (logits_B - batch.target_B).square().mean()
        return loss, loss.detach()


class SequenceModel(nn.Module):
    """Embeddings of every id, reduced by a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        tables = [
            EmbeddingConfig(name=f"t{i}", embedding_dim=COLUMNS, num_embeddings=ROWS, feature_names=[f"f{i}"])
            for i in range(2)
        ]
        self.embeddings = EmbeddingCollection(tables=tables, device=CPU)
        self.over = nn.Linear(COLUMNS, 1)

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        embedded = self.embeddings(batch.features)
        total = self.over(embedded["f0"].values()).mean() + self.over(embedded["f1"].values()).mean()
        loss = (total - batch.target_B.mean()).square()
        return loss, loss.detach()


def train(rank: int, model_class: type[nn.Module], sharding: str) -> list[float]:
    """Trains through the pipelined trainer, table-wise or row-wise sharded. Returns the losses of this rank."""
    torch.manual_seed(3)
    model = model_class()
    sharder: Any = EmbeddingBagCollectionSharder() if model_class is PooledModel else EmbeddingCollectionSharder()
    apply_optimizer_in_backward(torch.optim.Adagrad, model.embeddings.parameters(), {"lr": 0.1})
    constraint = ParameterConstraints(sharding_types=[sharding], compute_kernels=[EmbeddingComputeKernel.FUSED.value])
    planner = EmbeddingShardingPlanner(
        topology=Topology(world_size=dist.get_world_size(), compute_device="cpu"),
        constraints={f"t{i}": copy.deepcopy(constraint) for i in range(2)},
    )
    plan = planner.collective_plan(model, [sharder], dist.group.WORLD)
    parallel = DistributedModelParallel(model, device=CPU, plan=plan, sharders=[sharder])
    dense = torch.optim.SGD(parallel.module.over.parameters(), lr=0.1)
    pipeline = TrainPipelineSparseDist(parallel, dense, CPU)
    source = batches(rank)
    return [pipeline.progress(source).item() for _ in range(STEPS)]


@pytest.mark.parametrize(
    ("model_class", "sharding"),
    [
        (PooledModel, ShardingType.TABLE_WISE.value),
        (PooledModel, ShardingType.COLUMN_WISE.value),
        (SequenceModel, ShardingType.TABLE_WISE.value),
        (SequenceModel, ShardingType.ROW_WISE.value),
    ],
)
def test_sharded_embeddings_train_to_the_numbers_of_gloo(model_class: type[nn.Module], sharding: str) -> None:
    ours = run_ranks(train, 2, model_class, sharding, backend="headway", timeout_s=60)
    theirs = run_ranks(train, 2, model_class, sharding, backend="gloo", timeout_s=60)
    assert ours == theirs
    assert len(set(ours[0])) == STEPS, "the losses move"
