# SPDX-License-Identifier: Apache-2.0
"""Shared-bottom model: concatenated pooled embeddings of all features, and one MLP with a logit per label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch.nn import functional

from dlrm_examples.streaming_ctr.tables import Tables
from dlrm_examples.support.data.log import Batch, Feature, Jagged

HEAD = "labels"
"""Name of the one loss, which all labels share."""


class SharedBottom(torch.nn.Module):
    """An MLP plus a linear layer in parallel, which learns the effect of single ids before the MLP has learned much.

    The tables are an argument of ``forward()``, because they have their own optimizer.
    """

    def __init__(
        self, features: Sequence[Feature], *, num_labels: int, dim: int, hidden: Sequence[int], seed: int
    ) -> None:
        """Initial weights depend only on the sizes and ``seed``; ``hidden`` are the hidden widths of the MLP."""
        super().__init__()
        self._names = [feature.name for feature in features]
        widths = [len(features) * dim, *hidden]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layers: list[torch.nn.Module] = []
            for inputs, outputs in pairwise(widths):
                layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
            self._mlp = torch.nn.Sequential(*layers, torch.nn.Linear(widths[-1], num_labels))
            self._linear = torch.nn.Linear(widths[0], num_labels)

    def forward(self, features: Mapping[str, Jagged], tables: Tables) -> torch.Tensor:
        """Returns the (E, L) logits of E examples."""
        return self.logits(tables(features))

    def logits(self, pooled: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Returns the (E, L) logits for the pooled embeddings of each feature, (E, dim)."""
        inputs = torch.cat([pooled[name] for name in self._names], dim=1)
        logits: torch.Tensor = self._mlp(inputs) + self._linear(inputs)
        return logits


class LabelLoss(torch.nn.Module):
    """The sum of the cross entropies of all labels and examples of a batch, for ``headway.training.TrainStep``."""

    def __init__(self, model: SharedBottom, tables: Tables) -> None:
        super().__init__()
        self._model, self._tables = model, tables

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        logits = self._model(batch.features, self._tables)
        return {HEAD: functional.binary_cross_entropy_with_logits(logits, batch.labels, reduction="sum")}
