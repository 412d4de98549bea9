# SPDX-License-Identifier: Apache-2.0
"""Static embedding tables: all ids are known in advance, one row per id, found by binary search.

Shapes: M rows of a table, K unique ids of a batch in one table, D columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
import torch.nn.functional as F

from dlrm_examples.streaming_ctr.initial_embeddings import uniform_embeddings
from dlrm_examples.streaming_ctr.tables import ImmediateTables, TableSettings, TableUse
from dlrm_examples.support.data.log import Feature, Jagged

InitialEmbeddings = Callable[[str, torch.Tensor], torch.Tensor]
"""Name of a table, (M,) int64 ids -> (M, D) float32."""


class StaticTables(ImmediateTables):
    """In-memory tables with row-wise Adagrad; the reference for all other kinds of tables."""

    def __init__(
        self,
        features: Sequence[Feature],
        table_ids: Mapping[str, torch.Tensor],
        settings: TableSettings,
        *,
        initial_embeddings: InitialEmbeddings | None = None,
    ) -> None:
        """Creates one row per id.

        Args:
            features: features that calls will look up.
            table_ids: (M,) int64 ids of each table, in ascending order.
            settings: settings of all tables.
            initial_embeddings: function that yields initial embeddings; None: the same as in dynamic tables.
        """
        initial = initial_embeddings or partial(
            uniform_embeddings, dim=settings.dim, span=settings.initial_range, seed=settings.seed
        )
        self._tables = {
            table: _Table(table, table_ids[table], initial(table, table_ids[table]), settings)
            for table in dict.fromkeys(feature.table for feature in features)
        }
        self._features_of = {
            table: [feature for feature in features if feature.table == table] for table in self._tables
        }

    def __call__(self, features: Mapping[str, Jagged]) -> dict[str, torch.Tensor]:
        """See ``Tables``.

        Raises:
            ValueError: an id is not in its table.
        """
        pooled: dict[str, torch.Tensor] = {}
        for table, members in self._features_of.items():
            lists = [features[member.name] for member in members]
            embeddings, row = self._tables[table].lookup(torch.cat([values for values, _ in lists]))
            parts = torch.split(row, [len(values) for values, _ in lists])
            for member, part, (_, lengths) in zip(members, parts, lists, strict=True):
                offsets = lengths.cumsum(0) - lengths
                pooled[member.name] = F.embedding_bag(part, embeddings, offsets, mode=member.pooling)
        return pooled

    def step(self) -> None:
        """See ``Tables``."""
        for table in self._tables.values():
            table.step()

    def use(self) -> TableUse:
        """See ``Tables``."""
        return sum((table.use() for table in self._tables.values()), TableUse())


class _Table:
    """Rows of one table, its optimizer state, and the lookups since the last step."""

    def __init__(self, name: str, ids: torch.Tensor, embeddings: torch.Tensor, settings: TableSettings) -> None:
        self._name = name
        self._ids = ids
        self._embeddings = embeddings.clone()
        self._square_sums = torch.zeros(len(ids))
        self._settings = settings
        self._pending: list[tuple[torch.Tensor, torch.Tensor]] = []

    def lookup(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Looks up ``ids`` (N,). Returns (K, D) embeddings of the unique ids, and (N,) inverse indices.

        Raises:
            ValueError: an id has no row.
        """
        unique, inverse = torch.unique(ids, return_inverse=True)
        rows = torch.searchsorted(self._ids, unique)
        known = self._ids[rows.clamp(max=len(self._ids) - 1)] == unique
        if not bool(known.all()):
            raise ValueError(f"table {self._name!r} has no row for id {int(unique[~known][0])}")
        embeddings = self._embeddings[rows]
        if torch.is_grad_enabled():
            embeddings.requires_grad_()
            self._pending.append((rows, embeddings))
        return embeddings, inverse

    def step(self) -> None:
        """Row-wise Adagrad step: each row has one learning rate, from the sum of its gradients' mean squares."""
        gradients = [(rows, embeddings.grad) for rows, embeddings in self._pending if embeddings.grad is not None]
        self._pending.clear()
        if not gradients:
            return
        rows, inverse = torch.unique(torch.cat([rows for rows, _ in gradients]), return_inverse=True)
        gradient = torch.zeros(len(rows), self._embeddings.shape[1])
        gradient.index_add_(0, inverse, torch.cat([gradient for _, gradient in gradients]))
        self._square_sums[rows] += gradient.square().mean(dim=1)
        rate = self._settings.lr / (self._square_sums[rows].sqrt() + self._settings.eps)
        self._embeddings[rows] -= rate[:, None] * gradient

    def use(self) -> TableUse:
        tensors = (self._ids, self._embeddings, self._square_sums)
        return TableUse(rows=len(self._ids), num_bytes=sum(tensor.nbytes for tensor in tensors))
