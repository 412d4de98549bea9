"""Keys, deduplication and routing: the building blocks of collections, for users who build their own."""

import torch

from headway._embedding import (
    Deduplicator,
    Keys,
    UniqueKeys,
    Workers,
    first_bucket_of,
    reorder,
    route,
    take_as_unique,
)
from headway.embedding.merging import table_number


def owned_by(keys: Keys, rank: int, num_ranks: int) -> torch.Tensor:
    """Returns the ascending int64 indices of the keys that ``rank`` of ``num_ranks`` ranks owns."""
    order_K, counts_R = route(keys, num_ranks)
    begin, end = (int(counts_R[:each].sum()) for each in (rank, rank + 1))
    return order_K[begin:end].to(torch.int64)


def part_of(keys: Keys, part: slice | torch.Tensor) -> Keys:
    """Selects keys that a table listed, with their tables and counts."""
    assert keys.tables is not None, "listed keys have tables"
    return Keys(keys.ids[part], keys.tables[part], counts=None if keys.counts is None else keys.counts[part])


__all__ = [
    "Deduplicator",
    "Keys",
    "UniqueKeys",
    "Workers",
    "first_bucket_of",
    "owned_by",
    "part_of",
    "reorder",
    "route",
    "table_number",
    "take_as_unique",
]
