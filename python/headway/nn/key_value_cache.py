# SPDX-License-Identifier: Apache-2.0
"""Key-value cache of a layer, over jagged sequences.

Idea: with a causal mask the keys and values of a token do not depend on later tokens, so they are computed once. To add
tokens, the new tokens of each sequence are inserted after its cached ones. Since sequences are stored one after the
other, the position of every token is computed from both offsets, and both tensors are scattered to a new one.

Example: 2 sequences. Cached: a0 a1 | b0, offsets [0, 2, 3]. New: a2 | b1 b2, offsets [0, 1, 3].
  Cached tokens go to the positions [0, 1, 3], new tokens to [2, 4, 5]: a0 a1 a2 | b0 b1 b2, offsets [0, 3, 6].

Invariants: a cache is immutable; ``extended()`` returns a new one, so several requests may start from the same cache.
Offsets of the result are the sums of both offsets. Tokens after the last offset (padding) stay at the end.
Complexity: an extension copies all cached and new tokens: O(TL + TR) rows. Nothing waits for the device.

Shapes: B sequences, TK cached tokens, TL and TR tokens of all sequences on the left (cached) and right (new), H heads,
D columns of keys, V columns of values.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from headway.nn.sequences import sequence_of_tokens


class KeyValueCache(NamedTuple):
    """Cache of one layer: keys (TK, H, D), values (TK, H, V), offsets (B + 1,) int64, and times (TK,) int64 or None."""

    keys: Tensor
    values: Tensor
    offsets: Tensor
    times: Tensor | None

    def extended(self, keys: Tensor, values: Tensor, offsets: Tensor, times: Tensor | None) -> KeyValueCache:
        """Returns a cache with new tokens after the cached ones of each sequence. Copies both."""
        left, right = joined_places(self.offsets, offsets, self.keys.shape[0], keys.shape[0])
        return KeyValueCache(
            _joined(self.keys, keys, left, right),
            _joined(self.values, values, left, right),
            self.offsets + offsets,
            None if self.times is None or times is None else _joined(self.times, times, left, right),
        )


def joined_places(left: Tensor, right: Tensor, num_left: int, num_right: int) -> tuple[Tensor, Tensor]:
    """Computes the positions of tokens when each sequence on the left is followed by that on the right.

    Tokens after the last offset, which belong to no sequence, come after all others, those on the left first.

    Args:
        left, right: offsets, (B + 1,) int64.
        num_left, num_right: number of tokens, TL and TR.

    Returns:
        (TL,) and (TR,) int64, the new positions.
    """
    shift_of_right = torch.cat([left[1:], left.new_full((1,), num_left)])
    return (
        torch.arange(num_left, device=left.device) + right[sequence_of_tokens(left, num_left)],
        torch.arange(num_right, device=left.device) + shift_of_right[sequence_of_tokens(right, num_right)],
    )


def _joined(left: Tensor, right: Tensor, left_places: Tensor, right_places: Tensor) -> Tensor:
    """Scatters the rows of both tensors to their new positions, in the dtype of ``left``."""
    out = left.new_empty((left.shape[0] + right.shape[0], *left.shape[1:]))
    out[left_places] = left
    out[right_places] = right.to(left.dtype)
    return out
