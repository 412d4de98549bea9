"""Weights of the keys of a batch, by which vectors and gradients of their bags are multiplied.

K keys of a batch.
"""

from __future__ import annotations

import torch

from headway._embedding import UniqueKeys


def scaled_weights(weights_K: torch.Tensor | None, scale: float, unique: UniqueKeys) -> torch.Tensor | None:
    """Weights with which sums come out ``scale`` times as large, without a pass over the sums.

    Args:
        weights_K: (K,); None: 1; so is what is returned.
        scale: factor of the sums.
        unique: of the keys.
    """
    if scale == 1:
        return weights_K
    if weights_K is not None:
        return weights_K * scale
    return torch.full(unique.numbers.shape, scale, dtype=torch.float32, device=unique.numbers.device)
