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


@dataclass
class Lookup:
    """A batch on its way; its parts are in the order of the tables."""

    parts: list[Part]
    inserts: bool
    counts: SplitCounts | None = None  #: None: there is one rank, or they are with the parts
    vectors_UD: list[torch.Tensor] = field(default_factory=list)
    refused: torch.Tensor | None = None  #: keys that got no row, by rank and table; None: nobody asks
