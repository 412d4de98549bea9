# SPDX-License-Identifier: Apache-2.0
"""Gradients of per-id weights, as ``torch.nn.functional.embedding_bag`` has them for ``per_sample_weights``.

K ids of a feature, B bags of it, L lists, U unique keys of its merged table, D columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from headway._embedding import UniqueKeys
from headway.embedding.config import Pooling


@dataclass(frozen=True)
class PerSampleWeights:
    """Weights of a feature that require a gradient, and the position of its ids in the merged table's keys."""

    weights_K: torch.Tensor
    lengths_L: torch.Tensor  #: Length of each list of the feature.
    pooling: Pooling
    feature: int  #: Index of the feature among those of its merged table.
    first_key: int  #: Index of its first id among the keys of the merged table.

    def gradient(self, unique: UniqueKeys, embeddings_UD: torch.Tensor, gradients_BD: torch.Tensor) -> torch.Tensor:
        """Computes the dot product of each id's embedding and the gradient of its bag. Does not wait for the device.

        With ``mean`` the gradient of a bag is divided by its number of ids first.

        Args:
            unique: the unique keys of the merged table.
            embeddings_UD: their embeddings.
            gradients_BD: the gradient of the feature's output.
        Returns:
            (K,) of the dtype of the weights.
        """
        num_keys = len(self.weights_K)
        of_bags_KD = gradients_BD
        if self.pooling is not None:
            if self.pooling == "mean":
                gradients_BD = gradients_BD / self.lengths_L.clamp(min=1).unsqueeze(1)
            bags_K = torch.repeat_interleave(self.lengths_L, output_size=num_keys)
            of_bags_KD = gradients_BD.index_select(0, bags_K)
        embeddings_KD = embeddings_UD.index_select(
            0, unique.inverse_indices[self.first_key : self.first_key + num_keys]
        )
        return embeddings_KD.mul_(of_bags_KD).sum(1).to(self.weights_K.dtype)
