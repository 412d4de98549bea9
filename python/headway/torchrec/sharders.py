# SPDX-License-Identifier: Apache-2.0
"""Sharders of collections with dynamic tables. Collections without any are sharded by TorchRec.

A dynamic table is a hash table that makes a row for an id at its first lookup in training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torchrec import EmbeddingBagCollection, EmbeddingCollection
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.types import ParameterSharding, ShardingEnv, ShardingEnv2D
from torchrec.distributed.utils import optimizer_type_to_emb_opt_type
from torchrec.modules.embedding_configs import PoolingType

from headway._embedding import ThreadPool
from headway.embedding.agreement import agreement, settings_of
from headway.embedding.devices import resolve_device
from headway.embedding.merging import MergedTable
from headway.torchrec.settings import KEY_AND_NOTE_BYTES, DynamicTable
from headway.torchrec.sharded_collections import (
    KERNEL,
    SETTINGS,
    SHARDING,
    DynamicEmbeddingBagCollection,
    DynamicEmbeddingCollection,
    configs_of,
)

#: Attribute of a dynamic table's parameter: its settings, its config and fused_params of its sharder.
_MARK = "_headway_table"


class _DynamicSharder:
    """Mixin with the common part of both sharders. It precedes TorchRec's class in the list of bases.

    Args:
        tables: the dynamic tables by name; a collection may also have static tables.
        seed: seed of initial embeddings.
        strict: raise ``headway.embedding.NoRoomError`` on all ranks if an id gets no row because a table is full.
        others: TorchRec's arguments.
    """

    _dynamic_type: type[Any]  #: Class of the sharded collection.

    def __init__(
        self, tables: Mapping[str, DynamicTable], *, seed: int = 0, strict: bool = False, **others: Any
    ) -> None:
        super().__init__(**others)
        self.tables, self.seed, self.strict = dict(tables), seed, strict

    def shard(
        self,
        module: Any,
        params: dict[str, ParameterSharding],
        env: ShardingEnv,
        device: torch.device | None = None,
        module_fqn: str | None = None,
    ) -> Any:
        if not self._is_dynamic(module):
            return super().shard(module, params, env, device, module_fqn)  # type: ignore[misc]
        with agreement(f"dynamic tables of {module_fqn or type(module).__name__}", env.process_group) as settings:
            self._expect_feasible(module, env, device)
            fused_params = {**(self.fused_params or {}), SETTINGS: (self.tables, self.seed)}  # type: ignore[attr-defined]
            sharded = self._dynamic_type(module, params, env, fused_params, device, module_fqn=module_fqn)
            sharded.strict = self.strict
            settings.update(self._settings_of(module, params, sharded))
        return sharded

    def _settings_of(self, module: Any, params: Mapping[str, ParameterSharding], sharded: Any) -> dict[str, str]:
        """Returns the settings of dynamic tables that all ranks must share, for ``agreement()``."""
        configs = {config.name: config for config in configs_of(module) if config.name in self.tables}
        resolved = {config.name: config for kernel in sharded.kernels() for config in kernel.merged.tables}
        settings = settings_of([resolved[name] for name in configs], [])
        for name, config in configs.items():
            settings[f"features of table {name}"] = ", ".join(config.feature_names)
            settings[f"pooling of table {name}"] = str(getattr(config, "pooling", None))
            settings[f"plan of table {name}"] = f"{params[name].sharding_type} on ranks {params[name].ranks}"
        return settings | {"seed": str(self.seed), "strict": str(self.strict)}

    def _is_dynamic(self, module: Any) -> bool:
        return any(config.name in self.tables for config in configs_of(module))

    def _expect_feasible(self, module: Any, env: ShardingEnv, device: torch.device | None) -> None:
        if torch.device(module.device).type != "meta":
            raise ValueError(
                "make collections of dynamic tables on device 'meta': their embeddings are in tables alone"
            )
        resolve_device(device)
        if isinstance(env, ShardingEnv2D):
            raise ValueError("dynamic tables are not for 2D parallelism")
        if self.qcomm_codecs_registry:  # type: ignore[attr-defined]
            raise ValueError("the exchange of dynamic tables has no codecs")

    # TorchRec's interface for the planner

    def shardable_parameters(self, module: Any) -> dict[str, torch.nn.Parameter]:
        parameters: dict[str, torch.nn.Parameter] = super().shardable_parameters(module)  # type: ignore[misc]
        if self._is_dynamic(module):
            for config in configs_of(module):
                if config.name not in self.tables:
                    continue
                fused_params = self.fused_params  # type: ignore[attr-defined]
                setattr(parameters[config.name], _MARK, (self.tables[config.name], config, fused_params))
        return parameters

    def sharding_types(self, compute_device_type: str) -> list[str]:
        types: list[str] = super().sharding_types(compute_device_type)  # type: ignore[misc]
        return types if SHARDING in types else [*types, SHARDING]

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        theirs: list[str] = super().compute_kernels(sharding_type, compute_device_type)  # type: ignore[misc]
        if sharding_type not in super().sharding_types(compute_device_type):  # type: ignore[misc]
            theirs = []
        return [*theirs, KERNEL] if sharding_type == SHARDING else theirs


def table_bytes(parameter: torch.Tensor) -> int:
    """Returns the bytes of all rows that are expected in a dynamic table.

    Args:
        parameter: the table's parameter, as ``shardable_parameters()`` returns it.
    """
    settings, config, fused_params = getattr(parameter, _MARK)
    params = {**(fused_params or {})}
    optimizer_class = getattr(parameter, "_optimizer_classes", [None])[0]
    if optimizer_class is not None:
        params.update(getattr(parameter, "_optimizer_kwargs", [{}])[0])
        params["optimizer"] = optimizer_type_to_emb_opt_type(optimizer_class)
    if "lr" in params:
        params["learning_rate"] = params.pop("lr")
    return (settings.expected_rows or int(config.num_embeddings)) * row_bytes(settings, config, params)


def row_bytes(settings: DynamicTable, config: Any, fused_params: Mapping[str, Any]) -> int:
    """Returns the bytes of a float32 row: embedding, optimizer state, key, lookup count and step."""
    table = MergedTable((settings.resolve(config, fused_params),))
    state_size = table.build(seed=0, num_ranks=1, thread_pool=ThreadPool(1)).state_size
    return 4 * (int(config.embedding_dim) + state_size) + KEY_AND_NOTE_BYTES


class DynamicEmbeddingCollectionSharder(_DynamicSharder, EmbeddingCollectionSharder):  # type: ignore[misc]
    """Shards ``EmbeddingCollection``."""

    _dynamic_type = DynamicEmbeddingCollection

    def _expect_feasible(self, module: EmbeddingCollection, env: ShardingEnv, device: torch.device | None) -> None:
        super()._expect_feasible(module, env, device)
        if self._use_index_dedup:
            raise ValueError("dynamic tables find duplicates themselves: leave use_index_dedup out")


class DynamicEmbeddingBagCollectionSharder(_DynamicSharder, EmbeddingBagCollectionSharder):  # type: ignore[misc]
    """Shards ``EmbeddingBagCollection``."""

    _dynamic_type = DynamicEmbeddingBagCollection

    def _expect_feasible(self, module: EmbeddingBagCollection, env: ShardingEnv, device: torch.device | None) -> None:
        super()._expect_feasible(module, env, device)
        dynamic = [config for config in configs_of(module) if config.name in self.tables]
        if module.is_weighted() and any(config.pooling == PoolingType.MEAN for config in dynamic):
            raise ValueError("there is no weighted mean, as in torch.nn.EmbeddingBag")
