"""Gradients of the weights of ids.

K ids of a feature, B bags of it, U unique keys of its merged table, D columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from headway._embedding import UniqueKeys
from headway.embedding.config import Pooling


@dataclass(frozen=True)
class LearnedWeights:
    """Weights of a feature that want a gradient, and where its ids are."""

    weights_K: torch.Tensor
    lengths_L: torch.Tensor  #: of the feature's lists
    pooling: Pooling
    feature: int  #: its place among the features of its merged table
    first_key: int  #: that of its first id among the ids of all of them

    def gradient(self, unique: UniqueKeys, vectors_UD: torch.Tensor, gradients_BD: torch.Tensor) -> torch.Tensor:
        """The product of each id's vector and the gradient of its bag, which a mean divides by the number of ids.

        Args:
            unique: of all ids of the merged table.
            vectors_UD: theirs.
            gradients_BD: of what the feature gave.
        Returns:
            (K,) as the weights are. It waits for no device.
        """
        num_keys = len(self.weights_K)
        of_bags_KD = gradients_BD
        if self.pooling is not None:
            if self.pooling == "mean":
                gradients_BD = gradients_BD / self.lengths_L.clamp(min=1).unsqueeze(1)
            bags_K = torch.repeat_interleave(self.lengths_L, output_size=num_keys)
            of_bags_KD = gradients_BD.index_select(0, bags_K)
        vectors_KD = vectors_UD.index_select(0, unique.numbers[self.first_key : self.first_key + num_keys])
        return vectors_KD.mul_(of_bags_KD).sum(1).to(self.weights_K.dtype)
