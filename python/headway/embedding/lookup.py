"""A batch on its way through a ``ShardedLookup``.

R ranks, U unique keys of this rank, W unique keys that it owns, D columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from headway._embedding import Table, UniqueKeys
from headway.embedding.split_counts import SplitCounts


@dataclass(frozen=True)
class FoundRows:
    """Rows of keys in a table, which may be given up or move, or get another table in the place of theirs."""

    table: Table
    rows_W: torch.Tensor
    generation: int  #: of the table, when they were found

    def are_of(self, table: Table) -> bool:
        """Whether ``table`` has the keys in these rows still."""
        return self.table is table and self.generation == table.generation


@dataclass
class Part:
    """What a lookup has of one merged table."""

    unique: UniqueKeys  #: of this rank's keys; where there are several ranks, by owner
    sent_R: list[int] = field(default_factory=list)  #: keys for each owner
    received_R: list[int] = field(default_factory=list)  #: keys from each rank
    received: UniqueKeys | None = None  #: of the keys that this rank owns
    found: FoundRows | None = None  #: of ``received``
    known_W: torch.Tensor | None = None  #: which of them have a row, where others are to give zeros


@dataclass
class Lookup:
    """A batch on its way; its parts are in the order of the tables."""

    parts: list[Part]
    inserts: bool
    evaluates: bool  #: with ``eval()``
    counts: SplitCounts | None = None  #: None: there is one rank, or they are with the parts
    vectors_UD: list[torch.Tensor] = field(default_factory=list)
    refused: torch.Tensor | None = None  #: keys that got no row, by rank and table; None: nobody asks
