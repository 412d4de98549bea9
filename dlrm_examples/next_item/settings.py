# SPDX-License-Identifier: Apache-2.0
"""Settings of a run: what is trained, and how.

Models: ``hstu`` is HSTU with a bias by position and by time between interactions, ``hstu-no-time`` the same without
the times, and ``sasrec`` the transformer SASRec, which both are compared with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

ModelName = Literal["hstu", "hstu-no-time", "sasrec"]
MODEL_NAMES: tuple[ModelName, ...] = get_args(ModelName)


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Settings of the model, equal for all encoders.

    Attributes:
        dim: columns of item embeddings and layers.
        num_layers: number of layers.
        num_heads: heads of each layer.
        max_length: items of the longest sequence.
        dropout: dropout probability of inputs and inside layers.
        temperature: divisor of the cosine similarities in the loss.
    """

    dim: int = 64
    num_layers: int = 2
    num_heads: int = 2
    max_length: int = 50
    dropout: float = 0.2
    temperature: float = 0.05

    def __post_init__(self) -> None:
        if min(self.dim, self.num_layers, self.num_heads, self.max_length) < 1 or self.dim % self.num_heads:
            raise ValueError(f"dim, layers, heads and length must be at least 1, and dim a multiple of heads: {self}")
        if not 0 <= self.dropout < 1 or self.temperature <= 0:
            raise ValueError(f"dropout must be from 0 to below 1 and temperature above 0: {self}")


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Settings of the training, equal for all models.

    Attributes:
        epochs: passes over all training pairs (item, next item).
        batch_size: sequences of a step.
        lr: initial learning rate of Adam; cosine schedule to 0.
        num_negatives: number of negatives, drawn uniformly for each step; 0: all items.
    """

    epochs: int = 16
    batch_size: int = 8
    lr: float = 0.006
    num_negatives: int = 0

    def __post_init__(self) -> None:
        if min(self.epochs, self.batch_size) < 1 or self.lr <= 0 or self.num_negatives < 0:
            raise ValueError(f"epochs and batch must be at least 1, lr above 0, negatives at least 0: {self}")
