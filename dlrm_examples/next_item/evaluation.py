# SPDX-License-Identifier: Apache-2.0
"""Evaluates rankings of all items, by a model or by popularity.

Shapes: U users, M items.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from headway.evaluation.full_ranking import Quality, quality_of, ranks_of
from torch import Tensor

from dlrm_examples.next_item.batches import Batch, Split, evaluation_batches
from dlrm_examples.next_item.histories import Histories
from dlrm_examples.next_item.model import NextItemModel

_BATCH_SIZE = 64


def evaluate(
    score: Callable[[Batch], Tensor], histories: Histories, split: Split, *, max_length: int, device: torch.device
) -> Quality:
    """Ranks the target item of each user.

    Args:
        score: function from a batch to the scores of all items for its users, (U, M).
        histories: histories of all users.
        split: "validation" or "test".
        max_length: most items that the model sees of a user.
        device: device of the batches.
    """
    ranks = []
    for batch in evaluation_batches(histories, split, max_length=max_length, batch_size=_BATCH_SIZE, device=device):
        wanted = batch.next_items[batch.last_tokens()]
        ranks.append(ranks_of(score(batch), wanted, _seen(histories, batch.users, split).to(device)))
    return quality_of(torch.cat(ranks))


def model_scores(model: NextItemModel) -> Callable[[Batch], Tensor]:
    """Returns the scoring function of ``evaluate()`` for a model, which it puts into the mode of evaluation."""

    @torch.no_grad()
    def score(batch: Batch) -> Tensor:
        model.eval()
        return model.predict(batch)[batch.last_tokens()] @ model.candidates().T

    return score


def popularity_scores(histories: Histories) -> Callable[[Batch], Tensor]:
    """Returns a scoring function: number of ratings of each item in the training split."""
    counts = histories.train_counts().double()
    return lambda batch: counts.to(batch.users.device).expand(len(batch.users), -1)


def _seen(histories: Histories, users: Tensor, split: Split) -> Tensor:
    """(U, M) bool: items that each user rated before the item of ``split``."""
    is_seen = torch.zeros(len(users), histories.num_items, dtype=torch.bool)
    for row, user in enumerate(users.tolist()):
        end = int(histories.offsets[user + 1]) - (1 if split == "test" else 2)
        is_seen[row, histories.items[int(histories.offsets[user]) : end]] = True
    return is_seen
