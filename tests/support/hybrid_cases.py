# SPDX-License-Identifier: Apache-2.0
"""A small model over three tables, its batches, and a training loop, for tests of hybrid training."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from headway import hybrid
from headway.embedding import Adam, FeatureConfig, HashTableCollection, Sgd, TableConfig, Uniform

STEPS = 12


def table_configs() -> list[TableConfig]:
    options = {"initializer": Uniform(-1.0, 1.0), "optimizer": Adam(lr=0.05)}
    return [TableConfig("user", dim=4, **options), TableConfig("item", dim=4, **options),
            TableConfig("city", dim=2, initializer=Uniform(-1.0, 1.0), optimizer=Sgd(lr=0.1))]  # fmt: skip


def feature_configs() -> list[FeatureConfig]:
    return [
        FeatureConfig("user_id", table="user"),
        FeatureConfig("city", table="city", pooling="sum"),
        FeatureConfig("history", table="item", pooling="mean"),
    ]


def batch_of(step: int, rank: int, samples: int = 6) -> hybrid.Batch:
    draw = torch.Generator().manual_seed(100 * step + rank)
    lengths = {"user_id": torch.ones(samples, dtype=torch.int64), "city": torch.ones(samples, dtype=torch.int64),
               "history": torch.randint(0, 4, (samples,), generator=draw)}  # fmt: skip
    features = {
        name: (torch.randint(0, 30, (int(each.sum()),), generator=draw), each) for name, each in lengths.items()
    }
    return hybrid.Batch(features, torch.rand(samples, 3, generator=draw), torch.rand(samples, 1, generator=draw))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.top = torch.nn.Linear(4 + 2 + 4 + 3, 1)

    def forward(self, embeddings: dict[str, torch.Tensor], dense: torch.Tensor) -> torch.Tensor:
        return self.top(torch.cat([*embeddings.values(), dense], dim=1))


def train(tables: Any, source: list[hybrid.Batch], group: dist.ProcessGroup | None = None) -> list[float]:
    """Trains and returns the losses. Gradients of the dense model are added over workers."""
    model = Model()
    dense = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for batch in hybrid.batches(tables, source):
        dense.zero_grad()
        outputs = model(tables(batch.features), batch.dense)
        loss = (outputs - batch.labels).square().sum() / 16  # Four workers would diverge with a larger one.
        loss.backward()
        if group is not None:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=group)
        dense.step()
        tables.optimizer.step()
        losses.append(loss.item())
    return losses


def collection(**options: Any) -> HashTableCollection:
    return HashTableCollection(
        tables=table_configs(), features=feature_configs(), gradient_reduction="sum", seed=7, **options
    )


def connect(config: hybrid.HybridConfig) -> hybrid.HybridTables:
    """The tables of the small model on parameter servers."""
    tables = hybrid.connect(config, tables=table_configs(), features=feature_configs(), seed=7)
    assert isinstance(tables, hybrid.HybridTables)
    return tables


def loader_of(config: hybrid.HybridConfig) -> hybrid.Loader:
    return hybrid.Loader(config, tables=table_configs(), features=feature_configs(), seed=7)


def read_embeddings(tables: Any, features: Any) -> dict[str, torch.Tensor]:
    """Copies of the embeddings of ids, read as in evaluation."""
    tables.eval()
    found = tables(features)
    tables.train()
    return {name: each.detach().clone() for name, each in found.items()}


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    """Whether two such results have equal bits."""
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)
