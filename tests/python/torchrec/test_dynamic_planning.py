# SPDX-License-Identifier: Apache-2.0
"""Dynamic tables in TorchRec's planner, next to static tables, and the configurations that are rejected."""

from __future__ import annotations

import subprocess
import sys
from typing import Any
from unittest import mock

import headway.torchrec
import pytest
import torch
import torch.distributed as dist
from dynamic_models import (
    CPU,
    META,
    SEQUENCE,
    Kind,
    Model,
    make_batch,
    make_collection,
    shard_model,
    sharded_collection,
)
from headway.embedding import Adam, Eviction, Normal, RowWiseAdagrad, Sgd
from headway.torchrec import DynamicEmbeddingBagCollection, DynamicTable
from rank_processes import BACKENDS, run_ranks
from torch import nn
from torchrec import EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
from torchrec.distributed.embedding import ShardedEmbeddingCollection
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import ParameterConstraints, Topology
from torchrec.distributed.planner.types import PlannerError
from torchrec.modules.embedding_configs import DataType
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

CUSTOMIZED = EmbeddingComputeKernel.CUSTOMIZED_KERNEL.value
TABLES = {"item": DynamicTable(optimizer=Adam(lr=0.1)), "user": DynamicTable(optimizer=Adam(lr=0.1))}


def plan(tables: dict[str, DynamicTable], ddr_bytes: int = 10**9, **constraints: ParameterConstraints) -> Any:
    """Plans the model for two ranks with ``ddr_bytes`` of host memory each, without starting any.

    Returns the plan of the collection, and the planner.
    """
    topology = Topology(world_size=2, compute_device="cpu", ddr_cap=ddr_bytes)
    planner = headway.torchrec.planner(tables, topology=topology, constraints=constraints, batch_size=4)
    result = planner.plan(Model(SEQUENCE), headway.torchrec.sharders(tables))
    return result.plan["embeddings"], planner


def test_dynamic_tables_are_planned_for_all_ranks() -> None:
    planned, _ = plan(TABLES)
    for table in TABLES:
        assert (planned[table].sharding_type, planned[table].compute_kernel) == ("row_wise", CUSTOMIZED)
        assert planned[table].ranks == [0, 1]


def test_constraints_are_kept_or_refused() -> None:
    fitting = ParameterConstraints(sharding_types=["row_wise", "table_wise"], pooling_factors=[30.0])
    _, planner = plan(TABLES, item=fitting)
    (item,) = (each for each in planner._enumerator.last_stored_search_space if each.name == "item")
    assert item.input_lengths == [30.0]
    with pytest.raises(ValueError, match=r"table item: a dynamic table needs row_wise, but .* \['table_wise'\]"):
        plan(TABLES, item=ParameterConstraints(sharding_types=["table_wise"]))
    with pytest.raises(ValueError, match="table user: a dynamic table needs customized_kernel"):
        plan(TABLES, user=ParameterConstraints(compute_kernels=["fused"]))


def table_bytes(
    settings: DynamicTable, make_model: Any = lambda: Model(SEQUENCE), *, compute_device: str = "cpu"
) -> int:
    """Returns the bytes that the planner counts for a table, including its estimate of optimizer state."""
    topology = Topology(world_size=2, compute_device=compute_device)
    tables = {"item": settings, "user": settings}
    planner = headway.torchrec.planner(tables, topology=topology, batch_size=4)
    options = planner._enumerator.enumerate(make_model(), headway.torchrec.sharders(tables))
    (item,) = (option for option in options if option.name == "item")
    assert item.compute_kernel == CUSTOMIZED
    return sum(shard.storage.ddr if compute_device == "cpu" else shard.storage.hbm for shard in item.shards)


def in_backward(optimizer: Any) -> Any:
    def make_model() -> Model:
        model = Model(SEQUENCE)
        apply_optimizer_in_backward(optimizer, model.embeddings.parameters(), {"lr": 0.1})
        return model

    return make_model


