"""Where one rank has all rows: vectors go from rows into bags, and gradients of bags into rows, without an exchange.

B bags, D columns.
"""

from __future__ import annotations

from typing import Any

import torch

from headway.torchrec.batch import Batch


class HandOutRows(torch.autograd.Function):
    """Vectors of a batch whose keys are looked up: (B, D) for each output of its parts."""

    @staticmethod
    def forward(ctx: Any, token: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, ...]:
        """``token`` makes autograd call us; it has no values."""
        ctx.batch = batch
        outputs = tuple(
            vectors_BD
            for part in batch.parts
            for vectors_BD in part.split(part.found().hand_out(offsets=part.offsets, weights=part.weights_K))
        )
        batch.keep()
        return outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, None]:
        batch: Batch = ctx.batch
        for part, gradients_BD in zip(batch.parts, batch.join(gradients), strict=True):
            part.found().learn(gradients_BD, offsets=part.offsets, weights=part.weights_K)
        batch.keep()
        return None, None
