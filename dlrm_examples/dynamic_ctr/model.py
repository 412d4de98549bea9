"""Pooled embeddings of all features side by side, and one MLP with a logit for each label (shared bottom)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch

from dlrm_examples.dynamic_ctr.log import Feature, Jagged
from dlrm_examples.dynamic_ctr.tables import Tables


class SharedBottom(torch.nn.Module):
    """An MLP, and a linear layer past it that learns what single ids do before the MLP has learned anything.

    Tables are handed in, because they have an optimizer of their own.
    """

    def __init__(
        self, features: Sequence[Feature], *, num_labels: int, dim: int, hidden: Sequence[int], seed: int
    ) -> None:
        """Weights follow from the sizes and ``seed`` alone; ``hidden`` are the widths between inputs and logits."""
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
        """(E, L) logits of E examples."""
        pooled = tables(features)
        inputs = torch.cat([pooled[name] for name in self._names], dim=1)
        logits: torch.Tensor = self._mlp(inputs) + self._linear(inputs)
        return logits
