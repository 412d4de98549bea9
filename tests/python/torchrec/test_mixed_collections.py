# SPDX-License-Identifier: Apache-2.0
"""Dynamic and static tables in one collection match the same tables in collections of their own."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import headway.torchrec
import pytest
import torch
from dynamic_models import BATCH, IDS, META, Batch
from headway.embedding import Adagrad, Uniform
from headway.torchrec import DynamicTable
from rank_processes import run_ranks
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
from torchrec.distributed.planner import ParameterConstraints
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.modules.embedding_configs import PoolingType
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

ROWS = 50
#: Table -> its features. "page" is static (a TorchRec table), the others are dynamic: hash tables for any 64-bit id.
TABLES = {"item": ["clicks", "views"], "page": ["page"], "user": ["user"]}
FEATURES = ["clicks", "page", "user", "views"]
DYNAMIC = {
    name: DynamicTable(optimizer=Adagrad(lr=0.1), initializer=Uniform(-1, 1)) for name in TABLES if name != "page"
}


def make_collection(names: list[str], pooling: str | None) -> nn.Module:
    configs: list[Any] = []
    for name in names:
        config = {"name": name, "embedding_dim": 4, "num_embeddings": ROWS, "feature_names": TABLES[name]}
        more = {} if pooling is None else {"pooling": PoolingType[pooling]}
        configs.append(EmbeddingConfig(**config) if pooling is None else EmbeddingBagConfig(**config, **more))
    kind = EmbeddingCollection if pooling is None else EmbeddingBagCollection
    made = kind(tables=configs, device=META)
    static = [weight for name, weight in made.named_parameters() if ".page." in name]
    apply_optimizer_in_backward(torch.optim.Adagrad, static, {"lr": 0.1})
    return made


class Model(nn.Module):
    """All tables in one collection (``mixed``), or the static table in a collection of its own."""

    def __init__(self, pooling: str | None, *, mixed: bool) -> None:
        super().__init__()
        self.pooling, self.names = pooling, [list(TABLES)] if mixed else [["page"], ["item", "user"]]
        self.parts = nn.ModuleList([make_collection(names, pooling) for names in self.names])
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        found: dict[str, torch.Tensor] = {}
        for part, names in zip(self.parts, self.names, strict=True):
            result = part(batch.features)
            for name in [name for table in names for name in TABLES[table]]:
                found[name] = result[name].values() if self.pooling is None else result[name]
        losses = [(1 + index) * found[name].square().sum() for index, name in enumerate(FEATURES)]
        return self.scale * torch.stack(losses).sum(), {name: value.detach() for name, value in found.items()}


def make_batch(rank: int, step: int, names: list[str]) -> Batch:
    generator = torch.Generator().manual_seed(100 * rank + step)
    lengths = {name: torch.randint(0, 4, (BATCH,), generator=generator) for name in FEATURES}
    ids = {name: torch.randint(0, len(IDS), (int(lengths[name].sum()),), generator=generator) for name in FEATURES}
    ids = {name: indices if name == "page" else IDS[indices] for name, indices in ids.items()}
    features = KeyedJaggedTensor(
        keys=names,
        values=torch.cat([ids[name] for name in names]),
        lengths=torch.cat([lengths[name] for name in names]),
    )
    return Batch(features, torch.zeros(BATCH))


def batches(rank: int, *, reorder: bool = False) -> Iterator[Batch]:
    for step in range(4):
        yield make_batch(rank, step, FEATURES[::-1] if reorder and step % 2 else FEATURES)


def shard(pooling: str | None, sharding: str, *, mixed: bool) -> Any:
    torch.manual_seed(5)
    constraints = {"page": ParameterConstraints(sharding_types=[sharding])}
    return headway.torchrec.shard(Model(pooling, mixed=mixed), DYNAMIC, constraints=constraints, seed=3)


def train(parallel: Any, rank: int, *, reorder: bool = False) -> list[dict[str, torch.Tensor]]:
    """Trains, and returns the outputs.

    TorchRec's own collections do not support a changing order of features (``reorder``).
    """
    outputs = []
    for batch in batches(rank, reorder=reorder):
        loss, found = parallel(batch)
        loss.backward()
        outputs.append(found)
    return outputs


def compare(rank: int, pooling: str | None, sharding: str) -> None:
    together, apart = (shard(pooling, sharding, mixed=mixed) for mixed in (True, False))
    (collection,) = together.module.parts
    assert isinstance(
        collection, headway.torchrec.DynamicEmbeddingCollection | headway.torchrec.DynamicEmbeddingBagCollection
    )
    expected = train(apart, rank)
    torch.testing.assert_close(train(together, rank, reorder=True), expected)
    assert not torch.equal(expected[0]["page"].sum(), expected[2]["page"].sum())
    rows = {name.split(".")[-1]: each["rows"] for name, each in headway.torchrec.statistics(together).items()}
    # Tables of equal configuration are merged: they share one hash table, which has the names of both.
    assert list(rows) == ["item+user"] and rows["item+user"] > 0
    # The state contains both kinds of tables.
    file = io.BytesIO()
    state = together.state_dict()
    torch.save({name: value for name, value in state.items() if name.endswith(".records")}, file)
    file.seek(0)
    names = {name.split(".", 2)[2] for name in state if "parts" in name}
    prefix = "embeddings" if pooling is None else "embedding_bags"
    assert names == {f"{prefix}.page.weight", f"{prefix}.item.records", f"{prefix}.user.records"}
    other = shard(pooling, sharding, mixed=True)
    other.load_state_dict({**state, **torch.load(file)})
    torch.testing.assert_close(other(make_batch(rank, 7, FEATURES))[1], together(make_batch(rank, 7, FEATURES))[1])


@pytest.mark.parametrize(("pooling", "size"), [(None, 2), ("SUM", 1), ("MEAN", 2)])
def test_both_kinds_of_tables_learn_as_they_do_apart(pooling: str | None, size: int) -> None:
    run_ranks(compare, size, pooling, "table_wise")


def test_static_tables_may_be_row_wise_too() -> None:
    run_ranks(compare, 2, None, "row_wise")


def pipeline(rank: int) -> None:
    piped, plain = (shard(None, "table_wise", mixed=True) for _ in range(2))
    expected = train(plain, rank)
    optimizer = torch.optim.SGD([piped.module.scale], lr=0.0)
    runner, source = TrainPipelineSparseDist(piped, optimizer, torch.device("cpu")), batches(rank)
    torch.testing.assert_close([runner.progress(source) for _ in expected], expected)


def test_pipelines_take_mixed_collections() -> None:
    run_ranks(pipeline, 2)
