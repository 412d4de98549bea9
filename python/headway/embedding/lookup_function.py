# SPDX-License-Identifier: Apache-2.0
"""The autograd function of a lookup.

Its inputs are one anchor per merged table and the per-sample weights; its outputs are the embeddings of each feature.
In the backward pass it gives the gradients of bags to the collection, which keeps them until the optimizer's step.
The gradients of anchors are not returned to autograd: the collection sets them.

G merged tables, B bags (of a merged table or of one feature), U unique keys, K ids of a feature, D columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from headway._embedding import JoinedFeatures
from headway.embedding.adjacent_rows import join_rows
from headway.embedding.lookup import BatchLookup
from headway.embedding.per_sample_weights import PerSampleWeights
from headway.embedding.sharded_lookup import ShardedLookup


@dataclass(eq=False)
class PendingBatch:
    """A batch whose lookup has begun. Pass it to ``HashTableCollection`` instead of the features."""

    inputs: list[JoinedFeatures]  #: The concatenated features of each merged table.
    per_sample_weights: list[list[PerSampleWeights]]  #: Weights that require a gradient, for each merged table.
    lookup: BatchLookup


def is_recomputation() -> bool:
    """Is this thread inside a backward pass? Activation checkpointing repeats forward passes there."""
    return torch._C._current_graph_task_id() != -1


#: Takes the gradients of a batch: (B, D) for each merged table, or None if the loss does not depend on the table.
TakeGradients = Callable[[PendingBatch, Sequence[torch.Tensor | None]], None]


def expand(
    sharded: ShardedLookup, batch: PendingBatch, anchors: Sequence[torch.Tensor], take_gradients: TakeGradients
) -> Sequence[torch.Tensor]:
    """Expands a finished lookup to the embeddings of all features.

    Args:
        sharded: the lookup that has the tables.
        batch: a batch after ``ShardedLookup.finish()``.
        anchors: dummy parameters, one per merged table, through which autograd calls the backward pass.
        take_gradients: receives the gradients of the batch in the backward pass.
    Returns:
        the embeddings of each feature, merged table by merged table.
    """
    weights = (
        [each.weights_K for group in batch.per_sample_weights for each in group] if torch.is_grad_enabled() else []
    )
    outputs: Sequence[torch.Tensor] = _Expand.apply(sharded, batch, take_gradients, len(weights), *anchors, *weights)
    return outputs


class _Expand(torch.autograd.Function):
    """Expands embeddings to bags; its backward pass passes the gradients of bags to ``take_gradients``."""

    @staticmethod
    def forward(
        ctx: Any,
        sharded: ShardedLookup,
        batch: PendingBatch,
        take_gradients: TakeGradients,
        num_weights: int,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.batch, ctx.take_gradients, ctx.num_weights = batch, take_gradients, num_weights
        ctx.dims = [table.dim for table in sharded.tables]
        ctx.set_materialize_grads(False)  # Unused outputs give None: their tables are not updated.
        if num_weights > 0:  # Save embeddings: an optimizer step may change the rows before the backward pass.
            ctx.save_for_backward(
                *(
                    sharded.embeddings(batch.lookup, index)
                    for index, each in enumerate(batch.per_sample_weights)
                    if each
                )
            )
        return tuple(
            embeddings
            for index, each in enumerate(batch.inputs)
            for embeddings in sharded.expand(batch.lookup, index, each.offsets, each.weights).split_with_sizes(
                each.num_bags
            )
        )

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        batch, rest = ctx.batch, iter(gradients)
        by_feature_G = [[next(rest) for _ in each.num_bags] for each in batch.inputs]
        ctx.take_gradients(
            batch,
            [
                join_rows(by_feature, each.num_bags, dim=dim)
                for by_feature, each, dim in zip(by_feature_G, batch.inputs, ctx.dims, strict=True)
            ],
        )
        of_weights = _gradients_of_weights(batch, ctx.saved_tensors, by_feature_G) if ctx.num_weights > 0 else []
        return (*(None,) * (4 + len(batch.inputs)), *of_weights)


def _gradients_of_weights(
    batch: PendingBatch,
    embeddings: Sequence[torch.Tensor],
    by_feature_G: Sequence[Sequence[torch.Tensor | None]],
) -> list[torch.Tensor | None]:
    """Returns the gradients of all per-sample weights.

    Args:
        batch: the batch.
        embeddings: (U, D) embeddings of each merged table that has per-sample weights.
        by_feature_G: gradients of the features' embeddings, for each merged table.
    """
    rest, result = iter(embeddings), []
    for weights, table_lookup, by_feature in zip(
        batch.per_sample_weights, batch.lookup.table_lookups, by_feature_G, strict=True
    ):
        embeddings_UD = next(rest) if weights else None
        for each in weights:
            assert embeddings_UD is not None
            gradients_BD = by_feature[each.feature]
            result.append(
                None if gradients_BD is None else each.gradient(table_lookup.unique, embeddings_UD, gradients_BD)
            )
    return result
