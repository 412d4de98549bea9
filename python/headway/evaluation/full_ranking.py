# SPDX-License-Identifier: Apache-2.0
"""HR@10 (hit rate) and NDCG@10 of full rankings: all items except those that the user has already rated.

Each user has one target, the item that the model should rank first.

Example: the target has rank 2 (two unseen items score at least as much). It counts 1 for HR@10 and
1 / log2(2 + 2) = 0.5 for NDCG@10. From rank 10 on both are 0.

Shapes: U users, M items.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

CUT = 10


class Quality(NamedTuple):
    """Means over users, and the standard error of the hit rate for a random draw of users."""

    hit_rate: float
    ndcg: float
    hit_rate_error: float


def ranks_of(scores: Tensor, wanted: Tensor, is_seen: Tensor) -> Tensor:
    """Rank of the target item among the items that the user has not seen, from 0.

    Ties count against the target. So do NaN scores: a model that has diverged must not get the best rank.

    Args:
        scores: (U, M) scores of all items.
        wanted: (U,) int64 target items.
        is_seen: (U, M) bool; the entry of the target is ignored.

    Returns:
        (U,) int64.
    """
    of_wanted = scores.gather(1, wanted[:, None])
    is_before = ~(scores < of_wanted) & ~is_seen  # Not `>=`, which NaN scores never are.
    is_before.scatter_(1, wanted[:, None], False)
    return is_before.sum(1)


def quality_of(ranks: Tensor) -> Quality:
    """Computes the metrics of ranks (U,), which count from 0.

    Raises:
        ValueError: there are no ranks.
    """
    if len(ranks) == 0:
        raise ValueError("there are no users, so their rankings have no mean")
    hits = (ranks < CUT).double()
    gains = hits / torch.log2(ranks.double() + 2)
    rate = hits.mean().item()
    return Quality(rate, gains.mean().item(), math.sqrt(rate * (1 - rate) / len(ranks)))
