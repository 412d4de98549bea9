# SPDX-License-Identifier: Apache-2.0
"""A small click model, and its package, for tests of serving."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from headway.embedding import LOCAL, FeatureConfig, HashTableCollection, Sgd, TableConfig
from headway.serving import Bucket, DenseFeature, Request, ServedFeature
from torch import Tensor, nn

DIM = 8
FEATURES = [ServedFeature(name="item", table="item"), ServedFeature(name="shops", table="shop", pooling="mean")]
DENSE = [DenseFeature(name="price", width=2)]
BUCKETS = [Bucket(4), Bucket(16)]


class ClickModel(nn.Module):
    """A perceptron on two pooled features and a dense one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.Sequential(nn.Linear(2 * DIM + 2, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(
        self, embeddings: Mapping[str, Tensor], lengths: Mapping[str, Tensor], dense: Mapping[str, Tensor], items: None
    ) -> dict[str, Tensor]:
        logits = self.layers(torch.cat([embeddings["item"], embeddings["shops"], dense["price"]], dim=1))
        return {"click": logits[:, 0].sigmoid(), "logits": logits}


def make_tables(rate: float = 0.5) -> HashTableCollection:
    """Tables whose rows 0 to 99 were trained."""
    tables = HashTableCollection(
        tables=[TableConfig(name, dim=DIM, optimizer=Sgd(lr=rate)) for name in ("item", "shop")],
        features=[FeatureConfig("item", table="item"), FeatureConfig("shops", table="shop", pooling="mean")],
        process_group=LOCAL,
        seed=7,
    )
    ids, ones = torch.arange(100), torch.ones(100, dtype=torch.int64)
    sum(each.square().sum() for each in tables({"item": (ids, ones), "shops": (ids, ones)}).values()).backward()  # type: ignore[union-attr]
    tables.optimizer.step()
    return tables


def request_of(ids: Tensor) -> Request:
    """Items with one id, 0 to 2 shops and a price each. Ids from 100 on are unknown."""
    shops = ids % 3
    return Request(
        features={
            "item": (ids, torch.ones_like(ids)),
            "shops": (torch.repeat_interleave(ids, shops), shops),
        },
        dense={"price": torch.stack([ids / 100, 1 - ids / 50], dim=1).float()},
    )
