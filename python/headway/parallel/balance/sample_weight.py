# SPDX-License-Identifier: Apache-2.0
"""``SampleWeight``: the cost of a sample as an integer, by its number of tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch

#: Weight of a token without attention. The weights of a step, as 10^6 samples of 10,000 tokens at twice the cost of
#: their products, stay far below 63 bits; plan_batches() refuses others.
UNIT = 1 << 16


@dataclass(frozen=True)
class SampleWeight:
    """Weighs a sample of L tokens as L + ``square`` L^2, or as L^``exponent``.

    The rank that holds a sample computes its weight and sends it. Other ranks do not compute it, since powers differ
    between hosts in the last bit, and ranks must plan alike.

    Attributes:
        square: cost of attention over that of the rest, for each token of a sample.
        exponent: if it is given, of the power, as FreeScale has it; None: the square is used.

    Raises:
        ValueError: a number is negative.
    """

    square: float = 0.0
    exponent: float | None = None

    def __post_init__(self) -> None:
        if self.square < 0 or (self.exponent is not None and self.exponent < 0):
            raise ValueError(f"the weights of a sample have numbers from 0, not {self}")

    def of(self, num_tokens: torch.Tensor) -> torch.Tensor:
        """Returns the weights of samples, (N,) int64.

        Args:
            num_tokens: (N,) int64.
        """
        tokens = num_tokens.double()
        cost = tokens + self.square * tokens.square() if self.exponent is None else tokens.pow(self.exponent)
        return (cost * UNIT).round().long()
