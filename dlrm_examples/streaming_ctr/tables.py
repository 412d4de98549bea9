# SPDX-License-Identifier: Apache-2.0
"""Interface of embedding tables, which static and dynamic tables implement; their settings, limits and statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

import torch

from dlrm_examples.support.data.log import Jagged


class Tables(Protocol):
    """Embedding tables with their own sparse optimizer.

    The next step uses the gradients of all calls that autograd recorded. A call under ``torch.no_grad()`` changes
    nothing.
    """

    @property
    def ahead(self) -> int:
        """Batches that may begin before the step of the present one."""

    def begin(self, features: Mapping[str, Jagged]) -> Any:
        """Begins to look a batch of the training up; returns what is then passed to a call. Each makes one step."""

    def __call__(self, features: Any) -> dict[str, torch.Tensor]:
        """Looks up and pools the lists: (E, dim) by feature name; zeros for an empty list."""

    def step(self) -> None:
        """Updates the rows looked up since the last step, with their gradients summed over these calls."""

    def finish(self) -> None:
        """Called at the end of a part of the training, before anything is predicted or counted. Collective."""

    def use(self) -> TableUse:
        """Contents of the tables of all ranks. Collective."""


class ImmediateTables:
    """Base of tables that look a batch up when it is needed."""

    ahead = 0

    def begin(self, features: Mapping[str, Jagged]) -> Mapping[str, Jagged]:
        """See ``Tables``."""
        return features

    def finish(self) -> None:
        """See ``Tables``."""


@dataclass(frozen=True, kw_only=True)
class TableSettings:
    """Settings that static and dynamic tables share.

    Attributes:
        dim: columns of an embedding.
        lr: learning rate of row-wise Adagrad.
        eps: added to the square root in Adagrad's denominator.
        initial_range: initial values are uniform in [-initial_range, initial_range].
        seed: seed of the initial values.
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
    """Limits of dynamic tables; by default there are none.

    Attributes:
        max_rows: rows of all tables and ranks together, plus a tenth on several ranks; None: no limit. Each
            table has a fixed share, which others cannot use.
        table_sizes: expected number of ids of each table; ``max_rows`` is divided in proportion, but each table gets
            at least one row. None: equal shares.
        eviction: rows to evict when a table is full: least recently ("lru") or least frequently ("lfu") looked up.
            None: no eviction; new ids then get no row.
        min_count: number of lookups after which an id gets a row.
        hot_count: rows with fewer lookups store their embedding in bfloat16.
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
    """Contents of tables. ``num_bytes`` counts ids, embeddings and optimizer state."""

    rows: int = 0
    cold_rows: int = 0  # rows with fewer than hot_count lookups, whose embedding is stored in bfloat16
    pending: int = 0  # ids without a row yet, because they have had fewer than min_count lookups
    evicted: int = 0  # rows removed since the start to make room
    refused: int = 0  # lookups of ids that got no row because the table was full
    num_bytes: int = 0

    def __add__(self, other: TableUse) -> TableUse:
        """Adds all fields."""
        return TableUse(**{name: value + getattr(other, name) for name, value in asdict(self).items()})
