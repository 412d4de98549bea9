# SPDX-License-Identifier: Apache-2.0
"""Row-wise sharding by hash: the hash of an id decides which rank owns it, not a range of ids."""

from __future__ import annotations

from collections.abc import Sequence
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

from headway._embedding import ThreadPool
from headway.embedding.config import Pooling
from headway.embedding.devices import resolve_device
from headway.torchrec.batch import BatchMaker, MergedFeatures, RequestedKeys
from headway.torchrec.exchange import (
    CountsAwaitable,
    EmbeddingExchange,
    LocalKeysAwaitable,
    NestedAwaitable,
    ReadyAwaitable,
    ReceiveEmbeddings,
    SendEmbeddings,
    join,
)
from headway.torchrec.kernel import TableKernel
from headway.torchrec.local_lookup import ExpandRows

_POOLING: dict[Any, Pooling] = {PoolingType.SUM: "sum", PoolingType.MEAN: "mean", PoolingType.NONE: None}


def merged_features(config: GroupedEmbeddingConfig) -> MergedFeatures:
    """Returns the features of a TorchRec group of tables."""
    tables = tuple(table.name for table in config.embedding_tables for _ in table.feature_names)
    return MergedFeatures(
        tables, config.embedding_tables[0].embedding_dim, _POOLING[config.pooling], config.is_weighted
    )


class DynamicSharding(BaseRwEmbeddingSharding):  # type: ignore[misc]
    """Makes the modules of a sharded collection, for sequences and bags, and the threads that they share."""

    def __init__(self, sharding_infos: list[EmbeddingShardingInfo], env: ShardingEnv, device: Any) -> None:
        super().__init__(sharding_infos, env, device)
        self._place = resolve_device(device)
        self._thread_pool = ThreadPool(torch.get_num_threads() if self._place.type == "cpu" else 1)

    def create_input_dist(self, device: torch.device | None = None) -> IdDist:
        return IdDist(self._pg, self._features(), self._thread_pool, self._place)

    def create_lookup(
        self, device: torch.device | None = None, fused_params: Any = None, feature_processor: Any = None
    ) -> DynamicLookup:
        return DynamicLookup(
            self._grouped_embedding_configs, self._thread_pool, pg=self._pg, device=self._place, env=self._env
        )

    def create_output_dist(self, device: torch.device | None = None) -> EmbeddingDist:
        return EmbeddingDist(self._pg, self._features())

    def _features(self) -> list[MergedFeatures]:
        return [merged_features(config) for config in self._grouped_embedding_configs]


class IdDist(BaseSparseFeaturesDist):  # type: ignore[misc]
    """Sends each distinct id of a batch to its owner once, with the number of its lookups.

    It has no ``_dist`` attribute: pipelines would replace the ``forward`` of that. They use what this one returns.
    """

    def __init__(
        self, pg: dist.ProcessGroup, features_of: list[MergedFeatures], thread_pool: ThreadPool, device: torch.device
    ) -> None:
        super().__init__()
        self._pg = pg
        self._maker = BatchMaker(features_of, pg, thread_pool, device)
        self._nothing = torch.zeros(len(features_of), dtype=torch.int64, device=device)

    def forward(self, sparse_features: KeyedJaggedTensor) -> CountsAwaitable | LocalKeysAwaitable:
        batch = self._maker.make(sparse_features)
        if self._pg.size() == 1:
            return LocalKeysAwaitable(batch, self._nothing)
        return CountsAwaitable(batch, self._pg, self._nothing)


class DynamicLookup(GroupedEmbeddingsLookup):  # type: ignore[misc]
    """One kernel per merged table. Kernels find rows; ``EmbeddingDist`` reads the embeddings from them."""

    def __init__(self, grouped_configs: list[GroupedEmbeddingConfig], thread_pool: ThreadPool, **others: Any) -> None:
        self._thread_pool = thread_pool  # Set first: TorchRec's constructor makes the kernels.
        super().__init__(grouped_configs, **others)
        # A plain tensor, not a parameter of the model.
        self._token = torch.zeros(0, device=others["device"], requires_grad=True)

    def forward(self, sparse_features: RequestedKeys) -> torch.Tensor:
        """Looks up the keys of all merged tables for the batch. Returns an empty token for autograd."""
        table_batches = sparse_features.batch.table_batches
        for kernel, table_batch, unique in zip(self._emb_modules, table_batches, sparse_features.unique(), strict=True):
            table_batch.lookup = kernel(unique)
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
        exchange = EmbeddingExchange(batch, [each.dim for each in self._features_of], self._pg)
        token = SendEmbeddings.apply(local_embs, exchange)
        return _FeatureEmbeddings(token, exchange, self._features_of, varying)


class _FeatureEmbeddings(NestedAwaitable):
    """Awaits the embeddings of a batch that other ranks send."""

    def __init__(
        self, token: torch.Tensor, exchange: EmbeddingExchange, features_of: list[MergedFeatures], varying: bool
    ) -> None:
        super().__init__()
        self._token, self._exchange, self._features_of, self._varying = token, exchange, features_of, varying

    def _wait_impl(self) -> Sequence[torch.Tensor] | torch.Tensor:
        divide = comm_ops.get_gradient_division()
        scale = 1.0 / self._exchange.num_ranks if divide else 1.0
        outputs = ReceiveEmbeddings.apply(self._token, self._exchange, scale)
        return _arrange(outputs, self._features_of, varying=self._varying)


def _arrange(
    outputs: Sequence[torch.Tensor], features_of: Sequence[MergedFeatures], *, varying: bool
) -> Sequence[torch.Tensor] | torch.Tensor:
    """Arranges outputs as TorchRec expects them.

    Args:
        outputs: for sequences (K, D) for each feature; for bags (F * batch, D) for each merged table with F features.
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
