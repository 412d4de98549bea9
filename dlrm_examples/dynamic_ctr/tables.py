"""What a model asks of its embedding tables, so that static and dynamic ones can take each other's place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal, Protocol

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

    def use(self) -> TableUse:
        """What the tables of all ranks hold; all ranks call it."""


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


@dataclass(frozen=True, kw_only=True)
class TableLimits:
    """What dynamic tables may hold; by default, all that comes.

    Attributes:
        max_rows: of all tables and ranks together, and a tenth more on several ranks; None: no limit. A table keeps to
            its own part, whatever the others need.
        table_sizes: ids of each table that are expected, by which ``max_rows`` is divided; None: into equal parts.
        eviction: which rows go when there are too many, those looked up longest ago or most rarely; None: new ids then
            get no row.
        min_count: look-ups after which an id gets a row.
        hot_count: rows with fewer look-ups have their vector in bfloat16.
    """

    max_rows: int | None = None
    table_sizes: Mapping[str, int] | None = None
    eviction: Literal["lru", "lfu"] | None = None
    min_count: int = 1
    hot_count: int = 0

    def __post_init__(self) -> None:
        if self.eviction is not None and self.max_rows is None:
            raise ValueError(f"eviction {self.eviction} needs max_rows")


@dataclass(frozen=True, kw_only=True)
class TableUse:
    """What tables hold, and what they did not take or keep; bytes are those of ids, vectors and optimizers."""

    rows: int = 0
    cold_rows: int = 0  # those of them in bfloat16
    pending: int = 0  # ids that wait for a row until they come again
    evicted: int = 0
    refused: int = 0  # look-ups of ids that got no row because there was no room
    num_bytes: int = 0

    def __add__(self, other: TableUse) -> TableUse:
        """Of both together."""
        return TableUse(**{name: value + getattr(other, name) for name, value in asdict(self).items()})
