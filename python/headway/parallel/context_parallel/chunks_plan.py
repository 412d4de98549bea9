# SPDX-License-Identifier: Apache-2.0
"""The chunks layout: each rank computes some queries of every long sequence, for all heads.

Idea: the history of a sequence is cut into 2G chunks for G ranks. A rank owns one early and one late chunk, which
balances a causal mask: an early query sees few keys, a late one many. Before the attention, keys and values of a chunk
go to the ranks that have a query which sees some of it, and to no other. A rank attends with its own queries, which are
up to three runs of consecutive tokens in a sequence: early chunk, late chunk, targets. In the backward pass partial
gradients of keys and values go back, and the owner adds them in the order of ranks.

Which ranks own what:
  - A sequence is cut among g of the G ranks, no more than even work needs, so short ones stay whole. The costliest
    sequences come first, and each goes to the ranks with the least work.
  - History of n tokens (contextual ones first) is cut at floor(c n / 2g) for c = 0 to 2g. Rank (i + u) mod g of the g
    owns chunks i and 2g - 1 - i. The turn u counts sequences. Without it the first rank would always receive all keys,
    and the last rank would always send to all.
  - Targets follow the last chunk. If their pairs are more than a small part of a rank's, they are spread evenly: each
    costs the same, and no other token needs their keys.

Example: G = 2, causal, sequences a0-a7 and b0-b3, both cut.
  Chunks a0 a1 | a2 a3 | a4 a5 | a6 a7 and b0 | b1 | b2 | b3. Each rank gets 6 tokens and 23 pairs.
  Rank 0 owns chunks 0 and 3 of a, and 1 and 2 of b: runs a0-a1, a6-a7 and b1-b2. It receives keys of a2-a5 and b0.
  Rank 1 owns chunks 1 and 2 of a, and 0 and 3 of b: runs a2-a5, b0 and b3. It receives keys of a0-a1 and b1-b2.

Invariants: each token has one owner. A rank's tokens ascend. Whether keys travel is what the kernel's mask says about
  the same ranges (``headway.ops.hstu_visibility``). Work is counted as pairs plus a token's share of the projections.
Complexity: O(T) once, then O(P log G + B G) per attempt for P parts of sequences. Each attempt allows smaller
  parts than the one before, until work is even. An exchange of one rank has O(P) pieces.
Source: the pairing of chunks i and 2G - 1 - i is that of TransformerEngine, as the paper on context parallelism for
  HSTU has it.

Shapes: B sequences and T tokens of all ranks, G ranks, t tokens of one rank, 3 runs.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
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
#: Excess of the busiest rank over the mean, in pairs and in tokens, up to which sequences are cut no further.
_TOLERANCE = 0.01
#: Factor of the largest part from one attempt to the next.
_NARROWER = 0.8
_MOST_ATTEMPTS = 40  #: After these the largest part is less than 1 / 6,000 of a rank's work.
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
        is_shared = keys[:, :, 1].any(1) & queries[:, :, 1].any(1)
        sequences = np.flatnonzero(is_shared)
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
        cut: "needed" cuts sequences no further than even work needs, "all" cuts each among all ranks.

    Raises:
        ValueError: there is no rank.
    """
    if num_ranks < 1:
        raise ValueError(f"chunks({num_ranks}): at least one rank is needed")
    work = _Work(batch, config)
    if cut == "all":
        everyone = np.full(batch.num_sequences, num_ranks)
        runs = _runs_of(work, everyone, _in_turns(batch.num_sequences, num_ranks), num_ranks)
        return ChunksPlan(batch=batch, config=config, runs=runs, is_cut=everyone > 1)
    best = least_excess = None
    largest_part = work.costs.sum() / num_ranks
    for _ in range(_MOST_ATTEMPTS):
        # Cuts each sequence into parts of at most this cost.
        degrees = np.ceil(work.costs / max(largest_part, 1e-9)).clip(1, num_ranks).astype(np.int64)
        runs = _runs_of(work, degrees, _to_least_work(work, degrees, num_ranks), num_ranks)
        excess = work.excess(runs)
        if least_excess is None or excess < least_excess:
            best, least_excess = (runs, degrees), excess
        if excess <= _TOLERANCE or degrees[batch.lengths > 0].min(initial=num_ranks) == num_ranks:
            break
        largest_part *= _NARROWER
    assert best is not None
    return ChunksPlan(batch=batch, config=config, runs=best[0], is_cut=best[1] > 1)


