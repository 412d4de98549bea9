"""A batch on its way through a ``ShardedLookup``.

R ranks, U unique keys of this rank, W unique keys that it owns, D columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from headway._embedding import Table, UniqueKeys
from headway.embedding.split_counts import SplitCounts


@dataclass
class Part:
    """What a lookup has of one merged table."""

    table: Table
    unique: UniqueKeys  #: of this rank's keys; where there are several ranks, by owner
    sent_R: list[int] = field(default_factory=list)  #: keys for each owner
    received_R: list[int] = field(default_factory=list)  #: keys from each rank
    received: UniqueKeys | None = None  #: of the keys that this rank owns
    rows_W: torch.Tensor | None = None
    generation: int = -1  #: of the table, when the rows were found

    def has_rows_of(self, table: Table) -> bool:
        """Whether the rows are those of the keys in ``table``: none was given up or moved since they were found, and
        ``load()`` has put no other table there."""
        return self.table is table and self.generation == table.generation


@dataclass
class Lookup:
    """A batch on its way; its parts are in the order of the tables."""

    parts: list[Part]
    inserts: bool
    counts: SplitCounts | None = None  #: None: there is one rank, or they are with the parts
    vectors_UD: list[torch.Tensor] = field(default_factory=list)
    refused: torch.Tensor | None = None  #: keys that got no row, by rank and table; None: nobody asks
