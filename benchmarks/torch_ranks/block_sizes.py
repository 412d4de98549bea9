"""How a rank's bytes are spread over the destinations, even or skewed."""

from __future__ import annotations

import itertools
import random

SPLITS = ("even", "zipf")


def block_sizes(split: str, bytes_per_rank: int, *, source: int, num_ranks: int) -> list[int]:
    """Bytes that ``source`` sends to each rank; they add up to ``bytes_per_rank``.

    ``zipf``: exponent 1.0, each source with a popularity order of its own. Deterministic.

    Raises:
        ValueError: ``split`` is neither ``even`` nor ``zipf``.
    """
    if split not in SPLITS:
        raise ValueError(f"split {split!r}: one of {', '.join(SPLITS)}")
    weights = [1.0 if split == "even" else 1.0 / place for place in range(1, num_ranks + 1)]
    # The borders between blocks are rounded, not the blocks, so that these add up.
    borders = [round(bytes_per_rank * sum(weights[:count]) / sum(weights)) for count in range(num_ranks + 1)]
    sizes = [high - low for low, high in itertools.pairwise(borders)]
    if split == "zipf":
        random.Random(source).shuffle(sizes)
    return sizes
