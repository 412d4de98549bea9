"""What a run depends on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

ModelName = Literal["hstu", "hstu-no-time", "sasrec"]
MODEL_NAMES: tuple[ModelName, ...] = get_args(ModelName)


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Of every encoder.

    Attributes:
        dim: columns of items' vectors and of the layers.
        num_layers: how many.
        num_heads: of each layer.
        max_length: items of the longest sequence.
        dropout: of inputs and inside layers.
        temperature: that cosines are divided by.
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
    """Of every training.

    Attributes:
        epochs: passes over the pairs of an item and the next one.
        batch_size: sequences of a step.
        lr: learning rate of Adam at the beginning; it falls along a cosine to 0.
        num_negatives: items, drawn evenly for each step, that the next one is told from; 0: all.
    """

    epochs: int = 16
    batch_size: int = 8
    lr: float = 0.006
    num_negatives: int = 0

    def __post_init__(self) -> None:
        if min(self.epochs, self.batch_size) < 1 or self.lr <= 0 or self.num_negatives < 0:
            raise ValueError(f"epochs and batch must be at least 1, lr above 0, negatives at least 0: {self}")
