"""Ids whose popularity falls with a power of their rank, as in click logs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def draw_zipf(random: np.random.Generator, *, num_values: int, exponent: float, size: int) -> npt.NDArray[np.int64]:
    """Draws ranks in [0, num_values) with probability close to (rank + 1) ** -exponent.

    Inverts the integral of the density, which needs no table even for tens of millions of values.

    Args:
        random: source of randomness.
        num_values: number of different values, at least 1.
        exponent: skew, above 0 and not 1; 1.05 to 1.2 for click logs.
        size: how many to draw.
    Returns:
        (size,) int64.
    """
    if num_values < 1 or exponent <= 0 or exponent == 1:
        raise ValueError(f"need num_values >= 1 and an exponent above 0 other than 1, not {num_values} and {exponent}")
    power = 1.0 - exponent
    uniform = random.random(size)
    rank = ((float(num_values + 1) ** power - 1.0) * uniform + 1.0) ** (1.0 / power)
    drawn: npt.NDArray[np.int64] = np.minimum(rank.astype(np.int64) - 1, num_values - 1)
    return drawn


def scatter_32_bits(values: npt.NDArray[np.int64], *, salt: int) -> npt.NDArray[np.uint32]:
    """Maps integers below 2**32 one-to-one onto 32-bit values that look random (multiply and xor-shift rounds)."""
    mixed = (values.astype(np.uint64) + np.uint64(salt * 0x9E3779B1 & 0xFFFFFFFF)).astype(np.uint32)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        mixed ^= mixed >> np.uint32(shift)
        mixed *= np.uint32(factor)
    return mixed
