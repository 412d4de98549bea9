# SPDX-License-Identifier: Apache-2.0
"""Relative attention bias: learned weights by the distance of query and key in tokens and in time.

Time differences fall into buckets of equal width in the logarithm. ``log_time_bounds()`` has the bounds of the buckets.
``next_times()`` has the time of each query: a token predicts its successor, so it asks at the successor's time.

Example: width ln(2), so the buckets are 0 to below 2, 2 to below 4, 4 to below 8 and so on, up to rounding; a query at
time 103 and a key at time 100 have a difference of 3 and use the weight of the second bucket.

Shapes: B sequences, T tokens of all sequences.
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
    """The bias tables of a layer: ``position_weights`` and ``time_weights`` of :func:`headway.ops.hstu_attention`."""

    position_weights: nn.Parameter | None
    time_weights: nn.Parameter | None
    _bound_bits: Tensor | None

    def __init__(self, *, max_length: int, position: bool, num_time_buckets: int, time_bucket_width: float) -> None:
        """Makes the position table if ``position`` is set, and the time table if ``num_time_buckets`` is not 0."""
        super().__init__()
        self.register_parameter("position_weights", _table(2 * max_length - 1) if position else None)
        has_time = num_time_buckets > 0
        self.register_parameter("time_weights", _table(num_time_buckets + 1) if has_time else None)
        self._bounds = _bounds_of(num_time_buckets, time_bucket_width)
        # Stored as int32 bits: module.to(dtype) converts floating-point buffers, but not integers.
        bits = torch.empty(num_time_buckets, dtype=torch.int32) if has_time else None
        self.register_buffer("_bound_bits", bits, persistent=False)
        self.reset_parameters()

    @property
    def time_bounds(self) -> Tensor | None:
        """Bounds of the time buckets, (``num_time_buckets``,) float32; None if there is no time table."""
        return None if self._bound_bits is None else self._bound_bits.view(torch.float32)

    def reset_parameters(self) -> None:
        """Draws new weights of the tables, and writes the bounds."""
        for table in self.parameters():
            nn.init.normal_(table, std=_INITIAL_STD)
        self._write_bounds()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RelativeBias:
        """Writes the bounds again after the base method: to_empty() does not fill them, and no state contains them."""
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
    """Returns the bounds of buckets of equal width in the logarithm of time.

    For every float32 time difference dt, the number of bounds that are at most abs(dt) is
    ``min(floor(ln(max(abs(dt), 1)) / width), num_buckets)``, computed in float64. Whole numbers below 2^24 are exact in
    float32. The research code computes this formula in float32, which puts a few times next to bounds into the
    neighbouring bucket.

    Args:
        num_buckets: number of bounds; there is one bucket more.
        width: width of a bucket in the logarithm.

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
    """Returns the least float32 time in ``bucket`` or a later one."""
    if bucket * width >= math.log(np.finfo(np.float32).max):
        raise ValueError(f"bucket {bucket} of width {width} begins beyond the range of float32")
    time = np.float32(math.exp(bucket * width))
    while math.floor(math.log(time) / width) < bucket:
        time = np.nextafter(time, np.float32(math.inf))
    while math.floor(math.log(before := np.nextafter(time, np.float32(0))) / width) >= bucket:
        time = before
    return float(time)


def next_times(times: Tensor, offsets: Tensor, last: Tensor | None = None) -> Tensor:
    """Returns the time at which each token asks for its successor: the time of the next token of its sequence.

    ``last`` is the time of the request, at which the last token asks. Then a token asks at the same time however many
    tokens follow, so cached tokens have the values of a full computation. Without ``last`` the last token of a sequence
    asks at its own time. In padded batches of the research code, the position after the last token holds the time of
    the requested item, which corresponds to ``last``. Otherwise it holds 0, and the difference is the last token's own
    time stamp.

    It is for models that predict the next item. With ``Sequences(num_targets=)`` targets have to ask at their own
    times: the time of the next target may tell what a user did with this one.

    Args:
        times: (T,) int64, time of each token.
        offsets: (B + 1,) int64.
        last: (B,) int64, time of the request for each sequence; None: see above.

    Returns:
        (T,) int64, for ``Sequences.query_times``.
    """
    num_tokens, num_sequences = times.shape[0], offsets.shape[0] - 1
    after = torch.cat([times[1:], times[-1:]])
    sequence = sequence_of_tokens(offsets, num_tokens)
    ends = offsets[(sequence + 1).clamp(max=num_sequences)]
    is_last = torch.arange(1, num_tokens + 1, device=times.device) == ends
    at_last = times if last is None else torch.cat([last, last.new_zeros(1)])[sequence]
    return torch.where(is_last, at_last, after)
