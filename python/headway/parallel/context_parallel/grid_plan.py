# SPDX-License-Identifier: Apache-2.0
"""The grid layout: chunks between groups of ranks, heads inside each group.

Idea: C = U G ranks are G groups of U. The groups divide queries as ``chunks_plan.py`` has it, and the ranks of a group
share its tokens equally. Inside a group ``plan.py`` divides heads: after that exchange a rank has the group's tokens
for its own heads. Then ranks with the same heads, one of each group, exchange keys and values as in chunks. So C may
exceed the number of heads, and far less is sent than by chunks alone.

Example: U = 2, G = 2, H = 4, sequences a0-a7 and b0-b3. Group 0 (ranks 0 and 1) has a0 a1 a6 a7 b1 b2, of which rank 0
  owns a0 a1 a6. Ranks 0 and 1 exchange heads: rank 0 then has heads 0 and 1 of all six tokens. Ranks 0 and 2 (heads 0
  and 1) exchange keys and values of chunks, and so do ranks 1 and 3.

Invariants: rank c is rank c mod U of group floor(c / U). Exchanges use one group of all ranks, with empty blocks for
  ranks that take no part, so all ranks make the same calls.
Complexity: a rank sends what it would in heads(U) of its group's tokens, plus 1 / U of what its group would in
  chunks(G).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headway.nn.config import HSTUConfig
from headway.parallel.context_parallel.chunks_plan import ChunksPlan
from headway.parallel.context_parallel.group_batch import Integers
from headway.parallel.context_parallel.plan import HeadsPlan
from headway.parallel.context_parallel.row_move import RowMove


@dataclass(frozen=True, kw_only=True, eq=False)
class GridPlan:
    """Division of a batch among G groups of U ranks.

    Attributes:
        chunks: division among the groups.
        num_head_ranks: U, ranks of a group; at most the number of heads.
    """

    chunks: ChunksPlan
    num_head_ranks: int

    @property
    def num_ranks(self) -> int:
        return self.chunks.num_ranks * self.num_head_ranks

    def place_of(self, rank: int) -> tuple[int, int]:
        """Group of a rank, and its index in the group."""
        return divmod(rank, self.num_head_ranks)

    def heads(self, rank: int) -> HeadsPlan:
        """Division of heads and tokens in the group of a rank."""
        group, _ = self.place_of(rank)
        num_tokens = int(self.chunks.runs[group, :, :, 1].sum())
        return HeadsPlan(num_ranks=self.num_head_ranks, num_tokens=num_tokens, num_heads=self._config.num_heads)

    def head_members(self, rank: int) -> range:
        """Ranks that exchange heads with a rank."""
        group, _ = self.place_of(rank)
        return range(group * self.num_head_ranks, (group + 1) * self.num_head_ranks)

    def tokens_of(self, rank: int) -> Integers:
        """Tokens that a rank owns, ascending."""
        group, index = self.place_of(rank)
        own = self.heads(rank).tokens_of(index)
        return self.chunks.tokens_of(group)[own.start : own.stop]

    def key_move(self, rank: int) -> RowMove:
        """Returns the move of keys and values of a rank's heads, from its group's tokens to rows of all tokens."""
        group, index = self.place_of(rank)
        move = self.chunks.key_move(group)
        members = range(index, self.num_ranks, self.num_head_ranks)
        return replace(move, splits=move.splits.among(members, self.num_ranks))

    def pairs_of(self, rank: int) -> int:
        """Pairs of a query and a key that a rank computes, over its heads."""
        group, index = self.place_of(rank)
        return self.chunks.pairs_of(group) // self._config.num_heads * len(self.heads(rank).heads_of(index))

    def bytes_sent(self, rank: int, element_bytes: int) -> tuple[int, int]:
        """Bytes that a rank sends to others in one layer: forward, and backward without anything recomputed."""
        group, index = self.place_of(rank)
        heads = self.heads(rank)
        of_heads = heads.bytes_sent(index, self._config, element_bytes)
        own_heads = replace(self._config, num_heads=len(heads.heads_of(index)))
        of_chunks = replace(self.chunks, config=own_heads).bytes_sent(group, element_bytes)
        return of_heads[0] + of_chunks[0], of_heads[1] + of_chunks[1]

    @property
    def imbalance(self) -> float:
        """Pairs of the busiest rank over the mean."""
        pairs = [self.pairs_of(rank) for rank in range(self.num_ranks)]
        return max(pairs) * self.num_ranks / max(sum(pairs), 1)

    @property
    def _config(self) -> HSTUConfig:
        return self.chunks.config
