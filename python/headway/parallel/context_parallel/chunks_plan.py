# SPDX-License-Identifier: Apache-2.0
"""The chunks layout: each rank computes some queries of every long sequence, for all heads.

Idea: the history of a sequence is cut into 2G chunks for G ranks. A rank owns one early and one late chunk, which
balances a causal mask: an early query sees few keys, a late one many. Before the attention, keys and values of a chunk
go to the ranks that have a query which sees some of it, and to no other. A rank attends with its own queries, which are
up to three runs of consecutive tokens in a sequence: early chunk, late chunk, targets. In the backward pass partial
gradients of keys and values go back, and the owner adds them in the order of ranks.

Which ranks own what:
  - History of n tokens (contextual ones first) is cut at floor(c n / 2G) for c = 0 to 2G. Rank (i + u) mod G owns
    chunks i and 2G - 1 - i. The turn u counts the sequences that are cut. Without it rank 0 would always receive all
    keys, and the last rank would always send to all.
  - Targets follow the last chunk. If their pairs are more than a small part of a rank's, they are spread evenly: each
    costs the same, and no other token needs their keys.
  - Only the longest sequences are cut, as few as even work allows. Others stay whole, longest first, on the rank with
    the least work.

Example: G = 2, causal, sequences a0-a7 and b0-b3, both cut.
  Chunks a0 a1 | a2 a3 | a4 a5 | a6 a7 and b0 | b1 | b2 | b3. Each rank gets 6 tokens and 23 pairs.
  Rank 0 owns chunks 0 and 3 of a, and 1 and 2 of b: runs a0-a1, a6-a7 and b1-b2. It receives keys of a2-a5 and b0.
  Rank 1 owns chunks 1 and 2 of a, and 0 and 3 of b: runs a2-a5, b0 and b3. It receives keys of a0-a1 and b1-b2.

Invariants: each token has one owner. A rank's tokens ascend. Whether keys travel is what the kernel's mask says about
  the same ranges (``headway.ops.hstu_visibility``). Work is counted as pairs plus a token's share of the projections.
Complexity: O(T + B (log B + G)) per attempt to cut fewer sequences, of which there are O(log B). The pieces of an
  exchange of one rank are O(B G).
Source: the pairing of chunks i and 2G - 1 - i is that of TransformerEngine, as the paper on context parallelism for
  HSTU has it.

Shapes: B sequences and T tokens of all ranks, G ranks, t tokens of one rank, 3 runs.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch

from headway.nn.config import HSTUConfig
from headway.ops import hstu_visibility
from headway.parallel.context_parallel.group_batch import GroupBatch, Integers, offsets_of, visible_keys
from headway.parallel.context_parallel.plan import Splits
from headway.parallel.context_parallel.row_move import RowMove

Cut = Literal["needed", "all"]

_NUM_RUNS = 3
#: Excess of the busiest rank over the mean, in pairs and in tokens, up to which fewer sequences are cut.
_TOLERANCE = 0.01
#: Targets are spread over ranks if their pairs are more than this part of one rank's share of the sequence.
_MOST_FOLLOWING = 0.02


@dataclass(frozen=True, kw_only=True, eq=False)
class ChunksPlan:
    """Division of a batch's queries among ranks. ``divide_chunks()`` makes it.

    Attributes:
        batch: sequences of all ranks.
        config: config of the layers.
        runs: (G, B, 3, 2) int64: first token within its sequence, and number of tokens, of each run.
        is_cut: (B,) bool.
    """

    batch: GroupBatch
    config: HSTUConfig
    runs: Integers
    is_cut: np.typing.NDArray[np.bool_]

    @property
    def num_ranks(self) -> int:
        return len(self.runs)

    def tokens_of(self, rank: int) -> Integers:
        """Tokens that a rank owns, (t,), ascending."""
        firsts = self.batch.offsets[:-1, None] + self.runs[rank, :, :, 0]
        return _expanded(firsts.ravel(), self.runs[rank, :, :, 1].ravel())

    def query_offsets(self, rank: int) -> Integers:
        """(B + 1,) first row of each sequence among a rank's own tokens."""
        return offsets_of(self.runs[rank, :, :, 1].sum(1))

    def pairs_of(self, rank: int) -> int:
        """Pairs of a query and a key that a rank computes, over all heads."""
        return int(self._pairs[rank]) * self.config.num_heads

    def bytes_sent(self, rank: int, element_bytes: int) -> tuple[int, int]:
        """Bytes that a rank sends to others in one layer: forward, and backward without anything recomputed.

        Forward it sends keys and values. Backward it sends partial gradients of those that it received, in float32
        (float64 for float64).
        """
        columns = self.config.num_heads * (self.config.qk_dim + self.config.v_dim)
        splits = self.key_move(rank).splits
        forward, backward = splits.sent_to_others(rank), splits.reversed().sent_to_others(rank)
        return forward * columns * element_bytes, backward * columns * max(element_bytes, 4)

    @property
    def imbalance(self) -> float:
        """Pairs of the busiest rank over the mean."""
        return float(self._pairs.max() / max(self._pairs.mean(), 1))

    def key_move(self, rank: int) -> RowMove:
        """Returns the move of keys and values: from own tokens to rows of all T tokens, as far as they are seen."""
        ranks = range(self.num_ranks)
        rows = self.runs[rank, :, :, 1].ravel()
        first_rows = offsets_of(rows)[:-1]
        sent = [self._seen_pieces(rank, each) for each in ranks]
        received = [self._seen_pieces(each, rank) for each in ranks]
        firsts = [(self.batch.offsets[:-1, None] + self.runs[each, :, :, 0]).ravel() for each in ranks]
        counts = [self.runs[each, :, :, 1].ravel() for each in ranks]
        placed = [_expanded(firsts[each][seen], counts[each][seen]) for each, seen in enumerate(received)]
        index = [_expanded(first_rows[seen], rows[seen]) for seen in sent]
        return RowMove(
            num_rows=int(rows.sum()),
            num_moved=self.batch.num_tokens,
            splits=Splits(sent=tuple(map(len, index)), received=tuple(map(len, placed))),
            sent=torch.from_numpy(np.concatenate(index)),
            placed=torch.from_numpy(np.concatenate(placed)),
        )

    def _seen_pieces(self, source: int, destination: int) -> np.typing.NDArray[np.bool_]:
        """Tells for each run of ``source``, (3 B,), whether ``destination`` has a query that sees some of it."""
        keys, queries = self.runs[source], self.runs[destination]
        sequences = np.flatnonzero(self.is_cut if source != destination else self.batch.lengths > 0)
        shape = (len(sequences), _NUM_RUNS, _NUM_RUNS)  # Sequences, runs of keys, runs of queries.
        ranges = np.empty((*shape, 5), dtype=np.int64)
        ranges[..., 0] = sequences[:, None, None]
        ranges[..., 1] = queries[sequences, None, :, 0]
        ranges[..., 2] = queries[sequences, None, :, 0] + queries[sequences, None, :, 1]
        ranges[..., 3] = keys[sequences, :, None, 0]
        ranges[..., 4] = keys[sequences, :, None, 0] + keys[sequences, :, None, 1]
        seen = np.zeros((self.batch.num_sequences, _NUM_RUNS), dtype=np.bool_)
        seen[sequences] = self._visibility(ranges.reshape(-1, 5)).reshape(shape).any(2)
        return seen.ravel()

    def _visibility(self, ranges: Integers) -> np.typing.NDArray[np.uint8]:
        batch, config = self.batch, self.config
        found: np.typing.NDArray[np.uint8] = hstu_visibility(
            torch.from_numpy(batch.lengths),
            torch.from_numpy(batch.contextual),
            torch.from_numpy(batch.targets),
            torch.from_numpy(ranges),
            causal=config.causal,
            window=config.window,
            full_attention_tail=config.full_attention_tail,
        ).numpy()
        return found

    @cached_property
    def _pairs(self) -> Integers:
        return _Work(self.batch, self.config).pairs_of(self.runs)


