# SPDX-License-Identifier: Apache-2.0
"""``PrioritizedUpdates``: the embeddings of the next step are read while the present one computes, and none is stale.

Idea: the rows of step t + 1 that step t does not update are read at once, and their embeddings travel while t computes.
After the backward pass of t the other rows are updated first, and sent. The rest of the gradients of t travel while
t + 1 computes. The tables do all of this (embedding/src/exchange/prioritized_updates.cpp); this class keeps the steps
in order.

Example: a loop over batches, of which the lookup of the next one has begun::

    pending = tables.begin(first)
    for features in others:
        out = model(tables(pending))
        pending = tables.begin(features)  # Keys travel.
        tables.read_ahead([pending])  # Rows that this step does not update travel.
        loss(out).backward()
        tables.optimizer.step()  # Updates the rows that `pending` needs, and sends them.

Invariants: losses and rows have the bits of a loop without ``read_ahead()``. All ranks make the same calls.
Source: FreeScale (MLSys 2026), prioritized embedding updates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headway._embedding import LookupBatch, TableLookup


class PrioritizedUpdates:
    """The present step of a collection.

    Args:
        lookup: lookups of the collection.
        begin_next_step: assigns lookups from now on to the next step.
    """

    def __init__(self, lookup: TableLookup, *, begin_next_step: Callable[[], None]) -> None:
        self._lookup, self._begin_next_step = lookup, begin_next_step
        self._present: list[LookupBatch] = []  #: Batches that the present step has looked up.
        self._next: list[LookupBatch] = []  #: Batches that were read ahead in the present step.

    def add(self, batch: LookupBatch) -> None:
        """Notes a batch that the present step has looked up."""
        if any(batch is each for each in self._next):  # The step before was skipped.
            self.end_step()
        self._present.append(batch)

    def read_ahead(self, batches: Sequence[LookupBatch]) -> None:
        """See ``HashTableCollection.read_ahead()``."""
        if self._next:
            raise ValueError("read_ahead() was called in this step before")
        self._lookup.drain()
        self._begin_next_step()
        self._next = list(batches)
        self._lookup.read_ahead(self._next, self._present)

    def end_step(self) -> bool:
        """Forgets the batches of the step, after its update. Returns whether the next step has begun."""
        is_begun = bool(self._next)
        self._present, self._next = [], []
        return is_begun
