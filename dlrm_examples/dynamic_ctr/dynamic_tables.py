"""Embedding tables that get a row for an id when it first comes: ``headway.embedding`` behind ``Tables``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from headway.embedding import FeatureConfig, HashTableCollection, RowWiseAdagrad, TableConfig, Uniform

from dlrm_examples.dynamic_ctr.log import Feature, Jagged
from dlrm_examples.dynamic_ctr.tables import TableSettings


class DynamicTables:
    """One hash table for each table of the features."""

    def __init__(self, features: Sequence[Feature], settings: TableSettings) -> None:
        """Makes empty tables; ``features`` are what calls will name."""
        span = settings.initial_range
        self.collection = HashTableCollection(
            tables=[
                TableConfig(
                    table,
                    dim=settings.dim,
                    optimizer=RowWiseAdagrad(lr=settings.lr, eps=settings.eps),
                    initializer=Uniform(-span, span),
                )
                for table in dict.fromkeys(feature.table for feature in features)
            ],
            features=[
                FeatureConfig(feature.name, table=feature.table, pooling=feature.pooling) for feature in features
            ],
            process_group=None,
            seed=settings.seed,
        )

    def __call__(self, features: Mapping[str, Jagged]) -> dict[str, torch.Tensor]:
        """See ``Tables``; without autograd an id that has no row counts as one with its initial vector."""
        self.collection.train(torch.is_grad_enabled())
        return dict(self.collection(features))

    def step(self) -> None:
        """See ``Tables``."""
        self.collection.optimizer.step()
        self.collection.optimizer.zero_grad()