def test_the_planner_counts_the_memory_of_expected_rows() -> None:
    """Compares two numbers of rows: the difference excludes the memory of a batch."""
    rows = 1_000_000

    def per_row(optimizer: Any, *model: Any) -> float:
        few, many = (table_bytes(DynamicTable(optimizer=optimizer, expected_rows=n), *model) for n in (rows, 3 * rows))
        return (many - few) / (2 * rows)

    # 4 bytes per number of embedding and optimizer state, and 44 for the key, its count and its step.
    assert per_row(Sgd(lr=0.1)) == pytest.approx(4 * 4 + 44, abs=0.1)
    assert per_row(Adam(lr=0.1)) == pytest.approx(4 * (4 + 8) + 44, abs=0.1)
    assert per_row(RowWiseAdagrad(lr=0.1)) == pytest.approx(4 * (4 + 1) + 44, abs=0.1)
    assert per_row(None, in_backward(torch.optim.Adam)) == pytest.approx(4 * (4 + 8) + 44, abs=0.1)
    assert per_row(None, in_backward(torch.optim.SGD)) == pytest.approx(4 * 4 + 44, abs=0.1)


def test_the_memory_of_a_table_on_gpus_is_theirs() -> None:
    rows = 1_000_000
    few, many = (
        table_bytes(DynamicTable(optimizer=Adam(lr=0.1), expected_rows=n), compute_device="cuda")
        for n in (rows, 3 * rows)
    )
    assert (many - few) / (2 * rows) == pytest.approx(4 * (4 + 8) + 44, abs=0.1)


def refuse_topology(rank: int) -> None:
    topology = Topology(world_size=1, compute_device="cuda")
    with pytest.raises(ValueError, match="the topology is of cuda devices, but the model is to be on cpu"):
        headway.torchrec.shard(Model(SEQUENCE), TABLES, topology=topology)


def test_topologies_of_another_device_are_refused() -> None:
    run_ranks(refuse_topology, 1)


def test_a_table_that_does_not_fit_is_not_planned() -> None:
    with pytest.raises(PlannerError):
        plan({**TABLES, "item": DynamicTable(optimizer=Adam(lr=0.1), expected_rows=10**8)})


