# SPDX-License-Identifier: Apache-2.0
"""The model and the batches of the benchmark ``hybrid``, for all systems. Imports neither Headway nor its peers.

Shapes: B samples of a batch, D floats of an embedding.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dlrm_examples.support.data.zipf import draw_zipf

DISTINCT_BATCHES = 16
LR = 0.01  #: Learning rate of the dense model and of embeddings.
#: Prime, so multiplying by it modulo the number of ids is one-to-one unless that number is a multiple of it.
_SCATTER = 2_654_435_761


@dataclass(frozen=True, kw_only=True)
class IdBatch:
    """Ids of each feature, (B,) int64, one for each sample, and labels, (B, 1) float32."""

    ids: dict[str, torch.Tensor]
    labels: torch.Tensor


def feature_names(settings: Mapping[str, Any]) -> list[str]:
    """Returns the names of the features. Each has a table of the same name."""
    return [f"feature_{number}" for number in range(settings["features"])]


def make_model(settings: Mapping[str, Any]) -> torch.nn.Sequential:
    """Makes the dense model, with the same weights in each process. ``hidden`` has the widths of its hidden layers."""
    torch.manual_seed(0)
    widths = [settings["features"] * settings["dim"], *settings["hidden"]]
    layers: list[torch.nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(widths[-1], 1))


def loss_of(
    model: torch.nn.Module, embeddings: Sequence[torch.Tensor], labels: torch.Tensor, *, compute_ms: float
) -> torch.Tensor:
    """Returns the mean loss of a batch, after a sleep that stands for the compute of a device.

    ``embeddings`` has a (B, D) tensor for each feature.
    """
    logits = model(torch.cat(list(embeddings), dim=1))
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
    if compute_ms:
        time.sleep(compute_ms / 1000)
    return loss


def draw_batches(settings: Mapping[str, Any], rank: int) -> list[IdBatch]:
    """Draws ``DISTINCT_BATCHES`` batches of a rank.

    The popularity of ids follows Zipf's law of exponent 1.2. Popular ids lie anywhere in the range of ids, so that
    systems that shard tables by ranges of rows have even shards.
    """
    random = np.random.default_rng(1 + rank)
    size, num_ids = settings["batch"], settings["ids"]

    def draw() -> torch.Tensor:
        drawn = draw_zipf(random, num_values=num_ids, exponent=1.2, size=size)
        return torch.from_numpy((drawn.astype(np.uint64) * np.uint64(_SCATTER) % np.uint64(num_ids)).astype(np.int64))

    return [
        IdBatch(
            ids={name: draw() for name in feature_names(settings)},
            labels=torch.from_numpy(random.integers(0, 2, (size, 1)).astype(np.float32)),
        )
        for _ in range(DISTINCT_BATCHES)
    ]


def repeat(batches: Sequence[Any], count: int) -> Iterator[Any]:
    """Yields ``count`` batches, which take turns."""
    return (batches[number % len(batches)] for number in range(count))


def mean_unique_keys(batches: Sequence[IdBatch]) -> float:
    """Returns the mean number of different keys in a batch."""
    return sum(len(torch.unique(ids)) for batch in batches for ids in batch.ids.values()) / len(batches)
