"""What travels with ids: the number of the table and the count of lookups, 32 bits each, in a word."""

from __future__ import annotations

import torch

from headway._embedding import Keys

_COUNT_SHIFT = 32


def tables_of(keys: Keys) -> torch.Tensor:
    """(K,) int32: the table of each key."""
    if keys.tables is not None:
        return keys.tables
    return torch.full((len(keys),), keys.table, dtype=torch.int64, device=keys.ids.device).to(torch.int32)


def words_of(keys: Keys) -> torch.Tensor:
    """(K,) int64 of keys that have counts."""
    assert keys.counts is not None, "keys that travel have counts"
    tables = tables_of(keys).to(torch.int64) & ((1 << _COUNT_SHIFT) - 1)
    return tables | keys.counts.to(torch.int64) << _COUNT_SHIFT


def keys_of(ids_K: torch.Tensor, words_K: torch.Tensor) -> Keys:
    """The reverse; ids and words are int64."""
    counts = (words_K >> _COUNT_SHIFT).to(torch.int32)
    return Keys(ids_K.contiguous(), words_K.to(torch.int32), counts=counts)
