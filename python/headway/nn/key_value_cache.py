"""Keys and values that a layer has computed for earlier tokens.

Shapes: B sequences, TL and TR tokens of all of them on the left and on the right.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from headway.nn.sequences import sequence_of_tokens


class KeyValueCache(NamedTuple):
    """Of one layer: keys (TK, H, D), values (TK, H, V), offsets (B + 1,) int64, and times (TK,) int64 if it has any."""

    keys: Tensor
    values: Tensor
    offsets: Tensor
    times: Tensor | None

    def extended(self, keys: Tensor, values: Tensor, offsets: Tensor, times: Tensor | None) -> KeyValueCache:
        """With more tokens of each sequence behind those that are there; copies both."""
        left, right = joined_places(self.offsets, offsets, self.keys.shape[0], keys.shape[0])
        return KeyValueCache(
            _joined(self.keys, keys, left, right),
            _joined(self.values, values, left, right),
            self.offsets + offsets,
            None if self.times is None or times is None else _joined(self.times, times, left, right),
        )


def joined_places(left: Tensor, right: Tensor, num_left: int, num_right: int) -> tuple[Tensor, Tensor]:
    """Where tokens go when each sequence on the left is followed by that on the right; offsets (B + 1,) of both.

    Tokens behind the last offset, which are of no sequence, come behind all others, those on the left first.

    Returns:
        (TL,) and (TR,) int64, for ``num_left`` and ``num_right`` tokens.
    """
    shift_of_right = torch.cat([left[1:], left.new_full((1,), num_left)])
    return (
        torch.arange(num_left, device=left.device) + right[sequence_of_tokens(left, num_left)],
        torch.arange(num_right, device=left.device) + shift_of_right[sequence_of_tokens(right, num_right)],
    )


def _joined(left: Tensor, right: Tensor, left_places: Tensor, right_places: Tensor) -> Tensor:
    out = left.new_empty((left.shape[0] + right.shape[0], *left.shape[1:]))
    out[left_places] = left
    out[right_places] = right.to(left.dtype)
    return out
