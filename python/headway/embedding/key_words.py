"""What travels with ids: the number of the table and the count of lookups, 32 bits each, in a word."""

from __future__ import annotations

import torch

from headway._embedding import Keys


def tables_of(keys: Keys) -> torch.Tensor:
    """(K,) int32: the table of each key."""
    if keys.tables is not None:
        return keys.tables
    return torch.full((len(keys),), keys.table, dtype=torch.int64, device=keys.ids.device).to(torch.int32)


def messages_of(keys: Keys) -> torch.Tensor:
    """(K, 2) int64: id and word of each key; they have counts."""
    assert keys.counts is not None, "keys that travel have counts"
    halves_K2 = keys.ids.unsqueeze(1).view(torch.int32)
    return torch.cat((halves_K2, tables_of(keys).unsqueeze(1), keys.counts.unsqueeze(1)), 1).view(torch.int64)


def keys_of(messages_K2: torch.Tensor) -> Keys:
    """The reverse."""
    tables_K, counts_K = messages_K2.view(torch.int32)[:, 2:].t().contiguous()
    return Keys(messages_K2[:, 0].contiguous(), tables_K, counts=counts_K)
