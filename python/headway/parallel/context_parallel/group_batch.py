# SPDX-License-Identifier: Apache-2.0
"""The batch that the ranks of a context-parallel group share, described on the host, and the pairs of its attention.

Shapes: B sequences and T tokens of all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from headway.nn.config import HSTUConfig

Integers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupBatch:
    """Sequences of a group in the order of the ranks that brought them.

    A sequence has contextual tokens, then history, then targets; ``lengths`` counts all of them.

    Attributes:
        lengths: (B,) tokens of each sequence.
        num_targets: (B,) targets of each sequence; None: there are none.
        num_contextual: (B,) contextual tokens of each sequence; None: there are none.
        samples_of_ranks: number of sequences that each rank brought.

    Raises:
        ValueError: shapes do not fit, a number is negative, or a sequence has more targets and contextual tokens than
            tokens.
    """

    lengths: Integers
    num_targets: Integers | None = None
    num_contextual: Integers | None = None
    samples_of_ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("lengths", "num_targets", "num_contextual"):
            values = getattr(self, name)
            if values is None:
                continue
            if values.shape != (self.num_sequences,):
                raise ValueError(f"{name} must be ({self.num_sequences},), not {values.shape}")
            if (values < 0).any():
                wrong = int(np.argmax(values < 0))
                raise ValueError(f"{name} of sequence {wrong} is {values[wrong]}, and at least 0 is needed")
        if sum(self.samples_of_ranks) != self.num_sequences:
            raise ValueError(f"ranks brought {self.samples_of_ranks} sequences, and there are {self.num_sequences}")
        special = self.targets + self.contextual
        if (special > self.lengths).any():
            wrong = int(np.argmax(special > self.lengths))
            raise ValueError(
                f"sequence {wrong} has {self.lengths[wrong]} tokens, fewer than its {self.targets[wrong]} targets and "
                f"{self.contextual[wrong]} contextual tokens"
            )

    @property
    def num_sequences(self) -> int:
        return len(self.lengths)

    @property
    def num_tokens(self) -> int:
        return int(self.lengths.sum())

    @property
    def max_length(self) -> int:
        """Tokens of the longest sequence; 0 if there is none."""
        return int(self.lengths.max(initial=0))

    @property
    def targets(self) -> Integers:
        """(B,) targets of each sequence."""
        return np.zeros_like(self.lengths) if self.num_targets is None else self.num_targets

    @property
    def contextual(self) -> Integers:
        """(B,) contextual tokens of each sequence."""
        return np.zeros_like(self.lengths) if self.num_contextual is None else self.num_contextual

    @property
    def offsets(self) -> Integers:
        """(B + 1,) first token of each sequence, and T."""
        return offsets_of(self.lengths)

    @property
    def brought(self) -> list[range]:
        """Tokens that each rank brought."""
        ends = self.offsets[np.cumsum((0, *self.samples_of_ranks))].tolist()
        return [range(begin, end) for begin, end in pairwise(ends)]

    @property
    def sequence_of_tokens(self) -> Integers:
        """(T,) sequence of each token."""
        return np.repeat(np.arange(self.num_sequences), self.lengths)

    @property
    def places(self) -> Integers:
        """(T,) index of each token within its sequence."""
        return np.arange(self.num_tokens) - np.repeat(self.offsets[:-1], self.lengths)


def offsets_of(counts: Integers) -> Integers:
    """Returns the first index of each of several consecutive ranges, and the end of the last: (N + 1,)."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)])


def visible_keys(batch: GroupBatch, config: HSTUConfig) -> Integers:
    """Counts the keys that each token sees: (T,). ``HstuSequenceMask::keys_seen_by`` (hstu_mask.hpp) is the source.

    Complexity: O(T) on the host.
    """

    def of_tokens(values: Integers) -> Integers:
        return np.repeat(values, batch.lengths)

    token, length, contextual = batch.places, of_tokens(batch.lengths), of_tokens(batch.contextual)
    first_target = length - of_tokens(batch.targets)
    shared = np.maximum(contextual - 1, 0)
    last_position = first_target - shared  # Position of all targets.
    position = np.minimum(np.where(token < contextual, 0, token - shared), last_position)
    tail = config.full_attention_tail
    limited_below = last_position - tail if tail > 0 else length + 1
    window = np.where((config.window > 0) & (position < limited_below), config.window, length)

    begin = np.where(position > window, position - window + shared, 0)
    sees_ahead = (token < first_target) & (not config.causal)
    end = position + shared + np.where(sees_ahead, window + 1, 0)
    is_contextual = token < contextual
    begin, end = np.where(is_contextual, 0, begin), np.where(is_contextual, first_target, end)
    end = np.where(sees_ahead & (window >= last_position - position), length, end)
    sees_itself_apart = (token < begin) | (token >= end)
    return end - begin + sees_itself_apart


def total_pairs(batch: GroupBatch, config: HSTUConfig) -> int:
    """Counts the pairs of a query and a key that it sees, of all sequences, for one head."""
    return int(visible_keys(batch, config).sum())
