"""Lookup with one rank, which has all rows: no exchange, and no copy of embeddings per unique key.

Idea: with several ranks embeddings are exchanged as (U, D) and then expanded to bags. One rank can skip both: the
kernel pools from the rows directly into the bags (``gather_bags``), and in the backward pass reduces the gradients of
bags directly into the rows (``update_bags``).

Example: a bag with the ids 7 and 3 gives row(7) + row(3). Backward, the gradient of the bag updates both rows.

Invariants: sums are taken in the order of the batch, as with several ranks.
Each backward pass is one update of the table. The host never learns U, so it does not wait for the device here.
Complexity: O(K D) for K ids, and no memory of size U x D.

B bags, D columns.
"""

from __future__ import annotations

from typing import Any

import torch

from headway.torchrec.batch import Batch


class HandOutRows(torch.autograd.Function):
    """Pools embeddings in forward and updates rows in backward. Returns (B, D) for each output of the batch's parts."""

    @staticmethod
    def forward(ctx: Any, token: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, ...]:
        """``token`` is empty; it makes autograd call ``backward()``. Rows of all keys must have been looked up."""
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
