# SPDX-License-Identifier: Apache-2.0
"""Distributions of a rank's bytes over the destinations: even, by popularity, or skewed towards one receiver.

Blocks are multiples of ``unit`` bytes, as rows of embeddings are. NCCL leaves its fast path for blocks of an odd number
of bytes, so a comparison over odd blocks says nothing about rows.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

#: Bytes that rank 0 receives from others, over the mean of all ranks.
_SKEWS = {"skew1.5": 1.5, "skew3": 3.0}
SPLITS = ("even", "zipf", *_SKEWS)
#: Rows of float32 or of 16-bit types are multiples of this size if the dim is a multiple of 4 or 8.
DEFAULT_UNIT = 16


def block_sizes(split: str, bytes_per_rank: int, *, source: int, num_ranks: int, unit: int = DEFAULT_UNIT) -> list[int]:
    """Returns the bytes that ``source`` sends to each rank. They add up to ``bytes_per_rank``. Deterministic.

    Args:
        split: ``even``; ``zipf``: exponent 1.0, each source with a popularity order of its own; ``skew1.5`` and
            ``skew3``: the link into rank 0 carries 1.5 or 3 times the mean over all links. The mean is that of
            ``even``. The other links share the rest, and a rank keeps what is left of its bytes.
        bytes_per_rank: bytes of all blocks, the rank's own included.
        source: the rank that sends.
        num_ranks: ranks of the group.
        unit: borders between blocks are multiples of it, except for the end.

    Raises:
        ValueError: ``split`` is unknown, or the group is too small for such a skew.
    """
    if split not in SPLITS:
        raise ValueError(f"split {split!r}: one of {', '.join(SPLITS)}")
    weights = [1.0] * num_ranks
    if split == "zipf":
        weights = [1.0 / position for position in range(1, num_ranks + 1)]
    elif split in _SKEWS:
        weights = _skewed_weights(split, num_ranks)
    sizes = _round_borders(weights, bytes_per_rank, unit)
    if split == "zipf":
        random.Random(source).shuffle(sizes)
    return sizes


def _skewed_weights(split: str, num_ranks: int) -> list[float]:
    """Weights by destination, relative to an even block and the same for all sources."""
    skew = _SKEWS[split]
    if num_ranks < max(2.0, skew):
        raise ValueError(f"split {split}: {num_ranks} ranks cannot have a link with {skew} times the mean")
    return [skew, *[(num_ranks - skew) / (num_ranks - 1)] * (num_ranks - 1)]


def _round_borders(weights: Sequence[float], total: int, unit: int) -> list[int]:
    """Splits ``total`` by weights. It rounds the borders between blocks, so that the blocks still add up."""
    whole = sum(weights)
    inner = [round(total * sum(weights[:count]) / whole / unit) * unit for count in range(len(weights))]
    borders = [*(min(border, total) for border in inner), total]
    return [high - low for low, high in itertools.pairwise(borders)]
