# SPDX-License-Identifier: Apache-2.0
"""``Described``: what all ranks know of the samples of a step, and how even a plan for them is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch


class Spread(NamedTuple):
    """How far the ranks of a step are apart: the mean over the largest, 0 to 1, of each. 1 is even.

    Attributes:
        weight, tokens, samples: with the plan.
        unbalanced: of weights, as the reader divides the samples.
        moved: part of the samples that another rank computes than has read them.
    """

    weight: float
    tokens: float
    samples: float
    unbalanced: float
    moved: float


@dataclass(frozen=True)
class Described:
    """Samples of all ranks. Those of one rank are in the order of its records. N samples.

    Attributes:
        ids: (N,) int64, number of each sample's row in its folder.
        weights, histories, targets, tokens: (N,) int64; tokens include those of the context.
        sources: (N,) int64, the rank that has read each sample.
    """

    ids: torch.Tensor
    weights: torch.Tensor
    histories: torch.Tensor
    targets: torch.Tensor
    tokens: torch.Tensor
    sources: torch.Tensor

    def select(self, samples: torch.Tensor) -> Described:
        """Returns some samples, by a mask or indices."""
        return self._map(lambda column, _: column[samples], self)

    def join(self, other: Described) -> Described:
        """Returns the samples of both, in this order."""
        return self._map(lambda one, two: torch.cat([one, two]), other)

    def _map(self, function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], other: Described) -> Described:
        names = [each.name for each in fields(self)]
        return Described(**{name: function(getattr(self, name), getattr(other, name)) for name in names})

    def spread(self, ranks: torch.Tensor, num_ranks: int) -> Spread:
        """Returns how even a plan is.

        Args:
            ranks: (N,) int64, the rank of each sample.
            num_ranks: number of ranks.
        """
        return Spread(
            weight=evenness(ranks, self.weights, num_ranks),
            tokens=evenness(ranks, self.tokens, num_ranks),
            samples=evenness(ranks, torch.ones_like(ranks), num_ranks),
            unbalanced=evenness(self.sources, self.weights, num_ranks),
            moved=float((ranks != self.sources).double().mean()) if len(ranks) else 0.0,
        )


def sums_of_ranks(ranks: torch.Tensor, values: torch.Tensor, num_ranks: int) -> list[int]:
    """Adds up values, (N,) int64, by the rank of each."""
    sums: list[int] = torch.zeros(num_ranks, dtype=torch.int64).index_add_(0, ranks, values).tolist()
    return sums


def evenness(ranks: torch.Tensor, values: torch.Tensor, num_ranks: int) -> float:
    """Returns the mean over the largest of the sums of ranks; 1 if all are 0."""
    sums = sums_of_ranks(ranks, values, num_ranks)
    return sum(sums) / num_ranks / max(sums) if max(sums) else 1.0
