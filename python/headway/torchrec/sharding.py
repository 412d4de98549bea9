# SPDX-License-Identifier: Apache-2.0
"""Row-wise sharding by hash: the hash of an id decides which rank owns it, not a range of ids.

``DynamicSharding`` makes the three modules that TorchRec asks a sharding for: ``IdDist`` exchanges ids,
``DynamicLookup`` finds their rows, and ``EmbeddingDist`` exchanges embeddings and gradients. ``exchange.py`` has the
stages.

A key is the pair (table id, id). Tables of equal configuration are merged: they share one hash table
(headway/embedding/merging.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torchrec import KeyedJaggedTensor
from torchrec.distributed import comm_ops
from torchrec.distributed.embedding_lookup import GroupedEmbeddingsLookup
from torchrec.distributed.embedding_sharding import BaseEmbeddingDist, BaseSparseFeaturesDist, EmbeddingShardingInfo
from torchrec.distributed.embedding_types import GroupedEmbeddingConfig
from torchrec.distributed.sharding.rw_sharding import BaseRwEmbeddingSharding
from torchrec.distributed.types import Awaitable, ShardingEnv
from torchrec.modules.embedding_configs import PoolingType

from headway._embedding import TableLookup, ThreadPool
from headway.embedding.collection import is_recomputation
from headway.embedding.config import Pooling
from headway.embedding.devices import place_name, resolve_device
from headway.embedding.merging import table_id_of
from headway.torchrec.exchange import (
    Batch,
    CountsAwaitable,
    ExpandRows,
    LocalKeysAwaitable,
    NestedAwaitable,
    ReadyAwaitable,
    ReceiveEmbeddings,
    RequestedKeys,
    SendEmbeddings,
    join,
)
from headway.torchrec.kernel import TableKernel

_POOLING: dict[Any, Pooling] = {PoolingType.SUM: "sum", PoolingType.MEAN: "mean", PoolingType.NONE: None}


@dataclass(frozen=True)
class MergedFeatures:
    """The features of one merged table (TorchRec: ``GroupedEmbeddingConfig``), in TorchRec's order."""

    tables: tuple[str, ...]  #: Table of each of the F features.
    dim: int
    pooling: Pooling
    weighted: bool

    @property
    def num_features(self) -> int:
        return len(self.tables)


def merged_features(config: GroupedEmbeddingConfig) -> MergedFeatures:
    """Lists the features of the tables that TorchRec has grouped, table by table."""
    tables = tuple(table.name for table in config.embedding_tables for _ in table.feature_names)
    return MergedFeatures(
        tables, config.embedding_tables[0].embedding_dim, _POOLING[config.pooling], config.is_weighted
    )


class DynamicSharding(BaseRwEmbeddingSharding):  # type: ignore[misc]
    """Makes the modules of a sharded collection, for sequences and bags, and the threads that they share."""

    def __init__(self, sharding_infos: list[EmbeddingShardingInfo], env: ShardingEnv, device: Any) -> None:
        super().__init__(sharding_infos, env, device)
        self._table_device = resolve_device(device)
        self._thread_pool = ThreadPool(torch.get_num_threads() if self._table_device.type == "cpu" else 1)

        self._lookup: DynamicLookup | None = None

    def create_input_dist(self, device: torch.device | None = None) -> IdDist:
        assert self._lookup is not None, "TorchRec makes the exchange of ids for the first batch, after the lookup"
        return IdDist(self._lookup, self._features(), self._table_device)

    def create_lookup(
        self, device: torch.device | None = None, fused_params: Any = None, feature_processor: Any = None
    ) -> DynamicLookup:
        self._lookup = DynamicLookup(
            self._grouped_embedding_configs, self._thread_pool, pg=self._pg, device=self._table_device, env=self._env
        )
        return self._lookup

    def create_output_dist(self, device: torch.device | None = None) -> EmbeddingDist:
        return EmbeddingDist(self._pg, self._features())

    def _features(self) -> list[MergedFeatures]:
        return [merged_features(config) for config in self._grouped_embedding_configs]


