"""What travels with ids: the number of the table and the count of lookups, 32 bits each, in a word."""

from __future__ import annotations

import torch

from headway._embedding import Keys


def tables_of(keys: Keys) -> torch.Tensor:
    """(K,) int32: the table of each key."""
    if keys.tables is not None:
        return keys.tables
    return torch.full((len(keys),), keys.table, dtype=torch.int64, device=keys.ids.device).to(torch.int32)


def words_of(keys: Keys) -> torch.Tensor:
    """(K,) int64 of keys that have counts."""
    assert keys.counts is not None, "keys that travel have counts"
    return torch.stack((tables_of(keys), keys.counts), 1).view(torch.int64).squeeze(1)


def messages_of(keys: Keys) -> torch.Tensor:
    """(K, 2) int64: id and word of each key."""
    return torch.stack((keys.ids, words_of(keys)), 1)


def keys_of(ids_K: torch.Tensor, words_K: torch.Tensor) -> Keys:
    """The reverse; ids and words are int64."""
    tables_K, counts_K = words_K.unsqueeze(1).view(torch.int32).t().contiguous()
    return Keys(ids_K.contiguous(), tables_K, counts=counts_K)
