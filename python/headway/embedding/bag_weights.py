# SPDX-License-Identifier: Apache-2.0
"""Weights of the keys of a batch. They multiply the embeddings and the gradients of bags.

K keys of a batch.
"""

from __future__ import annotations

import torch

from headway._embedding import UniqueKeys


def scaled_weights(weights_K: torch.Tensor | None, scale: float, unique: UniqueKeys) -> torch.Tensor | None:
    """Multiplies the weights by ``scale``, which scales the sums of bags without a pass over the sums.

    Args:
        weights_K: (K,) float32; None: all 1.
        scale: factor of the sums.
        unique: the unique keys of the batch; gives K and the device.
    Returns:
        (K,) float32; None: all 1.
    """
    if scale == 1:
        return weights_K
    if weights_K is not None:
        return weights_K * scale
    return torch.full(unique.inverse_indices.shape, scale, dtype=torch.float32, device=unique.inverse_indices.device)
