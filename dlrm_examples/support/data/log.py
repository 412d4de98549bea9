# SPDX-License-Identifier: Apache-2.0
"""A log of impressions in time order: jagged lists of 64-bit ids, labels and users; yields batches.

Shapes: E examples of a log or a batch, N ids of a feature in these examples, L labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import torch


class Jagged(NamedTuple):
    """Jagged tensor: one list of ids per example."""

    values: torch.Tensor  # (N,) int64, all lists concatenated
    lengths: torch.Tensor  # (E,) int64, length of each list; they sum to N


Pooling = Literal["sum", "mean"]


@dataclass(frozen=True, kw_only=True)
class Feature:
    """One input of the model: the table of its embeddings, and the pooling of the embeddings of a list."""

    name: str
    table: str
    pooling: Pooling = "sum"


class Batch(NamedTuple):
    """Consecutive examples."""

    features: dict[str, Jagged]
    labels: torch.Tensor  # (E, L) float32, 0 or 1


@dataclass(frozen=True, kw_only=True)
class Log:
    """Examples in time order, in memory.

    Attributes:
        features: inputs of the model, in order.
        columns: ids of all examples, by feature name.
        label_names: names of the L labels.
        labels: (E, L) float32, 0 or 1.
        user_ids: (E,) int64; None if the log has no users.
        rate_features: features with one id per example; ``smoothed_rates()`` predicts from them.
        num_train: default number of training examples; all other examples come later in time.
        times_ms: (E,) int64, time of each example in milliseconds; None if the reader does not tell.
        remark: note for the user on what the reader left out or added.
    """

    features: tuple[Feature, ...]
    columns: Mapping[str, Jagged]
    label_names: tuple[str, ...]
    labels: torch.Tensor
    user_ids: torch.Tensor | None
    rate_features: tuple[str, ...]
    num_train: int
    times_ms: torch.Tensor | None = None
    remark: str = ""

    def __post_init__(self) -> None:
        if self.labels.shape != (self.num_examples, len(self.label_names)):
            raise ValueError(f"{len(self.label_names)} labels do not fit values of shape {tuple(self.labels.shape)}")
        if not 0 <= self.num_train <= self.num_examples:
            raise ValueError(f"{self.num_train} examples to train on of {self.num_examples}")
        for feature in self.features:
            values, lengths = self.columns[feature.name]
            if len(lengths) != self.num_examples or int(lengths.sum()) != len(values):
                raise ValueError(
                    f"feature {feature.name!r}: {len(lengths)} lists of {int(lengths.sum())} ids together for "
                    f"{self.num_examples} examples and {len(values)} ids"
                )
        for name in self.rate_features:
            if not bool((self.columns[name].lengths == 1).all()):
                raise ValueError(f"feature {name!r} does not have one id per example, so it has no rates")

    @property
    def num_examples(self) -> int:
        """E, the number of examples."""
        return len(self.labels)

    @cached_property
    def _offsets(self) -> dict[str, torch.Tensor]:
        """(E + 1,) offsets of the lists in ``values``, by feature name."""
        return {
            name: torch.cat([column.lengths.new_zeros(1), column.lengths.cumsum(0)])
            for name, column in self.columns.items()
        }

    def batch(self, begin: int, end: int) -> Batch:
        """Examples ``begin`` to ``end - 1``, as views."""
        features = {}
        for feature in self.features:
            column, offsets = self.columns[feature.name], self._offsets[feature.name]
            values = column.values[int(offsets[begin]) : int(offsets[end])]
            features[feature.name] = Jagged(values, column.lengths[begin:end])
        return Batch(features, self.labels[begin:end])

    def table_ids(self) -> dict[str, torch.Tensor]:
        """Distinct ids of each table in the whole log: (M,) int64, ascending, by table name."""
        parts: dict[str, list[torch.Tensor]] = {}
        for feature in self.features:
            parts.setdefault(feature.table, []).append(self.columns[feature.name].values)
        return {table: torch.unique(torch.cat(values)) for table, values in parts.items()}
