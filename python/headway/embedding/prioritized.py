# SPDX-License-Identifier: Apache-2.0
"""``PrioritizedUpdates``: the embeddings of the next step are read while the present one computes, and none is stale.

Idea: the rows of step t + 1 that step t does not update are read at once, and their embeddings travel while t computes.
After the backward pass of t the other rows are updated first, and sent. The rest of the gradients of t travel while
t + 1 computes. The tables do all of this (embedding/src/exchange/prioritized_updates.cpp); this class keeps the steps
in order.

Example: a loop over batches, of which the lookup of the next one has begun::

    pending = tables.begin(first)
    for features in [*others, None]:
        out = model(tables(pending))
        if features is not None:
            pending = tables.begin(features)  # Keys travel.
            tables.read_ahead([pending])  # Rows that this step does not update travel.
        loss(out).backward()
        tables.optimizer.step()  # Updates the rows that `pending` needs, and sends them.
    tables.drain()

Invariants: losses and rows have the bits of a loop without ``read_ahead()``. All ranks make the same calls.
Source: FreeScale (MLSys 2026), prioritized embedding updates.
"""

from __future__ import annotations

from collections.abc import Sequence

from headway._embedding import LookupBatch, TableLookup


class PrioritizedUpdates:
    """Knows which batches belong to the present step of a collection, and which to the next one.

    Args:
        lookup: lookups of the collection.
    """

    def __init__(self, lookup: TableLookup) -> None:
        self._lookup = lookup
        self._begun: list[LookupBatch] = []  #: The last one, whose keys may wait for the sizes of messages.
        self._present: list[LookupBatch] = []  #: Batches that the present step has looked up.
        self._next: list[LookupBatch] = []  #: Batches that were read ahead in the present step.

    def begin(self, batch: LookupBatch) -> None:
        """Sends the keys of batches that began before ``batch``: the sizes of their messages have arrived meanwhile."""
        for earlier in self._begun:
            self._lookup.start_keys(earlier)
        self._begun = [batch]

    def add(self, batch: LookupBatch) -> None:
        """Notes a batch that the present step has looked up."""
        self._begun = [each for each in self._begun if each is not batch]
        if batch in self._next:  # The step before ended without an update.
            self.end_step()
        self._present.append(batch)

    def read_ahead(self, batches: Sequence[LookupBatch], *, step: int, oldest_in_use: int) -> None:
        """See ``HashTableCollection.read_ahead()``; ``step`` and ``oldest_in_use`` are those of the next step."""
        if self._next:
            raise ValueError("read_ahead() was called in this step before")
        following = list(batches)
        self._lookup.read_ahead(following, self._present, step=step, oldest_in_use=oldest_in_use)
        self._next = following
        self._begun = [each for each in self._begun if each not in following]

    def end_step(self) -> bool:
        """Forgets the batches of the step, after its update. Returns whether it has read ahead."""
        has_read_ahead = bool(self._next)
        self._present, self._next = [], []
        return has_read_ahead
