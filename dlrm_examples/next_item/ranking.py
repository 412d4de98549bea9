"""HR and NDCG at 10 of full rankings: all items but those that the user has rated.

Shapes: U users, M items.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

CUT = 10


class Quality(NamedTuple):
    """Means over users, and the standard error of the first for the draw of users."""

    hit_rate: float
    ndcg: float
    hit_rate_error: float


def ranks_of(scores: Tensor, wanted: Tensor, is_seen: Tensor) -> Tensor:
    """Where the wanted item is among the items that a user has not seen, from 0; equal scores count against it.

    Args:
        scores: (U, M).
        wanted: (U,) int64.
        is_seen: (U, M) bool; what it says of the wanted item does not matter.

    Returns:
        (U,) int64.
    """
    of_wanted = scores.gather(1, wanted[:, None])
    is_before = (scores >= of_wanted) & ~is_seen
    is_before.scatter_(1, wanted[:, None], False)
    return is_before.sum(1)


def quality_of(ranks: Tensor) -> Quality:
    """Of ranks (U,) from 0."""
    hits = (ranks < CUT).double()
    gains = hits / torch.log2(ranks.double() + 2)
    rate = hits.mean().item()
    return Quality(rate, gains.mean().item(), math.sqrt(rate * (1 - rate) / len(ranks)))