class IdDist(BaseSparseFeaturesDist):  # type: ignore[misc]
    """Sends each distinct id of a batch to its owner once, with the number of its lookups.

    It has no ``_dist`` attribute: pipelines would replace the ``forward`` of that. They use what this one returns.
    """

    def __init__(self, lookup: DynamicLookup, features_of: list[MergedFeatures], device: torch.device) -> None:
        super().__init__()
        self._lookup = [lookup]  # In a list, so that it is not a submodule of two modules.
        self._features_of, self._device = features_of, device
        # Lengths of the empty KeyedJaggedTensor that TorchRec gets instead of the keys.
        self._zero_lengths = torch.zeros(len(features_of), dtype=torch.int64, device=device)

    def forward(self, sparse_features: KeyedJaggedTensor) -> CountsAwaitable | LocalKeysAwaitable:
        """Starts the lookup of a batch.

        It does not wait for the device if the features already know their ``length_per_key()``.

        Raises:
            ValueError: ids are not int64 or int32, are on another device, or weights are missing.
        """
        ids = sparse_features.values()
        if ids.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"ids must be int64 or int32, not {ids.dtype}")
        if ids.device != self._device:
            raise ValueError(f"ids must be on {place_name(self._device)}, not on {place_name(ids.device)}")
        lookup = self._lookup[0]
        begun = lookup.tables.begin(
            ids.split_with_sizes(sparse_features.length_per_key()),
            sparse_features.lengths().split_with_sizes(sparse_features.stride_per_key()),
            self._weights_of(sparse_features),
            inserts=True,
            evaluates=False,  # eval() does not change the embeddings of ids without a row.
            counts_refused=lookup.counts_refused,
        )
        batch = Batch(lookup.tables, begun, lookup.kernels)
        return (LocalKeysAwaitable if lookup.num_ranks == 1 else CountsAwaitable)(batch, self._zero_lengths)

    def _weights_of(self, features: KeyedJaggedTensor) -> Sequence[torch.Tensor | None]:
        """Returns the per-id weights of each feature."""
        if not any(merged.weighted for merged in self._features_of):
            return [None] * sum(merged.num_features for merged in self._features_of)
        weights = features.weights_or_none()
        if weights is None:
            raise ValueError("the collection is weighted, but its input has no weights")
        weights_F: Sequence[torch.Tensor] = weights.detach().split_with_sizes(features.length_per_key())
        return weights_F


class DynamicLookup(GroupedEmbeddingsLookup):  # type: ignore[misc]
    """One kernel per merged table, and the lookup in all of them."""

    #: Count the keys that get no row: the sharder's option ``strict`` raises an error if there are any.
    counts_refused = False

    def __init__(self, grouped_configs: list[GroupedEmbeddingConfig], thread_pool: ThreadPool, **others: Any) -> None:
        self._thread_pool = thread_pool  # Set first: TorchRec's constructor makes the kernels.
        super().__init__(grouped_configs, **others)
        # A plain tensor, not a parameter of the model.
        self._token = torch.zeros(0, device=others["device"], requires_grad=True)
        group: dist.ProcessGroup = others["pg"]
        self.num_ranks = group.size()
        features_of = [merged_features(config) for config in grouped_configs]
        self.tables = TableLookup(
            tables=[kernel.table for kernel in self.kernels],
            table_ids=[[table_id_of(table.name) for table in kernel.merged.tables] for kernel in self.kernels],
            hides_unknown=[False] * len(features_of),  # An id without a row has its initial embedding, not zeros.
            names=[f"{index} of table {table}" for each in features_of for index, table in enumerate(each.tables)],
            feature_tables=[table_id_of(table) for each in features_of for table in each.tables],
            poolings=[each.pooling for each in features_of for _ in each.tables],
            group=group if self.num_ranks > 1 else None,
            dedup="both",  # Remove duplicates before keys are sent, and at their owner.
            thread_pool=thread_pool,
            device=others["device"],
            by_feature=features_of[0].pooling is None,
        )

    @property
    def kernels(self) -> Sequence[TableKernel]:
        kernels: Sequence[TableKernel] = self._emb_modules
        return kernels

    def replace_tables(self) -> None:
        """Called after the kernels have got new tables."""
        self.tables.replace_tables([kernel.table for kernel in self.kernels])

    def forward(self, sparse_features: RequestedKeys) -> torch.Tensor:
        """Finds the rows of all keys for the batch. Returns an empty token for autograd.

        Inserts and counts only in training, and not when activation checkpointing repeats the lookup.
        """
        self.tables.look_up(sparse_features.batch.begun, inserts=self.training and not is_recomputation())
        return self._token

    def _create_embedding_kernel(
        self, config: GroupedEmbeddingConfig, pg: dist.ProcessGroup, device: torch.device | None, env: Any = None
    ) -> TableKernel:
        return TableKernel(config, pg, self._thread_pool, resolve_device(device))


