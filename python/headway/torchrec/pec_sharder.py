# SPDX-License-Identifier: Apache-2.0
"""Sharder of TorchRec's ``PECEmbeddingCollection``, which cannot have dynamic tables. TorchRec 1.6 does not have it.

PEC (prioritised embedding communication) looks up a batch in two parts: ids that the previous batch had, too, and all
others. It finds them in a mask with one entry for each of ``num_embeddings`` rows. A dynamic table takes any 64-bit id,
so there is no such mask for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torchrec.distributed.pec_embedding import PECEmbeddingCollectionSharder

from headway.torchrec.settings import DynamicTable


class StaticPECEmbeddingCollectionSharder(PECEmbeddingCollectionSharder):  # type: ignore[misc]
    """TorchRec's sharder, which refuses dynamic tables.

    Args:
        tables: the dynamic tables by name.
    """

    def __init__(self, tables: Mapping[str, DynamicTable]) -> None:
        super().__init__()
        self._dynamic = frozenset(tables)

    def shardable_parameters(self, module: Any) -> dict[str, torch.nn.Parameter]:
        dynamic = sorted(config.name for config in module.embedding_configs() if config.name in self._dynamic)
        if dynamic:
            raise ValueError(
                f"the tables {', '.join(dynamic)} cannot be dynamic in a PECEmbeddingCollection, which marks ids among "
                "num_embeddings: use an EmbeddingCollection"
            )
        parameters: dict[str, torch.nn.Parameter] = super().shardable_parameters(module)
        return parameters
