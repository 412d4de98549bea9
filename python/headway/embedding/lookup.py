# SPDX-License-Identifier: Apache-2.0
"""State of one batch between the steps of a ``ShardedLookup``.

============================== =================================================================
step                           fields that it sets
============================== =================================================================
``begin()``                    ``unique`` of each table, ``counts`` (on their way)
``finish()``, first            ``sent_GR``, ``received_GR``; ``counts`` is then None
``finish()``, after the keys   ``received``, ``found``, ``known_W`` of each table
``finish()``, at the end       ``embeddings_UD``, ``refused``
============================== =================================================================

``expand()`` and ``embeddings()`` read them, and so does ``return_gradients()`` in the backward pass.

Example: this rank looks up the ids 7, 3, 7 and owns 3. ``unique`` has 3 (count 1) and 7 (count 2). If the other rank
asks for 3 too, ``received`` has 3 once (count 2), and its row is in ``found``.

Invariants: with several ranks ``unique`` is sorted by owner, so the rows of one owner are contiguous.
``received is unique`` only if one rank has all keys. Rows in ``found`` are valid while ``FoundRows.are_of()`` holds.

R ranks, U unique keys of this rank, W unique keys that it owns, D columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from headway._embedding import Table, UniqueKeys
from headway.embedding.split_counts import SplitCounts


@dataclass(frozen=True)
class FoundRows:
    """Row indices of keys in a table. They become invalid if rows are removed or moved, or the table is replaced."""

    table: Table
    rows_W: torch.Tensor
    generation: int  #: Generation of the table when the rows were found; it changes when rows may become invalid.

    def are_of(self, table: Table) -> bool:
        """Are the rows still valid, and those of ``table``?"""
        return self.table is table and self.generation == table.generation


@dataclass
class TableLookup:
    """State of a lookup in one merged table."""

    unique: UniqueKeys  #: Unique keys of this rank's batch; with several ranks sorted by owner.
    received: UniqueKeys | None = None  #: Unique keys among the received ones.
    found: FoundRows | None = None  #: Rows of ``received``.
    #: (W,) bool: does the key have a row? Set only if keys without a row give zeros; else None.
    known_W: torch.Tensor | None = None


@dataclass
class BatchLookup:
    """State of a lookup of one batch."""

    table_lookups: list[TableLookup]  #: One for each merged table, in the order of the tables.
    inserts: bool  #: Insert keys that have no row, and count lookups.
    evaluates: bool  #: The module was in ``eval()`` mode when the lookup began.
    counts: SplitCounts | None = None  #: Exchange of key counts; None: one rank, or they have arrived.
    sent_GR: torch.Tensor | None = None  #: (G, R) int64 on the CPU, unique keys that this rank sends to each owner.
    received_GR: torch.Tensor | None = None  #: (G, R), keys that this rank, as an owner, receives from each rank.
    #: (U, D) for each merged table; empty if embeddings are read from rows directly (one rank).
    embeddings_UD: list[torch.Tensor] = field(default_factory=list)
    #: (R, G) number of keys that got no row because their table was full; None if ``counts_refused`` is off.
    refused: torch.Tensor | None = None
