# SPDX-License-Identifier: Apache-2.0
"""Models of one table and three layers per embedding, with dynamic tables or with TorchRec's managed collisions.

A dynamic table is a hash table that inserts an id at its first lookup.
"""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.managed_collisions import make_managed_collisions, shard_managed_collisions

HEADWAY, UNLIMITED = "headway", "headway_unlimited"  #: Dynamic tables with and without a limit on their rows.
TORCHREC = "torchrec_mch"
TORCHREC_DEDUP = "torchrec_mch_dedup"  #: Like TORCHREC, and each rank removes duplicates before ids are exchanged.
PEERS = (TORCHREC, TORCHREC_DEDUP)
ID_BITS = 62  #: Bits of an id: managed collisions accept no negative ids.

_TABLE, _FEATURE = "item", "ids"
_HIDDEN = 64
_LR, _EPS = 0.01, 1e-8


@dataclass(frozen=True)
class ModelOptions:
    """Options of all systems. ``slots`` is the number of rows of a limited table, over all ranks."""

    dim: int
    slots: int
    optimizer: str  #: row_wise_adagrad or adam
    eviction_interval: int  #: Batches after which managed collisions reassign their rows.
    device: torch.device
    group: dist.ProcessGroup  #: Group that exchanges tensors of the device.


class SequenceModel(nn.Module):
    """One embedding per id, three layers over each, in bfloat16 on a GPU, and a loss."""

    def __init__(self, embeddings: nn.Module, options: ModelOptions) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.device_type = options.device.type
        torch.manual_seed(0)
        self.over = nn.Sequential(
            nn.Linear(options.dim, _HIDDEN),
            nn.ReLU(),
            nn.Linear(_HIDDEN, _HIDDEN),
            nn.ReLU(),
            nn.Linear(_HIDDEN, 1),
        )

    def forward(self, features: Any) -> torch.Tensor:
        found = self.embeddings(features)
        by_feature = found[0] if isinstance(found, tuple) else found  # Managed collisions also return the remapped ids.
        vectors = by_feature[_FEATURE].values()
        with torch.autocast(self.device_type, torch.bfloat16):
            logits = self.over(vectors)
        loss: torch.Tensor = (logits.float() - 1).square().mean()
        return loss


def import_torchrec() -> None:
    """Imports TorchRec and FBGEMM.

    Raises:
        BenchmarkError: TorchRec or FBGEMM is not installed.
    """
    logging.getLogger().setLevel(logging.ERROR)  # Both packages log much while they are imported.
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import headway.torchrec  # noqa: F401
    except ImportError as error:
        raise BenchmarkError(f"TorchRec is not installed: {error}") from error


def make_features(ids_BL: torch.Tensor) -> Any:
    """Makes lists of equal length. The result knows the number of ids, as that of a data loader may."""
    from torchrec import KeyedJaggedTensor

    num_lists, length = ids_BL.shape
    lengths = torch.full((num_lists,), length, dtype=torch.int64, device=ids_BL.device)
    return KeyedJaggedTensor(
        keys=[_FEATURE], values=ids_BL.flatten(), lengths=lengths, stride=num_lists, length_per_key=[ids_BL.numel()]
    )


def make_model(system: str, options: ModelOptions) -> Any:
    """Makes the sharded model of a system. Collective: all ranks of the group must call it."""
    if system in PEERS:
        return _make_torchrec(options, has_dedup=system == TORCHREC_DEDUP)
    return _make_headway(options, is_limited=system == HEADWAY)


def table_counts(system: str, model: Any) -> dict[str, int]:
    """Returns counters of this rank's shard of a dynamic table; empty for TorchRec's systems.

    ``refused`` counts ids that got no row because the table was full.
    """
    import headway.torchrec

    if system in PEERS:
        return {}
    (counts,) = headway.torchrec.statistics(model).values()
    return {name: counts[name] for name in ("rows", "inserted", "evicted", "refused", "key_bytes", "row_bytes")}


def _config(options: ModelOptions) -> Any:
    from torchrec import EmbeddingConfig

    return EmbeddingConfig(
        name=_TABLE, embedding_dim=options.dim, num_embeddings=options.slots, feature_names=[_FEATURE]
    )


def _make_headway(options: ModelOptions, *, is_limited: bool) -> Any:
    import headway.torchrec
    from headway.embedding import Adam, Eviction, RowWiseAdagrad, Uniform
    from headway.torchrec import DynamicTable
    from torchrec import EmbeddingCollection

    limit: dict[str, Any] = {}
    if is_limited:
        # A shard may grow a tenth above its share. With this limit all shards together have as many rows as other
        # systems.
        max_rows = options.slots if options.group.size() == 1 else options.slots * 10 // 11
        limit = {"max_rows": max_rows, "eviction": Eviction(policy="lru", high_water=0.95, low_water=0.85)}
    is_adam = options.optimizer == "adam"
    table = DynamicTable(
        optimizer=Adam(lr=_LR, eps=_EPS) if is_adam else RowWiseAdagrad(lr=_LR, eps=_EPS),
        initializer=Uniform(-0.05, 0.05),
        **limit,
    )
    collection = EmbeddingCollection(tables=[_config(options)], device=torch.device("meta"))
    model = SequenceModel(collection, options)
    return headway.torchrec.shard(model, {_TABLE: table}, process_group=options.group, device=options.device)


def _make_torchrec(options: ModelOptions, *, has_dedup: bool) -> Any:
    from torchrec.optim import RowWiseAdagrad

    module = make_managed_collisions(
        [_config(options)],
        torch.optim.Adam if options.optimizer == "adam" else RowWiseAdagrad,
        {"lr": _LR, "eps": _EPS},
        eviction_interval=options.eviction_interval,
        num_ids=1 << ID_BITS,
        device=options.device,
    )
    model = SequenceModel(module, options)
    return shard_managed_collisions(
        model, "embeddings", has_dedup=has_dedup, group=options.group, device=options.device
    )
