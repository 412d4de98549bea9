# SPDX-License-Identifier: Apache-2.0
"""Dynamic tables in models written for TorchRec: any 64-bit id, without the limit of ``num_embeddings``.

The collections stay as they are, on device ``meta``. Only the sharding of the model changes::

    import headway.torchrec
    from headway.embedding import Adam
    from headway.torchrec import DynamicTable

    tables = [EmbeddingBagConfig(name="item", embedding_dim=64, num_embeddings=10_000_000, feature_names=["history"])]
    model = Model(EmbeddingBagCollection(tables=tables, device=torch.device("meta")))
    model = headway.torchrec.shard(model, {"item": DynamicTable(optimizer=Adam(lr=1e-3))})
    pipeline = TrainPipelineSparseDist(model, dense_optimizer, torch.device("cpu"))

``shard()`` plans and shards in one call. ``planner()`` and ``sharders()`` serve your own ``DistributedModelParallel``.
"""

from headway.torchrec.versions import check_versions, installed_versions

check_versions(installed_versions())

from headway.torchrec.planning import planner, shard, sharders  # noqa: E402
from headway.torchrec.settings import DynamicTable  # noqa: E402
from headway.torchrec.sharded_collections import (  # noqa: E402 - wrong versions are told first
    DynamicEmbeddingBagCollection,
    DynamicEmbeddingCollection,
    statistics,
)
from headway.torchrec.sharders import (  # noqa: E402
    DynamicEmbeddingBagCollectionSharder,
    DynamicEmbeddingCollectionSharder,
)

__all__ = [
    "DynamicEmbeddingBagCollection",
    "DynamicEmbeddingBagCollectionSharder",
    "DynamicEmbeddingCollection",
    "DynamicEmbeddingCollectionSharder",
    "DynamicTable",
    "planner",
    "shard",
    "sharders",
    "statistics",
]
