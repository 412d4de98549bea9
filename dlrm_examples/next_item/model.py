# SPDX-License-Identifier: Apache-2.0
"""Next-item model around an exchangeable encoder: item embeddings in, embedding of the next item out.

Shapes: T tokens, M items, E columns, K candidates.
"""

from __future__ import annotations

from typing import Literal

import torch
from headway.nn import HSTUConfig, HSTUStack, HSTUStackConfig, keep_mask
from torch import Tensor, nn
from torch.nn import functional

from dlrm_examples.next_item.batches import Batch
from dlrm_examples.next_item.sasrec import SASRec
from dlrm_examples.next_item.settings import ModelName, ModelSettings

Attention = Literal["kernel", "reference"]
HEAD = "next item"
"""Name of the loss."""


class NextItemModel(nn.Module):
    """Item and position embeddings, an encoder, and cosine similarity between its output and item embeddings."""

    def __init__(self, name: ModelName, settings: ModelSettings, *, num_items: int, attention: Attention) -> None:
        super().__init__()
        self.items = nn.Embedding(num_items, settings.dim)
        self.positions = nn.Embedding(settings.max_length, settings.dim)
        nn.init.normal_(self.items.weight, std=settings.dim**-0.5)
        nn.init.normal_(self.positions.weight, std=settings.dim**-0.5)
        self.dropout = nn.Dropout(settings.dropout)
        self.encoder = _encoder(name, settings, attention)
        self.temperature, self.num_layers = settings.temperature, settings.num_layers

    def forward(self, batch: Batch, negatives: Tensor | None = None) -> dict[str, Tensor]:
        """Returns the sum of the losses of all tokens, (): the softmax cross entropy of the next item.

        Args:
            batch: training batch.
            negatives: (K,) int64 items that the next one is compared with, for all tokens; None: all items.
        """
        predicted = self.predict(batch)
        if negatives is None:
            logits, wanted = predicted @ self.candidates().T, batch.next_items
        else:
            positive = (predicted * self.candidates(batch.next_items)).sum(1, keepdim=True)
            is_positive = batch.next_items[:, None] == negatives
            others = (predicted @ self.candidates(negatives).T).masked_fill(is_positive, float("-inf"))
            logits, wanted = torch.cat([positive, others], dim=1), torch.zeros_like(batch.next_items)
        return {HEAD: functional.cross_entropy(logits / self.temperature, wanted, reduction="sum")}

    def predict(self, batch: Batch) -> Tensor:
        """Predicts the embedding of the next item of each token: (T, E), L2-normalised."""
        x = self.items(batch.items) + self.positions(batch.positions)
        keys = batch.sequences.dropout_keys
        if keys is None or not self.training:
            x = self.dropout(x)
        else:
            # The index behind those of the layers: masks of the input differ from theirs.
            kept = keep_mask(keys, x.shape[1], layer=self.num_layers, dropout=self.dropout.p)
            x = x * kept / (1 - self.dropout.p)
        options = {} if batch.parallel is None else {"parallel": batch.parallel}
        return functional.normalize(self.encoder(x, batch.sequences, **options), dim=1)

    def candidates(self, items: Tensor | None = None) -> Tensor:
        """Embeddings of ``items`` (K,), or of all items: (K, E), L2-normalised."""
        return functional.normalize(self.items.weight if items is None else self.items(items), dim=1)


def layer_config(name: ModelName, settings: ModelSettings, attention: Attention) -> HSTUConfig:
    """Returns the layers of an HSTU encoder."""
    head_dim = settings.dim // settings.num_heads
    return HSTUConfig.research(
        dim=settings.dim,
        max_length=settings.max_length,
        num_heads=settings.num_heads,
        qk_dim=head_dim,
        v_dim=head_dim,
        num_time_buckets=0 if name == "hstu-no-time" else 128,
        dropout=settings.dropout,
        attention=attention,
    )


def _encoder(name: ModelName, settings: ModelSettings, attention: Attention) -> nn.Module:
    """Creates the encoder. All encoders have the same number of layers, heads and columns."""
    if name == "sasrec":
        return SASRec(
            dim=settings.dim, num_layers=settings.num_layers, num_heads=settings.num_heads, dropout=settings.dropout
        )
    layer = layer_config(name, settings, attention)
    return HSTUStack(HSTUStackConfig(layer=layer, num_layers=settings.num_layers, final_norm="layer"))
