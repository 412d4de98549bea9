# SPDX-License-Identifier: Apache-2.0
"""Lookups ahead of the dense model."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from headway.embedding import HashTableCollection
from headway.embedding.features import columns_of, tensors_of
from headway.embedding.process_groups import any_rank
from headway.hybrid.lookups import BatchRef
from headway.hybrid.tables import HybridTables


@dataclass(frozen=True)
class Batch:
    """A batch of a dense worker. B samples.

    Attributes:
        features: ids, as a collection takes them, or a ``BatchRef``. ``batches()`` replaces them by a lookup that has
            begun.
        dense: (B, ...) inputs of the dense model.
        labels: (B, ...).
    """

    features: Any
    dense: torch.Tensor
    labels: torch.Tensor

    def empty(self) -> Batch:
        """Returns a batch without samples, of the same features and columns."""
        if isinstance(self.features, BatchRef):
            return Batch(None, self.dense[:0], self.labels[:0])
        columns = columns_of(self.features)
        features = {}
        for name in columns:
            ids, lengths, weights = tensors_of(columns, name)
            features[name] = (ids[:0], lengths[:0]) if weights is None else (ids[:0], lengths[:0], weights[:0])
        return Batch(features, self.dense[:0], self.labels[:0])


def batches(tables: HybridTables | HashTableCollection, source: Iterable[Batch]) -> Iterator[Batch]:
    """Yields the batches of ``source`` with their lookups begun, at most ``staleness`` steps ahead.

    A dense worker that runs out of batches gets empty ones until all have run out, since all make the same steps. With
    ``async`` it ends by itself. The caller makes one ``tables.optimizer.step()`` for each batch; a batch without one is
    void. If the loop ends early, the batches that have begun are void, too.

    Raises:
        ValueError: a worker has no batch at all, without ``async``.
        RuntimeError: a server is lost. The message names it.
    """
    ahead: deque[Batch] = deque()
    depth = tables.most_in_flight if isinstance(tables, HybridTables) else 1
    is_async = isinstance(tables, HybridTables) and tables.is_async
    following = iter(source) if is_async else _source_of_all_workers(tables, source)
    try:
        while True:
            while len(ahead) < depth and (batch := next(following, None)) is not None:
                ahead.append(replace(batch, features=tables.begin(batch.features)))
            if not ahead:
                break
            current = ahead.popleft()
            yield current
            if isinstance(tables, HybridTables):
                tables.pass_over(current.features)
        if isinstance(tables, HybridTables):
            tables.finish()
    finally:
        if isinstance(tables, HybridTables):
            tables.forget_ahead()


def _source_of_all_workers(tables: HybridTables | HashTableCollection, source: Iterable[Batch]) -> Iterator[Batch]:
    """Yields the batches of ``source``, then empty ones until all workers have run out."""
    empty: Batch | None = None
    for batch in source:
        any_rank(tables.process_group, True)
        empty = batch.empty()
        yield batch
    while any_rank(tables.process_group, False):
        if empty is None:
            raise ValueError("this dense worker has no batch, and others have: give each at least one")
        yield empty
