# SPDX-License-Identifier: Apache-2.0
"""Lookup with one rank, which has all rows: no exchange, and no copy of embeddings per unique key.

Idea: with several ranks embeddings are exchanged as (U, D) and then expanded to bags. One rank can skip both: the
kernel pools from the rows directly into the bags (``gather_bags``), and in the backward pass reduces the gradients of
bags directly into the rows (``update_bags``).

Example: a bag with the ids 7 and 3 gives row(7) + row(3). Backward, the gradient of the bag updates both rows.

Invariants: sums are taken in the order of the batch, as with several ranks.
Each backward pass is one update of the table. The host never learns U, so it does not wait for the device here.
Complexity: O(K D) for K ids, and no memory of size U x D.

K ids, U of them unique, B bags, D columns.
"""

from __future__ import annotations

from typing import Any

import torch

from headway.torchrec.batch import Batch


class ExpandRows(torch.autograd.Function):
    """Pools embeddings in forward and updates rows in backward. Returns (B, D) for each output of the batch."""

    @staticmethod
    def forward(ctx: Any, token: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, ...]:
        """``token`` is empty; it makes autograd call ``backward()``. Rows of all keys must have been looked up."""
        ctx.batch = batch
        outputs = tuple(
            embeddings_BD
            for table_batch in batch.table_batches
            for embeddings_BD in table_batch.split(
                table_batch.found().expand(offsets=table_batch.offsets, weights=table_batch.weights_K)
            )
        )
        batch.keep()
        return outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, None]:
        batch: Batch = ctx.batch
        for table_batch, gradients_BD in zip(batch.table_batches, batch.join(gradients), strict=True):
            table_batch.found().apply_gradients(
                gradients_BD, offsets=table_batch.offsets, weights=table_batch.weights_K
            )
        batch.keep()
        return None, None
