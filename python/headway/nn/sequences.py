"""Which tokens of a jagged batch belong together, and what is known about them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Sequences:
    """B sequences of T tokens in all, one after the other, on the device of the tokens.

    Attributes:
        offsets: (B + 1,) int64: sequence b has tokens ``offsets[b]`` to ``offsets[b + 1]``. Tokens behind the last
            offset (a batch padded to a fixed size) are of no sequence: attention gives them zeros.
        max_length: tokens of the longest of them, at least; with a cache, cached ones included.
        num_contextual: (B,) int32, first tokens that see each other and the whole history.
        num_targets: (B,) int32, last tokens that see the history and themselves only.
        times: (T,) int64, when each token happened: what it is as a key.
        query_times: (T,) int64, when each token asks; :func:`headway.nn.next_times` has the usual ones.
    """

    offsets: Tensor
    max_length: int
    num_contextual: Tensor | None = None
    num_targets: Tensor | None = None
    times: Tensor | None = None
    query_times: Tensor | None = None

    def tensors(self) -> tuple[Tensor | None, ...]:
        """All of them."""
        return self.offsets, self.num_contextual, self.num_targets, self.times, self.query_times


def sequence_of_tokens(offsets: Tensor, num_tokens: int) -> Tensor:
    """(T,) int64: the sequence of each token, B of those behind the last offset."""
    tokens = torch.arange(num_tokens, device=offsets.device)
    return torch.searchsorted(offsets[1:], tokens, right=True)