class Mixed(nn.Module):
    """A dynamic collection of bags and a static one of sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.dynamic = make_collection(Kind(pooled=True), 1000, META)
        tables = [EmbeddingConfig(name="page", embedding_dim=4, num_embeddings=50, feature_names=["page"])]
        self.static = EmbeddingCollection(tables=tables, device=META)
        apply_optimizer_in_backward(torch.optim.SGD, self.static.parameters(), {"lr": 0.1})
        self.over = nn.Linear(12, 1)

    def forward(self, features: KeyedJaggedTensor, pages: KeyedJaggedTensor) -> torch.Tensor:
        loss: torch.Tensor = self.over(self.dynamic(features).values()).mean()
        return loss + self.static(pages)["page"].values().mean()


def train_mixed(rank: int) -> float:
    model = headway.torchrec.shard(Mixed(), TABLES, constraints={"page": ParameterConstraints(["row_wise"])})
    assert isinstance(model.module.dynamic, DynamicEmbeddingBagCollection)
    assert type(model.module.static) is ShardedEmbeddingCollection
    pages = KeyedJaggedTensor(keys=["page"], values=torch.tensor([3, 40]), lengths=torch.tensor([1, 1]))
    model(make_batch(rank, 0).features, pages).backward()
    return float(model(make_batch(rank, 0).features, pages).detach())


@pytest.mark.parametrize("backend", BACKENDS)
def test_static_collections_stay_with_torchrec(backend: str) -> None:
    first, second = run_ranks(train_mixed, 2, backend=backend)
    assert first != second


def refuse(rank: int) -> None:
    with pytest.raises(ValueError, match="the model has no tables itme; it has: item, user"):
        headway.torchrec.shard(Model(SEQUENCE), {"itme": DynamicTable()})
    with pytest.raises(ValueError, match="on device 'meta'"):
        headway.torchrec.shard(Model(SEQUENCE, device=CPU), TABLES)
    with pytest.raises(ValueError, match="there is no weighted mean"):
        shard_model(Kind(pooled=True, weighted=True, poolings=("SUM", "MEAN")), Sgd(lr=0.1))
    sharder = headway.torchrec.sharders(TABLES)  # First that of EmbeddingCollection, then that of bags.
    planned, _ = plan(TABLES)
    planned["user"].compute_kernel = "fused"
    with pytest.raises(ValueError, match=r"table user: the plan has row_wise with kernel fused, but a dynamic table"):
        sharder[0].shard(Model(SEQUENCE).embeddings, planned, DistributedModelParallel(nn.Linear(1, 1))._env)
    weighted = shard_model(Kind(pooled=True, weighted=True), Sgd(lr=0.1))
    with pytest.raises(ValueError, match="the collection is weighted, but its input has no weights"):
        weighted(make_batch(rank, 0))
    batch = make_batch(rank, 0, weighted=True)
    for order in ([0, 1, 2], [2, 1, 0]):  # TorchRec permutes the second order, and drops gradients there.
        batch.features = batch.features.permute(order)
        batch.features.weights().requires_grad_()
        with pytest.raises(ValueError, match="weights of ids get no gradient from dynamic tables"):
            weighted(batch)
    with torch.no_grad():
        weighted(batch)
    with pytest.raises(NotImplementedError, match="dynamic tables do not move between ranks"):
        sharder[1].reshard(sharded_collection(weighted), {"item": planned["item"]}, None)


def run_out_of_memory(rank: int) -> None:
    """Planning fails on rank 0, which plans for all: for lack of memory, then by an error that is hard to pass on."""
    topology = Topology(world_size=2, compute_device="cpu", ddr_cap=1)
    with pytest.raises(PlannerError):
        headway.torchrec.shard(Model(SEQUENCE), TABLES, topology=topology)
    with (
        mock.patch("headway.torchrec.planning.EmbeddingShardingPlanner.plan", side_effect=Unportable("first", 2)),
        pytest.raises((Unportable, RuntimeError), match="first"),
    ):
        headway.torchrec.shard(Model(SEQUENCE), TABLES)
    dist.barrier()


class Unportable(Exception):
    """An error that cannot be unpickled, because its constructor needs two arguments."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)


def test_all_ranks_fail_where_planning_fails() -> None:
    run_ranks(run_out_of_memory, 2, timeout_s=10)


def test_what_cannot_be_is_told_before_training() -> None:
    run_ranks(refuse, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data_type": DataType.FP16}, "dynamic tables are of FP32"),
        ({"use_virtual_table": True}, "nothing for use_virtual_table"),
        ({"init_fn": torch.nn.init.zeros_}, "give DynamicTable an initializer"),
    ],
)
def test_configs_beyond_dynamic_tables_are_refused(change: dict[str, Any], message: str) -> None:
    config = EmbeddingConfig(name="t", embedding_dim=4, num_embeddings=9, feature_names=["f"], **change)
    with pytest.raises(ValueError, match=message):
        TABLES["item"].resolve(config, {})


def test_an_initializer_takes_the_place_of_the_configs_own() -> None:
    config = EmbeddingConfig(
        name="t", embedding_dim=4, num_embeddings=9, feature_names=["f"], init_fn=torch.nn.init.zeros_
    )
    given = DynamicTable(optimizer=Sgd(lr=0.1), initializer=Normal(std=0.1))
    assert given.resolve(config, {}).initializer == Normal(std=0.1)
    with pytest.raises(ValueError, match="eviction needs max_rows"):
        DynamicTable(eviction=Eviction(policy="lru"))
    with pytest.raises(ValueError, match="expected_rows must be at least 1"):
        DynamicTable(expected_rows=0)


def test_headway_alone_does_not_import_torchrec() -> None:
    code = "import headway, headway.embedding, sys; sys.exit('torchrec' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)}, timeout=60)
