# SPDX-License-Identifier: Apache-2.0
"""The order of the rows in an epoch. It depends on the row groups, the seed and the epoch, not on the number of ranks.

Idea: an epoch has a fixed number of virtual streams V. Row groups, or parts of them if there are few, are permuted by
the seed and dealt to the streams. The epoch takes one row from each stream in turn, and skips streams that have ended.
Rank r of R reads the streams s with s mod R = r. So the rows of a step depend on seed, epoch and step alone.

Example: 3 streams of 3, 1 and 2 rows: a0 a1 a2, b0, c0 c1. The epoch is a0 b0 c0 a1 c1 a2. With 2 rows per step, step 1
is [c0, a1]. With 2 ranks, rank 0 reads streams a and c, and rank 1 stream b.

Invariants: each row is at one position of the epoch. Two ranks never have the same row.
Complexity: finding how many rows of each stream a step has costs O(V log N), if the longest stream has N rows. Nothing
is stored per row.
Reason: the data of a step must not depend on the number of ranks, so that training may resume with another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from headway.data.parquet import Integers, RowGroup

#: "shuffled" is the order above. "time" is the order of the files.
Order = Literal["shuffled", "time"]


@dataclass(frozen=True)
class Piece:
    """Rows ``begin`` to before ``end`` of a row group."""

    group: RowGroup
    begin: int
    end: int

    @property
    def num_rows(self) -> int:
        return self.end - self.begin


def make_streams(groups: Sequence[RowGroup], *, num_streams: int, seed: int, epoch: int) -> list[list[Piece]]:
    """Deals the row groups of a folder to virtual streams."""
    pieces = _pieces(groups, num_streams)
    permutation = np.random.default_rng((seed, epoch)).permutation(len(pieces))
    return [[pieces[index] for index in permutation[stream::num_streams]] for stream in range(num_streams)]


def _pieces(groups: Sequence[RowGroup], num_streams: int) -> list[Piece]:
    """Cuts row groups so that every stream gets some rows, if there are enough."""
    cuts = -(-num_streams // max(len(groups), 1))
    pieces = []
    for group in groups:
        bounds = [group.num_rows * each // cuts for each in range(cuts + 1)]
        pieces += [Piece(group, begin, end) for begin, end in pairwise(bounds) if begin < end]
    return pieces


class Turns:
    """The epoch's order by turns: one row from each stream that has not ended, again and again.

    Args:
        lengths: (V,) rows of each stream.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths: Integers = np.asarray(lengths, dtype=np.int64)

    def taken(self, position: int) -> Integers:
        """Returns how many rows of each stream are before a position of the epoch, (V,)."""
        low, high = 0, int(self._lengths.max(initial=0))
        while low < high:  # The last round that begins at or before the position.
            middle = (low + high + 1) // 2
            if int(np.minimum(self._lengths, middle).sum()) <= position:
                low = middle
            else:
                high = middle - 1
        taken: Integers = np.minimum(self._lengths, low)
        in_round = position - int(taken.sum())
        alive = np.flatnonzero(self._lengths > low)
        taken[alive[:in_round]] += 1
        return taken