def _in_turns(num_sequences: int, num_ranks: int) -> list[list[int]]:
    """Returns the ranks of each sequence if each is cut among all: rank (i + b) mod G has part i of sequence b."""
    return [[(i + b) % num_ranks for i in range(num_ranks)] for b in range(num_sequences)]


def _to_least_work(work: _Work, degrees: Integers, num_ranks: int) -> list[list[int]]:
    """Returns the ranks of each sequence: as many as its degree, those with the least work, the costliest first."""
    owners: list[list[int]] = [[] for _ in degrees]
    least = [(0.0, rank) for rank in range(num_ranks)]
    for turn, b in enumerate(work.by_cost.tolist()):
        taken = [heapq.heappop(least) for _ in range(degrees[b])]
        for done, rank in taken:
            heapq.heappush(least, (done + float(work.costs[b]) / len(taken), rank))
        ranks = sorted(rank for _, rank in taken)
        first = turn % len(ranks)
        owners[b] = ranks[first:] + ranks[:first]
    return owners


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

    def excess(self, runs: Integers) -> float:
        """Excess of the busiest rank over the mean, in pairs or in tokens, whichever is more."""
        of_ranks = (self.pairs_of(runs), runs[..., 1].sum((1, 2)))
        return max(float(each.max() / max(each.mean(), 1)) for each in of_ranks) - 1


def _runs_of(work: _Work, degrees: Integers, owners: Sequence[Sequence[int]], num_ranks: int) -> Integers:
    """Returns the runs of all ranks, (G, B, 3, 2).

    Args:
        work: the sequences.
        degrees: (B,) ranks among which each sequence is cut.
        owners: these ranks, of each sequence.
        num_ranks: G.
    """
    runs = np.zeros((num_ranks, len(degrees), _NUM_RUNS, 2), dtype=np.int64)
    for degree in np.unique(degrees).tolist():
        cut = np.flatnonzero(degrees == degree)
        ranks = np.array([owners[b] for b in cut.tolist()])  # (sequences, degree)
        for part, of_part in enumerate(_parts_of(work, cut, degree)):
            runs[ranks[:, part], cut] = of_part
    return runs


def _parts_of(work: _Work, cut: Integers, degree: int) -> Iterator[Integers]:
    """Yields the runs, (C, 3, 2), of part i = 0 to ``degree`` - 1 of the C sequences ``cut``."""
    lengths, targets = work.batch.lengths[cut], work.batch.targets[cut]
    if degree == 1:
        runs = np.zeros((len(cut), _NUM_RUNS, 2), dtype=np.int64)
        runs[:, 0, 1] = lengths
        yield runs
        return
    history = lengths - targets
    borders = history[:, None] * np.arange(2 * degree + 1) // (2 * degree)
    # A target sees the history and itself.
    are_spread = targets * (history + 1) > _MOST_FOLLOWING * work.pairs[cut] / degree
    for i in range(degree):
        low, high = (borders[:, i], borders[:, i + 1]), (borders[:, -2 - i], borders[:, -1 - i])
        if i == degree - 1:  # The two chunks in the middle are one run.
            low, high = (low[0], high[1]), (high[1], high[1])
        first = np.where(are_spread, targets * i // degree, 0)
        end = np.where(are_spread, targets * (i + 1) // degree, targets if i == 0 else 0)
        borders_of_runs = (low, high, (history + first, history + end))
        yield np.stack([np.stack([begin, stop - begin], axis=1) for begin, stop in borders_of_runs], axis=1)


def _expanded(firsts: Integers, rows: Integers) -> Integers:
    """Returns the numbers of ranges that begin at ``firsts``, one range after the other."""
    return np.repeat(firsts - offsets_of(rows)[:-1], rows) + np.arange(rows.sum())