def divide_chunks(batch: GroupBatch, config: HSTUConfig, num_ranks: int, *, cut: Cut = "needed") -> ChunksPlan:
    """Divides the queries of a batch among ranks.

    Args:
        batch: sequences of all ranks.
        config: config of the layers.
        num_ranks: G, at least 1.
        cut: "needed" cuts as few sequences as even work allows, "all" cuts all.

    Raises:
        ValueError: there is no rank.
    """
    if num_ranks < 1:
        raise ValueError(f"chunks({num_ranks}): at least one rank is needed")
    work = _Work(batch, config)
    num_cut = batch.num_sequences if cut == "all" else 0
    best = least_excess = None
    while True:
        runs = _runs_of(work, num_cut, num_ranks)
        excess = work.excess(runs)
        if least_excess is None or excess < least_excess:
            best, least_excess = (runs, num_cut), excess
        if excess <= _TOLERANCE or num_cut == batch.num_sequences:
            break
        num_cut = min(max(2 * num_cut, 1), batch.num_sequences)
    assert best is not None
    is_cut = np.zeros(batch.num_sequences, dtype=np.bool_)
    is_cut[work.by_cost[: best[1]]] = True
    return ChunksPlan(batch=batch, config=config, runs=best[0], is_cut=is_cut)


class _Work:
    """Work of the sequences of a batch.

    Attributes:
        pairs: (B,) pairs of each sequence, for one head.
        costs: (B,) pairs and projections of each sequence, in pairs of one head.
        by_cost: (B,) sequences by descending cost.
    """

    def __init__(self, batch: GroupBatch, config: HSTUConfig) -> None:
        self.batch = batch
        self._before = offsets_of(visible_keys(batch, config))
        projections = config.dim * (sum(config.projection_widths) + config.output_width)
        self._token_cost = projections / (config.num_heads * (config.qk_dim + config.v_dim))
        self.pairs: Integers = np.diff(self._before[batch.offsets])
        self.costs = self.pairs + batch.lengths * self._token_cost
        self.by_cost = np.argsort(-self.costs, kind="stable")

    def pairs_of(self, runs: Integers) -> Integers:
        """Pairs of each rank for one head, (G,)."""
        begins = self.batch.offsets[:-1, None] + runs[..., 0]
        found: Integers = (self._before[begins + runs[..., 1]] - self._before[begins]).sum((1, 2))
        return found

    def costs_of(self, runs: Integers) -> list[float]:
        """Cost of each rank."""
        found: list[float] = (self.pairs_of(runs) + runs[..., 1].sum((1, 2)) * self._token_cost).tolist()
        return found

    def excess(self, runs: Integers) -> float:
        """Excess of the busiest rank over the mean, in pairs or in tokens, whichever is more."""
        of_ranks = (self.pairs_of(runs), runs[..., 1].sum((1, 2)))
        return max(float(each.max() / max(each.mean(), 1)) for each in of_ranks) - 1


