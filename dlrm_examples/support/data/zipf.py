# SPDX-License-Identifier: Apache-2.0
"""Draws ids with power-law (Zipf) popularity, as in click logs.

Idea: inverse transform sampling of a continuous power law. The density x ** -s on [1, n + 1) has the inverse CDF

    x(u) = (((n + 1) ** p - 1) * u + 1) ** (1 / p)    with p = 1 - s and u uniform in [0, 1)

and floor(x) - 1 is the rank. It needs no table of n probabilities, even for tens of millions of values.

Example: n = 3, s = 2: x(u) = 1 / (1 - 0.75 u). u = 0 and 0.5 give x = 1 and 1.6, rank 0; u = 0.9 gives 3.08, rank 2.
    The probabilities are 0.667, 0.222, 0.111. Those of the discrete law (r + 1) ** -2 are 0.735, 0.184, 0.082.

Invariants: ranks are in [0, n); a clamp covers rounding at u near 1. s = 1 is excluded, because p must not be 0.
Complexity: O(1) per draw.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def draw_zipf(random: np.random.Generator, *, num_values: int, exponent: float, size: int) -> npt.NDArray[np.int64]:
    """Draws ranks in [0, num_values) with probability roughly proportional to (rank + 1) ** -exponent.

    Args:
        random: advanced by ``size`` draws.
        num_values: n, number of distinct values, at least 1.
        exponent: s, the skew, above 0 and not 1; 1.05 to 1.2 for click logs.
        size: number of draws.
    Returns:
        (size,) int64.
    Raises:
        ValueError: ``num_values`` or ``exponent`` is out of range.
    """
    if num_values < 1 or not exponent > 0 or exponent == 1:
        raise ValueError(f"need num_values >= 1 and an exponent above 0 other than 1, not {num_values} and {exponent}")
    power = 1.0 - exponent
    uniform = random.random(size)
    rank = ((float(num_values + 1) ** power - 1.0) * uniform + 1.0) ** (1.0 / power)
    drawn: npt.NDArray[np.int64] = np.minimum(rank.astype(np.int64) - 1, num_values - 1)
    return drawn


def scatter_32_bits(values: npt.NDArray[np.int64], *, salt: int) -> npt.NDArray[np.uint32]:
    """Maps integers below 2**32 one-to-one onto 32-bit values that look random.

    Adds a multiple of ``salt`` modulo 2**32, then applies rounds of xor-shift and multiplication by an odd constant.
    Each of these operations is invertible.
    """
    mixed = (values.astype(np.uint64) + np.uint64(salt * 0x9E3779B1 & 0xFFFFFFFF)).astype(np.uint32)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        mixed ^= mixed >> np.uint32(shift)
        mixed *= np.uint32(factor)
    return mixed
