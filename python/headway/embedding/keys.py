# SPDX-License-Identifier: Apache-2.0
"""Building blocks of a collection, for users who build their own: keys, deduplication, routing, exchange buffers.

A key is an id with the id of its table. Routing assigns each key to the rank that owns it.

Shapes: K keys, R ranks.
"""

from typing import Any

import torch

from headway._deprecation import warn_renamed
from headway._embedding import (
    Deduplicator,
    Keys,
    ThreadPool,
    UniqueKeys,
    all_to_all_arguments,
    by_table,
    first_bucket_of,
    from_unique,
    reorder,
    route,
)
from headway.embedding.merging import table_id_of

#: Old names of this module, until the next release.
_RENAMED = {
    "Workers": "ThreadPool",
    "part_of": "select_keys",
    "table_number": "table_id_of",
    "take_as_unique": "from_unique",
}


def __getattr__(name: str) -> Any:
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    new = _RENAMED[name]
    warn_renamed(name, new)
    return globals()[new]


def owned_by(keys: Keys, rank: int, num_ranks: int) -> torch.Tensor:
    """Returns the ascending int64 indices of the keys that ``rank`` of ``num_ranks`` ranks owns."""
    order_K, counts_R = route(keys, num_ranks)  # Indices of the keys sorted by owner, and the keys of each owner.
    begin, end = (int(counts_R[:each].sum()) for each in (rank, rank + 1))
    return order_K[begin:end].to(torch.int64)


def select_keys(keys: Keys, selection: slice | torch.Tensor) -> Keys:
    """Selects keys that a table listed, with their tables and counts."""
    assert keys.tables is not None, "listed keys have tables"
    return Keys(
        keys.ids[selection], keys.tables[selection], counts=None if keys.counts is None else keys.counts[selection]
    )


__all__ = [
    "Deduplicator",
    "Keys",
    "ThreadPool",
    "UniqueKeys",
    "all_to_all_arguments",
    "by_table",
    "first_bucket_of",
    "from_unique",
    "owned_by",
    "reorder",
    "route",
    "select_keys",
    "table_id_of",
]