def _runs_of(work: _Work, num_cut: int, num_ranks: int) -> Integers:
    """Returns the runs of all ranks, (G, B, 3, 2), if the ``num_cut`` sequences of the highest cost are cut."""
    batch = work.batch
    runs = np.zeros((num_ranks, batch.num_sequences, _NUM_RUNS, 2), dtype=np.int64)
    cut = np.sort(work.by_cost[:num_cut])
    runs[:, cut] = _chunks_of(batch, work.pairs, cut, num_ranks)
    least = [(cost, rank) for rank, cost in enumerate(work.costs_of(runs))]
    heapq.heapify(least)
    for b in work.by_cost[num_cut:].tolist():
        done, rank = least[0]
        runs[rank, b, 0] = (0, batch.lengths[b])
        heapq.heapreplace(least, (done + float(work.costs[b]), rank))
    return runs


def _chunks_of(batch: GroupBatch, pairs: Integers, cut: Integers, num_ranks: int) -> Integers:
    """Returns the runs (G, C, 3, 2) of the C sequences ``cut``."""
    lengths, targets = batch.lengths[cut], batch.targets[cut]
    history = lengths - targets
    borders = history[:, None] * np.arange(2 * num_ranks + 1) // (2 * num_ranks)
    turn = np.arange(len(cut))
    sees_target = history + 1  # Keys that a target sees at most.
    are_spread = targets * sees_target > _MOST_FOLLOWING * pairs[cut] / num_ranks
    runs = np.zeros((num_ranks, len(cut), _NUM_RUNS, 2), dtype=np.int64)
    which = np.arange(len(cut))
    for rank in range(num_ranks):
        i = (rank - turn) % num_ranks
        late = 2 * num_ranks - 1 - i
        low, high = (borders[which, i], borders[which, i + 1]), (borders[which, late], borders[which, late + 1])
        # The two chunks in the middle are one run.
        is_middle = i == num_ranks - 1
        low, high = (low[0], np.where(is_middle, high[1], low[1])), (np.where(is_middle, high[1], high[0]), high[1])
        spread = (targets * i // num_ranks, targets * (i + 1) // num_ranks)
        of_rank = (np.where(are_spread, spread[0], 0), np.where(are_spread, spread[1], np.where(i == 0, targets, 0)))
        for run, (begin, end) in enumerate((low, high, (history + of_rank[0], history + of_rank[1]))):
            runs[rank, :, run] = np.stack([begin, end - begin], axis=1)
    return runs


def _expanded(firsts: Integers, rows: Integers) -> Integers:
    """Returns the numbers of ranges that begin at ``firsts``, one range after the other."""
    return np.repeat(firsts - offsets_of(rows)[:-1], rows) + np.arange(rows.sum())
