# SPDX-License-Identifier: Apache-2.0
"""Dynamic embedding tables: arbitrary 64-bit ids, row-wise sharded, trained by SGD, Adagrad and Adam.

The optimizers follow ``torch.optim``; the row-wise ones keep one number per row, as FBGEMM's do.

::

    from headway.embedding import Adam, FeatureConfig, HashTableCollection, TableConfig

    tables = HashTableCollection(
        tables=[TableConfig(name, dim=64, optimizer=Adam(lr=1e-3)) for name in ("user", "item")],
        features=[FeatureConfig("user_id", table="user"), FeatureConfig("history", table="item", pooling="mean")])
    embeddings = tables({"user_id": (user_ids, user_lengths), "history": (item_ids, item_lengths)})
    embeddings["history"]   # (batch, 64)
    loss.backward()
    tables.optimizer.step()
"""

from headway.embedding.checkpoint import CheckpointError
from headway.embedding.clipping import clip_grad_norm_
from headway.embedding.collection import HashTableCollection, PendingBatch
from headway.embedding.config import (
    Adagrad,
    Adam,
    Constant,
    Eviction,
    FeatureConfig,
    Initializer,
    NoOptimizer,
    Normal,
    Optimizer,
    RowWiseAdagrad,
    RowWiseAdam,
    Sgd,
    TableConfig,
    Uniform,
)
from headway.embedding.exportable import ExportableLookup
from headway.embedding.process_groups import LOCAL
from headway.embedding.sharded_tables import NoRoomError

__all__ = [
    "LOCAL",
    "Adagrad",
    "Adam",
    "CheckpointError",
    "Constant",
    "Eviction",
    "ExportableLookup",
    "FeatureConfig",
    "HashTableCollection",
    "Initializer",
    "NoOptimizer",
    "NoRoomError",
    "Normal",
    "Optimizer",
    "PendingBatch",
    "RowWiseAdagrad",
    "RowWiseAdam",
    "Sgd",
    "TableConfig",
    "Uniform",
    "clip_grad_norm_",
]