class EmbeddingDist(BaseEmbeddingDist):  # type: ignore[misc]
    """Returns embeddings to the ranks that asked for them, and arranges them by feature.

    It divides gradients by the number of ranks, as TorchRec's exchanges do, unless ``set_gradient_division(False)``.
    """

    def __init__(self, pg: dist.ProcessGroup, features_of: list[MergedFeatures]) -> None:
        super().__init__()
        self._pg, self._features_of = pg, features_of

    def forward(self, local_embs: torch.Tensor, sharding_ctx: Any = None) -> Awaitable:
        batch, varying = sharding_ctx.batch, sharding_ctx.variable_batch_per_feature
        if self._pg.size() == 1:
            outputs = ExpandRows.apply(local_embs, batch)
            return ReadyAwaitable(_arrange(outputs, self._features_of, varying=varying))
        token = SendEmbeddings.apply(local_embs, batch)
        return _FeatureEmbeddings(token, batch, self._pg.size(), self._features_of, varying)


class _FeatureEmbeddings(NestedAwaitable):
    """Awaits the embeddings of a batch that other ranks send."""

    def __init__(
        self,
        token: torch.Tensor,
        batch: Batch,
        num_ranks: int,
        features_of: list[MergedFeatures],
        varying: bool,
    ) -> None:
        super().__init__()
        self._token, self._batch, self._num_ranks = token, batch, num_ranks
        self._features_of, self._varying = features_of, varying

    def _wait_impl(self) -> Sequence[torch.Tensor] | torch.Tensor:
        scale = 1.0 / self._num_ranks if comm_ops.get_gradient_division() else 1.0
        outputs = ReceiveEmbeddings.apply(self._token, self._batch, scale)
        return _arrange(outputs, self._features_of, varying=self._varying)


def _arrange(
    outputs: Sequence[torch.Tensor], features_of: Sequence[MergedFeatures], *, varying: bool
) -> Sequence[torch.Tensor] | torch.Tensor:
    """Arranges outputs as TorchRec expects them.

    Args:
        outputs: for sequences (K, D) for each feature with K ids; for bags (F * batch, D) for each merged table with F
            features.
        features_of: the features of each merged table.
        varying: batch sizes differ between features.
    Returns:
        for sequences the outputs as they are; for bags (batch, columns of all features), or flat, feature by feature,
        if batch sizes differ.
    """
    if features_of[0].pooling is None:
        return outputs
    if varying:
        return join([output.reshape(-1) for output in outputs])
    return join(
        [
            output.view(each.num_features, -1, each.dim).transpose(0, 1).flatten(1)
            for output, each in zip(outputs, features_of, strict=True)
        ],
        dim=1,
    )
