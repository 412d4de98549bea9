# SPDX-License-Identifier: Apache-2.0
"""TorchRec's managed collisions: row-wise sharded tables of sequences behind a map from any id to a slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


def make_managed_collisions(
    configs: Sequence[Any],
    optimizer: Any,
    optimizer_options: Mapping[str, Any],
    *,
    eviction_interval: int,
    num_ids: int,
    device: torch.device,
) -> Any:
    """Makes the module, with weights on the device ``meta`` until it is sharded.

    Args:
        configs: TorchRec's ``EmbeddingConfig`` of each table; ``num_embeddings`` are slots over all ranks.
        optimizer: class of the optimizer that FBGEMM fuses with the backward pass.
        optimizer_options: its arguments.
        eviction_interval: batches after which slots are assigned anew.
        num_ids: ids are below. Ranks own ranges of them: with the default range of 2^63, the first half of the ranks
            would own all ids.
        device: of the maps.
    """
    from torchrec import EmbeddingCollection
    from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingCollection
    from torchrec.modules.mc_modules import (
        DistanceLFU_EvictionPolicy,
        ManagedCollisionCollection,
        MCHManagedCollisionModule,
    )
    from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

    slots = {
        config.name: MCHManagedCollisionModule(
            zch_size=config.num_embeddings,
            device=device,
            eviction_policy=DistanceLFU_EvictionPolicy(),
            eviction_interval=eviction_interval,
            input_hash_size=num_ids,
        )
        for config in configs
    }
    module = ManagedCollisionEmbeddingCollection(
        EmbeddingCollection(tables=list(configs), device=torch.device("meta")),
        ManagedCollisionCollection(slots, list(configs)),
        allow_in_place_embed_weight_update=True,
    )
    apply_optimizer_in_backward(optimizer, module._embedding_module.parameters(), dict(optimizer_options))
    return module


def shard_managed_collisions(
    model: nn.Module, name: str, *, has_dedup: bool, group: dist.ProcessGroup, device: torch.device
) -> Any:
    """Shards the managed collisions of a model row by row; returns the model in a ``DistributedModelParallel``.

    Args:
        model: has the module as the attribute ``name``.
        name: the attribute.
        has_dedup: remove duplicates before ids are exchanged. It needs a GPU.
        group: ranks that share the tables.
        device: of the model.
    """
    from torchrec.distributed.embedding import EmbeddingCollectionSharder
    from torchrec.distributed.mc_embedding import ManagedCollisionEmbeddingCollectionSharder
    from torchrec.distributed.mc_modules import ManagedCollisionCollectionSharder
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
    from torchrec.distributed.types import ShardingEnv, ShardingPlan

    module: Any = getattr(model, name)
    sharder = ManagedCollisionEmbeddingCollectionSharder(
        ec_sharder=EmbeddingCollectionSharder(use_index_dedup=has_dedup), mc_sharder=ManagedCollisionCollectionSharder()
    )
    plan = construct_module_sharding_plan(
        module,
        {config.name: row_wise(compute_kernel="fused") for config in module._embedding_module.embedding_configs()},
        sharder=sharder,
        local_size=group.size(),
        world_size=group.size(),
        device_type=device.type,
    )
    return DistributedModelParallel(
        model,
        env=ShardingEnv.from_process_group(group),
        device=device,
        plan=ShardingPlan({name: plan}),
        sharders=[sharder],
    )
