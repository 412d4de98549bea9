# SPDX-License-Identifier: Apache-2.0
"""Dynamic embedding tables: ``headway.embedding`` behind the interface ``Tables``.

A new id gets a row at its first lookup in training, or at a later one with ``TableLimits.min_count``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from headway.embedding import LOCAL, Eviction, FeatureConfig, HashTableCollection, RowWiseAdagrad, TableConfig, Uniform

from dlrm_examples.streaming_ctr.group import all_gather
from dlrm_examples.streaming_ctr.tables import ImmediateTables, TableLimits, TableSettings, TableUse
from dlrm_examples.support.data.log import Feature, Jagged


class DynamicTables(ImmediateTables):
    """One dynamic table per table of the features, sharded row-wise over the ranks of a group."""

    def __init__(
        self,
        features: Sequence[Feature],
        settings: TableSettings,
        *,
        limits: TableLimits | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        """Creates empty tables.

        Args:
            features: features that calls will look up.
            settings: settings of all tables.
            limits: limits of the tables; ``max_rows`` is for all tables together. None: no limits.
            group: ranks that share the tables; calls are then collective. None: this rank alone.
        Raises:
            ValueError: a limit is out of range, or ``limits.table_sizes`` lacks a table.
        """
        self._group = group
        self.collection = HashTableCollection(
            tables=table_configs(features, settings, limits or TableLimits()),
            features=feature_configs(features),
            process_group=LOCAL if group is None else group,
            gradient_reduction="sum",  # Each rank's loss is its part of the batch mean.
            seed=settings.seed,
        )

    def __call__(self, features: Mapping[str, Jagged]) -> dict[str, torch.Tensor]:
        """See ``Tables``. Under ``torch.no_grad()`` no id gets a row; one without a row has its initial embedding."""
        self.collection.train(torch.is_grad_enabled())
        return dict(self.collection(features))

    def step(self) -> None:
        """See ``Tables``."""
        self.collection.optimizer.step()
        self.collection.optimizer.zero_grad()

    def use(self) -> TableUse:
        """See ``Tables``."""
        of_rank = sum(map(_use_of, self.collection.statistics()["tables"].values()), TableUse())
        return sum(all_gather(of_rank, self._group), TableUse())

    def save(self, folder: Path) -> None:
        """Writes a checkpoint of the tables of all ranks to ``folder``; call it between two steps.

        Raises:
            headway.embedding.CheckpointError: a rank could not write.
        """
        self.collection.save(folder)

    def load(self, folder: Path) -> None:
        """Replaces all rows by those of a checkpoint, which any number of ranks may have saved.

        Raises:
            headway.embedding.CheckpointError: the checkpoint is missing, damaged, or of different tables.
        """
        self.collection.load(folder)


def table_configs(features: Sequence[Feature], settings: TableSettings, limits: TableLimits) -> list[TableConfig]:
    """Returns the configuration of each table of the features.

    Raises:
        ValueError: a limit is out of range, or ``limits.table_sizes`` lacks a table.
    """
    tables = list(dict.fromkeys(feature.table for feature in features))
    span = settings.initial_range
    return [
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
    ]


def feature_configs(features: Sequence[Feature]) -> list[FeatureConfig]:
    """Returns the configuration of each feature."""
    return [FeatureConfig(feature.name, table=feature.table, pooling=feature.pooling) for feature in features]


def _shares(limits: TableLimits, tables: Sequence[str]) -> list[int | None]:
    """Divides ``max_rows`` among the tables: in proportion to ``table_sizes``, but at least one row each.

    Example: 3 rows for tables of 1000, 1 and 1 ids. The proportional shares are 2, 0 and 1; the result is 1, 1 and 1.

    Raises:
        ValueError: ``max_rows`` is less than the number of tables, or ``table_sizes`` lacks a table, has a negative
            size or only zeros.
    """
    if limits.max_rows is None:
        return [None] * len(tables)
    if limits.max_rows < len(tables):
        raise ValueError(f"max_rows must be at least {len(tables)}, a row for each table, not {limits.max_rows}")
    table_sizes = dict.fromkeys(tables, 1) if limits.table_sizes is None else limits.table_sizes
    if missing := [table for table in tables if table not in table_sizes]:
        raise ValueError(f"table_sizes has no size of the tables {', '.join(missing)}")
    sizes = [table_sizes[table] for table in tables]
    if min(sizes) < 0 or sum(sizes) == 0:
        raise ValueError(f"table_sizes must be at least 0, and one above 0, not {sizes}")
    ends = [limits.max_rows * sum(sizes[: i + 1]) // sum(sizes) for i in range(len(sizes))]
    shares = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
    while 0 in shares:
        shares[shares.index(max(shares))] -= 1
        shares[shares.index(0)] = 1
    return [*shares]


def _use_of(statistics: Mapping[str, int]) -> TableUse:
    return TableUse(
        rows=statistics["rows"],
        cold_rows=statistics["cold_rows"],
        pending=statistics["pending"],
        evicted=statistics["evicted"],
        refused=statistics["refused"],
        num_bytes=statistics["key_bytes"] + statistics["row_bytes"],
    )
