"""What is added to products of queries and keys: learned weights of distances in tokens and in time.

Shapes: B sequences, T tokens of all of them, N bounds between buckets.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from headway.nn.sequences import sequence_of_tokens

_INITIAL_STD = 0.02


class RelativeBias(nn.Module):
    """The tables that attention gathers from; see ``position_weights`` and ``time_weights`` of its operator."""

    position_weights: nn.Parameter | None
    time_weights: nn.Parameter | None
    _bound_bits: Tensor | None

    def __init__(self, *, max_length: int, position: bool, num_time_buckets: int, time_bucket_width: float) -> None:
        """Either table is left out if it is not asked for (``num_time_buckets`` 0)."""
        super().__init__()
        self.register_parameter("position_weights", _table(2 * max_length - 1) if position else None)
        has_time = num_time_buckets > 0
        self.register_parameter("time_weights", _table(num_time_buckets + 1) if has_time else None)
        self._bounds = _bounds_of(num_time_buckets, time_bucket_width)
        # As bits, which stay as they are when the module changes its type.
        bits = torch.empty(num_time_buckets, dtype=torch.int32) if has_time else None
        self.register_buffer("_bound_bits", bits, persistent=False)
        self.reset_parameters()

    @property
    def time_bounds(self) -> Tensor | None:
        """(``num_time_buckets``,) float32."""
        return None if self._bound_bits is None else self._bound_bits.view(torch.float32)

    def reset_parameters(self) -> None:
        """Draws the tables anew, and writes the bounds."""
        for table in self.parameters():
            nn.init.normal_(table, std=_INITIAL_STD)
        self._write_bounds()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RelativeBias:
        """Writes the bounds again: to_empty() leaves none, and a state has none to load."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._write_bounds()
        return self

    def _write_bounds(self) -> None:
        if self._bound_bits is not None:
            bits = torch.tensor(self._bounds, dtype=torch.float32, device="cpu").view(torch.int32)
            self._bound_bits = bits.to(self._bound_bits.device)


def _table(num_weights: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(num_weights))


def log_time_bounds(num_buckets: int, width: float = 0.301) -> Tensor:
    """Bounds of buckets that are even in the logarithm of time.

    The number of bounds that |dt| reaches is min(floor(ln(max(|dt|, 1)) / width), num_buckets), computed in float64,
    for every float32 |dt|; whole numbers below 2^24 are float32. The research code computes that formula in float32,
    which has a few times next to bounds in the other bucket.

    Args:
        num_buckets: bounds; weights of buckets are one more.
        width: of a bucket in the logarithm.

    Returns:
        (num_buckets,) float32, ascending.

    Raises:
        ValueError: ``width`` is not above 0, or the last bucket begins beyond float32.
    """
    return torch.tensor(_bounds_of(num_buckets, width), dtype=torch.float32)


def _bounds_of(num_buckets: int, width: float) -> list[float]:
    if not width > 0:
        raise ValueError(f"width must be above 0, not {width}")
    return [_first_of_bucket(bucket, width) for bucket in range(1, num_buckets + 1)]


def _first_of_bucket(bucket: int, width: float) -> float:
    """The least float32 whose logarithm is that of the bucket or a later one."""
    if bucket * width >= math.log(np.finfo(np.float32).max):
        raise ValueError(f"bucket {bucket} of width {width} begins beyond the range of float32")
    time = np.float32(math.exp(bucket * width))
    while math.floor(math.log(time) / width) < bucket:
        time = np.nextafter(time, np.float32(math.inf))
    while math.floor(math.log(before := np.nextafter(time, np.float32(0))) / width) >= bucket:
        time = before
    return float(time)


def next_times(times: Tensor, offsets: Tensor, last: Tensor | None = None) -> Tensor:
    """When each token asks for what comes after it: the time of the next token of its sequence.

    With ``last``, the time of the request, a token asks at the same time however many tokens follow, so that cached
    tokens are what a full computation gives. Without it the last token of a sequence asks at its own time. The padded
    batches of the research code have, in the place behind the last token, the time of the item asked for, as with
    ``last``; without that they have 0 there, and bucket the last token's own time stamp.

    Args:
        times: (T,) int64, when tokens happened.
        offsets: (B + 1,) int64.
        last: (B,) int64, when the last token of each sequence asks.

    Returns:
        (T,) int64: ``Sequences.query_times``.
    """
    num_tokens, num_sequences = times.shape[0], offsets.shape[0] - 1
    after = torch.cat([times[1:], times[-1:]])
    sequence = sequence_of_tokens(offsets, num_tokens)
    ends = offsets[(sequence + 1).clamp(max=num_sequences)]
    is_last = torch.arange(1, num_tokens + 1, device=times.device) == ends
    at_last = times if last is None else torch.cat([last, last.new_zeros(1)])[sequence]
    return torch.where(is_last, at_last, after)
