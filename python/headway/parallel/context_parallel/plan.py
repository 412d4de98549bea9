# SPDX-License-Identifier: Apache-2.0
"""The heads layout: each rank computes the attention of some heads over all sequences.

Idea: the sequences of a group, one after the other, are one list of T tokens. U ranks cut it into U equal parts,
wherever sequences end, and each rank owns one part. Everything but attention works token by token, so a rank runs it
on its own tokens. Before the attention of a layer one all-to-all changes the division: each rank sends its tokens'
queries, keys and values of heads s to rank s. It receives those of its own heads from all ranks. Blocks arrive in the
order of ranks, which is the order of tokens, so together they are the jagged batch, without padding or reordering.
The kernel runs on whole sequences with any mask and bias. A second all-to-all brings its outputs back. The backward
pass makes the same two exchanges in reverse.

Example: H = 4 heads, sequences a0-a7 and b0-b3, U = 2, so T = 12. Rank 0 owns a0-a5, rank 1 owns a6, a7 and b0-b3.
  Rank 0 sends heads 2 and 3 of a0-a5 to rank 1, and gets heads 0 and 1 of a6-b3.
  It then has heads 0 and 1 of all 12 tokens: 2 (36 + 10) = 92 pairs of the 184.
  With H = 3, rank 0 has head 0 and rank 1 heads 1 and 2: 46 and 92 pairs, so the busiest rank has 4/3 of the mean.

Invariants: rank r owns tokens floor(r T / U) to floor((r + 1) T / U) and computes heads floor(r H / U) to
  floor((r + 1) H / U). Each token and each head belong to one rank. The splits that a rank sends to another are those
  that the other receives. A sequence and head are computed in one place, so bits are those of one rank.
Complexity: a rank sends (U - 1) / U of its queries, keys, values and outputs, forward and backward. The plan itself is
  O(U) per exchange. Counting pairs is O(T), once a batch.
Source: the exchange of heads is that of DeepSpeed-Ulysses (Jacobs et al. 2023), which cuts each padded sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.nn.config import HSTUConfig
from headway.parallel.context_parallel.group_batch import GroupBatch, total_pairs


def share_of(total: int, rank: int, num_ranks: int) -> range:
    """Returns the part of ``total`` consecutive things that belongs to a rank. Parts differ by one at most."""
    return range(rank * total // num_ranks, (rank + 1) * total // num_ranks)


@dataclass(frozen=True, kw_only=True)
class Splits:
    """Elements that one rank sends to each rank in an all-to-all, and receives from each."""

    sent: tuple[int, ...]
    received: tuple[int, ...]

    def reversed(self) -> Splits:
        """Returns the splits of the exchange that brings everything back."""
        return Splits(sent=self.received, received=self.sent)

    def among(self, members: Sequence[int], num_ranks: int) -> Splits:
        """Returns the splits in a group of ``num_ranks``, in which ``members`` alone exchange anything."""

        def placed(counts: Sequence[int]) -> tuple[int, ...]:
            found = dict(zip(members, counts, strict=True))
            return tuple(found.get(rank, 0) for rank in range(num_ranks))

        return Splits(sent=placed(self.sent), received=placed(self.received))

    def sent_to_others(self, rank: int) -> int:
        """Elements that leave ``rank``."""
        return sum(self.sent) - self.sent[rank]


@dataclass(frozen=True, kw_only=True)
class HeadsPlan:
    """Division of T tokens and H heads among the U ranks of a group.

    Attributes:
        num_ranks: U, at least 1.
        num_tokens: T, of all sequences.
        num_heads: H, at least U: each rank computes at least one head.

    Raises:
        ValueError: there are more ranks than heads; the message has both.
    """

    num_ranks: int
    num_tokens: int
    num_heads: int

    def __post_init__(self) -> None:
        if not 1 <= self.num_ranks <= self.num_heads:
            raise ValueError(
                f"heads({self.num_ranks}): {self.num_ranks} ranks cannot divide {self.num_heads} heads; "
                f"take at most {self.num_heads} ranks"
            )

    def tokens_of(self, rank: int) -> range:
        """Tokens that a rank owns."""
        return share_of(self.num_tokens, rank, self.num_ranks)

    def heads_of(self, rank: int) -> range:
        """Heads that a rank computes."""
        return share_of(self.num_heads, rank, self.num_ranks)

    def to_heads(self, rank: int, num_columns: int) -> Splits:
        """Splits of the exchange from owners of tokens to owners of heads.

        Args:
            rank: the rank that exchanges.
            num_columns: columns per token and head of all tensors together: 2 D + V for queries, keys and values.
        """
        own_tokens, own_heads = len(self.tokens_of(rank)), len(self.heads_of(rank))
        ranks = range(self.num_ranks)
        return Splits(
            sent=tuple(own_tokens * len(self.heads_of(each)) * num_columns for each in ranks),
            received=tuple(len(self.tokens_of(each)) * own_heads * num_columns for each in ranks),
        )

    def to_tokens(self, rank: int, num_columns: int) -> Splits:
        """Splits of the exchange from owners of heads to owners of tokens; see ``to_heads()``."""
        return self.to_heads(rank, num_columns).reversed()

    def bytes_sent(self, rank: int, config: HSTUConfig, element_bytes: int) -> tuple[int, int]:
        """Bytes that a rank sends to others in one layer: forward, and backward without anything recomputed.

        Forward it sends queries, keys and values of its tokens, and outputs of its heads. Backward it sends gradients
        of outputs of its tokens, and gradients of queries, keys and values of its heads.
        """
        inputs, outputs = 2 * config.qk_dim + config.v_dim, config.v_dim

        def sent(splits: Splits) -> int:
            return splits.sent_to_others(rank) * element_bytes

        forward = sent(self.to_heads(rank, inputs)) + sent(self.to_tokens(rank, outputs))
        backward = sent(self.to_heads(rank, outputs)) + sent(self.to_tokens(rank, inputs))
        return forward, backward

    def pairs_of(self, rank: int, batch: GroupBatch, config: HSTUConfig) -> int:
        """Pairs of a query and a key that a rank computes, over its heads."""
        return len(self.heads_of(rank)) * total_pairs(batch, config)

    @property
    def imbalance(self) -> float:
        """Pairs of the busiest rank over the mean: 1 if U divides H."""
        busiest = max(len(self.heads_of(rank)) for rank in range(self.num_ranks))
        return busiest * self.num_ranks / self.num_heads
