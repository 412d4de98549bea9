# SPDX-License-Identifier: Apache-2.0
"""Exports a trained click model for serving (``headway.serving``). Requests have the model's features for each item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from headway.serving import Bucket, Manifest, ServedFeature, export
from torch import Tensor

from dlrm_examples.streaming_ctr.dynamic_tables import DynamicTables
from dlrm_examples.streaming_ctr.model import SharedBottom
from dlrm_examples.support.data.log import Log


class ClickProbabilities(torch.nn.Module):
    """The part of a model behind its tables, as ``headway.serving.export()`` takes it."""

    def __init__(self, model: SharedBottom, label_names: Sequence[str]) -> None:
        super().__init__()
        self._model, self._label_names = model, list(label_names)

    def forward(
        self, embeddings: Mapping[str, Tensor], lengths: object, dense: object, items: object
    ) -> dict[str, Tensor]:
        """Returns the probability of each label, (N,)."""
        probabilities = self._model.logits(embeddings).sigmoid()
        return dict(zip(self._label_names, probabilities.unbind(1), strict=True))


def export_click_model(
    folder: Path, model: SharedBottom, tables: DynamicTables, log: Log, *, buckets: Sequence[Bucket], version: str = "1"
) -> Manifest:
    """Writes a package. See ``headway.serving.export()``.

    Args:
        folder: new or empty.
        model: trained on ``log``.
        tables: those of the model, of one rank.
        log: its features and labels.
        buckets: sizes of batches, in items.
        version: of the model.
    """
    return export(
        folder,
        ClickProbabilities(model, log.label_names),
        tables.collection,
        features=[ServedFeature(name=each.name, table=each.table, pooling=each.pooling) for each in log.features],
        buckets=buckets,
        version=version,
    )
