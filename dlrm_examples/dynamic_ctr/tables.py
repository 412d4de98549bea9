"""What a model asks of its embedding tables, so that static and dynamic ones can take each other's place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from dlrm_examples.dynamic_ctr.log import Jagged


class Tables(Protocol):
    """Embedding tables with a sparse optimizer of their own.

    A call that autograd records takes part in the next step; one under ``torch.no_grad()`` changes nothing.
    """

    def __call__(self, features: Mapping[str, Jagged]) -> dict[str, torch.Tensor]:
        """Name -> (E, dim) pooled vectors; zeros where a list is empty."""

    def step(self) -> None:
        """Updates the rows that were looked up since the last step by their gradients, summed over these calls."""


@dataclass(frozen=True, kw_only=True)
class TableSettings:
    """What static and dynamic tables have in common.

    Attributes:
        dim: columns of a vector.
        lr: learning rate of row-wise Adagrad.
        eps: added to the root of its mean square.
        initial_range: initial values lie between this and its negative.
        seed: of the initial values.
    """

    dim: int = 16
    lr: float = 0.05
    eps: float = 1e-10
    initial_range: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        if self.dim < 1 or self.lr <= 0 or self.eps <= 0 or self.initial_range < 0:
            raise ValueError(f"dim, lr and eps must be above 0, initial_range at least 0: {self}")
