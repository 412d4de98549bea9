"""Embedding tables that get a row for an id when it first comes: ``headway.embedding`` behind ``Tables``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from headway.embedding import LOCAL, Eviction, FeatureConfig, HashTableCollection, RowWiseAdagrad, TableConfig, Uniform

from dlrm_examples.dynamic_ctr.group import gather
from dlrm_examples.dynamic_ctr.log import Feature, Jagged
from dlrm_examples.dynamic_ctr.tables import TableLimits, TableSettings, TableUse


class DynamicTables:
    """One hash table for each table of the features, which the ranks of a group share."""

    def __init__(
        self,
        features: Sequence[Feature],
        settings: TableSettings,
        *,
        limits: TableLimits | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        """Makes empty tables.

        Args:
            features: what calls will name.
            settings: of all tables.
            limits: of all tables together; None is none.
            group: whose ranks look up and learn together, so that all of them call alike; None: this rank alone.
        Raises:
            ValueError: a limit is out of range.
        """
        span = settings.initial_range
        limits = limits or TableLimits()
        tables = list(dict.fromkeys(feature.table for feature in features))
        self._group = group
        self.collection = HashTableCollection(
            tables=[
                TableConfig(
                    table,
                    dim=settings.dim,
                    optimizer=RowWiseAdagrad(lr=settings.lr, eps=settings.eps),
                    initializer=Uniform(-span, span),
                    max_rows=max_rows,
                    eviction=None if limits.eviction is None else Eviction(policy=limits.eviction),
                    min_count=limits.min_count,
                    hot_count=limits.hot_count,
                )
                for table, max_rows in zip(tables, _shares(limits, tables), strict=True)
            ],
            features=[
                FeatureConfig(feature.name, table=feature.table, pooling=feature.pooling) for feature in features
            ],
            process_group=LOCAL if group is None else group,
            gradient_reduction="sum",  # a rank's loss is its part of the batch's mean
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

    def use(self) -> TableUse:
        """See ``Tables``."""
        of_rank = sum(map(_use_of, self.collection.statistics()["tables"].values()), TableUse())
        return sum(gather(of_rank, self._group), TableUse())

    def save(self, folder: Path) -> None:
        """Makes ``folder`` the checkpoint of the tables of all ranks, between two steps.

        Raises:
            headway.embedding.CheckpointError: a rank could not write.
        """
        self.collection.save(folder)

    def load(self, folder: Path) -> None:
        """Replaces all rows by those that any number of ranks saved.

        Raises:
            headway.embedding.CheckpointError: it is missing or damaged, or is of other tables.
        """
        self.collection.load(folder)


def _shares(limits: TableLimits, tables: Sequence[str]) -> list[int | None]:
    """The part of ``max_rows`` that each table gets.

    Raises:
        ValueError: there is less than a row for each.
    """
    if limits.max_rows is None:
        return [None] * len(tables)
    if limits.max_rows < len(tables):
        raise ValueError(f"max_rows must be at least {len(tables)}, a row for each table, not {limits.max_rows}")
    sizes = [1 if limits.table_sizes is None else limits.table_sizes[table] for table in tables]
    ends = [limits.max_rows * sum(sizes[: i + 1]) // sum(sizes) for i in range(len(sizes))]
    return [max(1, end - begin) for begin, end in zip([0, *ends], ends, strict=False)]


def _use_of(statistics: Mapping[str, int]) -> TableUse:
    return TableUse(
        rows=statistics["rows"],
        cold_rows=statistics["cold_rows"],
        pending=statistics["pending"],
        evicted=statistics["evicted"],
        refused=statistics["refused"],
        num_bytes=statistics["key_bytes"] + statistics["row_bytes"],
    )
