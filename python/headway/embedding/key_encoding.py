# SPDX-License-Identifier: Apache-2.0
"""Wire format of keys: two 64-bit words, the id, then table id and lookup count with 32 bits each.

K keys.
"""

from __future__ import annotations

import torch

from headway._embedding import Keys


def tables_of(keys: Keys) -> torch.Tensor:
    """Returns the table id of each key, (K,) int32."""
    if keys.tables is not None:
        return keys.tables
    return torch.full((len(keys),), keys.table, dtype=torch.int64, device=keys.ids.device).to(torch.int32)


def messages_of(keys: Keys) -> torch.Tensor:
    """Encodes keys, which must have counts, as (K, 2) int64."""
    assert keys.counts is not None, "keys that travel have counts"
    halves_K2 = keys.ids.unsqueeze(1).view(torch.int32)
    return torch.cat((halves_K2, tables_of(keys).unsqueeze(1), keys.counts.unsqueeze(1)), 1).view(torch.int64)


def keys_of(messages_K2: torch.Tensor) -> Keys:
    """Decodes (K, 2) int64; the inverse of ``messages_of()``."""
    tables_K, counts_K = messages_K2.view(torch.int32)[:, 2:].t().contiguous()
    return Keys(messages_K2[:, 0].contiguous(), tables_K, counts=counts_K)
