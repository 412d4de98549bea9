# SPDX-License-Identifier: Apache-2.0
"""TorchRec's planner for models with dynamic tables, and ``shard()``, which plans and shards a model."""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch
import torch.distributed as dist
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.model_parallel import DataParallelWrapper, DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.planner.constants import BATCH_SIZE
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.estimator.config import EmbeddingPerfEstimatorConfig
from torchrec.distributed.planner.estimator.estimator import EmbeddingPerfEstimatorFactory
from torchrec.distributed.planner.shard_estimators import EmbeddingStorageEstimator
from torchrec.distributed.planner.types import ShardingOption, Storage
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ModuleSharder, ShardingEnv, ShardingPlan

from headway.embedding.devices import resolve_device
from headway.torchrec.settings import DynamicTable
from headway.torchrec.sharded_collections import KERNEL, SHARDING, configs_of
from headway.torchrec.sharders import (
    DynamicEmbeddingBagCollectionSharder,
    DynamicEmbeddingCollectionSharder,
    table_bytes,
)


class _Speeds(EmbeddingPerfEstimatorConfig):  # type: ignore[misc]
    """Performance estimates: a dynamic table has the bandwidth that TorchRec assumes for its fused kernel."""

    def get_device_bw(self, compute_device: str, compute_kernel: str, *others: Any, **more: Any) -> float | None:
        kernel = EmbeddingComputeKernel.FUSED.value if compute_kernel == KERNEL else compute_kernel
        bandwidth: float | None = super().get_device_bw(compute_device, kernel, *others, **more)
        return bandwidth


class _StorageEstimator(EmbeddingStorageEstimator):  # type: ignore[misc]
    """Memory estimates: a dynamic table has the bytes of its expected rows.

    TorchRec would take them from ``num_embeddings``. For a virtual table it counts the memory of a batch alone, so
    dynamic tables are virtual to it, and the bytes of their rows are added.
    """

    def __init__(
        self, tables: Mapping[str, DynamicTable], *, topology: Topology, constraints: Mapping[str, ParameterConstraints]
    ) -> None:
        virtual = {name: replace(constraints[name], use_virtual_table=True) for name in tables}
        super().__init__(topology=topology, constraints={**constraints, **virtual})

    def estimate(self, sharding_options: list[ShardingOption], *others: Any, **more: Any) -> None:
        super().estimate(sharding_options, *others, **more)
        for option in sharding_options:
            if option.compute_kernel == KERNEL:
                self._add_rows(option)

    def _add_rows(self, option: ShardingOption) -> None:
        on_cpu = self._topology.compute_device == "cpu"
        bytes_total, num_rows = table_bytes(option.tensor), option.tensor.shape[0]
        for shard in option.shards:
            share = math.ceil(bytes_total * shard.size[0] / num_rows)
            shard.storage += Storage(hbm=0, ddr=share) if on_cpu else Storage(hbm=share, ddr=0)


class _Enumerator(EmbeddingEnumerator):  # type: ignore[misc]
    """Allows only our kernel for dynamic tables, and only TorchRec's kernels for other tables."""

    def __init__(self, tables: Mapping[str, DynamicTable], **others: Any) -> None:
        super().__init__(**others)
        self._dynamic = frozenset(tables)

    def _filter_compute_kernels(self, name: str, allowed_compute_kernels: list[str], sharding_type: str) -> list[str]:
        allowed = [each for each in allowed_compute_kernels if (each == KERNEL) == (name in self._dynamic)]
        kernels: list[str] = super()._filter_compute_kernels(name, allowed, sharding_type)
        return kernels


class _Planner(EmbeddingShardingPlanner):  # type: ignore[misc]
    """Planner whose errors reach all ranks. Rank 0 plans; in TorchRec, if it fails, the other ranks keep waiting."""

    def collective_plan(
        self, module: torch.nn.Module, sharders: Any = None, pg: dist.ProcessGroup | None = None
    ) -> ShardingPlan:
        group = dist.group.WORLD if pg is None else pg
        if group is None:
            raise ValueError("torch.distributed is not initialised")
        plan, error = None, None
        if group.rank() == 0:
            try:
                plan = self.plan(module, get_default_sharders() if sharders is None else sharders)
            except Exception as failure:
                error = failure
        outcome = [(plan, None if error is None else _portable(error))]
        dist.broadcast_object_list(outcome, group=group, group_src=0)
        plan, theirs = outcome[0]
        if error is not None:
            raise error
        if theirs is not None:
            raise theirs
        return plan


def _portable(error: Exception) -> Exception:
    """Returns the error if it survives pickling, else a RuntimeError with its type and message."""
    try:
        copy: Exception = pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"planning failed: {type(error).__name__}: {error}")
    return copy


def sharders(tables: Mapping[str, DynamicTable], *, seed: int = 0, strict: bool = False) -> list[ModuleSharder]:
    """Returns a sharder for each kind of collection: with dynamic tables, and ``PECEmbeddingCollection`` without any.

    Args:
        tables: the dynamic tables by name.
        seed: seed of initial embeddings. An id begins with the same embedding on any number of ranks.
        strict: raise ``headway.embedding.NoRoomError`` on all ranks if an id gets no row because a table is full.
    """
    found: list[ModuleSharder] = [
        DynamicEmbeddingCollectionSharder(tables, seed=seed, strict=strict),
        DynamicEmbeddingBagCollectionSharder(tables, seed=seed, strict=strict),
    ]
    if find_spec("torchrec.distributed.pec_embedding") is not None:  # TorchRec 1.6 does not have it.
        from headway.torchrec.pec_sharder import StaticPECEmbeddingCollectionSharder

        found.append(StaticPECEmbeddingCollectionSharder(tables))
    return found


def planner(
    tables: Mapping[str, DynamicTable],
    *,
    topology: Topology,
    constraints: Mapping[str, ParameterConstraints] | None = None,
    batch_size: int = BATCH_SIZE,
    **others: Any,
) -> EmbeddingShardingPlanner:
    """Returns TorchRec's planner for a model with dynamic tables, which are sharded over all ranks.

    Args:
        tables: the dynamic tables by name.
        topology: ranks and their memory.
        constraints: constraints of any tables by name.
        batch_size: samples per rank and step, for TorchRec's estimates.
        others: other arguments of ``EmbeddingShardingPlanner``.
    Raises:
        ValueError: constraints exclude the sharding type or kernel that a dynamic table needs.
    """
    merged = _constrain(tables, constraints or {})
    estimators = [
        EmbeddingPerfEstimatorFactory.create_with_config(_Speeds(), topology=topology, constraints=merged),
        _StorageEstimator(tables, topology=topology, constraints=merged),
    ]
    enumerator = _Enumerator(tables, topology=topology, batch_size=batch_size, constraints=merged, estimator=estimators)
    return _Planner(topology=topology, batch_size=batch_size, enumerator=enumerator, constraints=merged, **others)


def _constrain(
    tables: Mapping[str, DynamicTable], constraints: Mapping[str, ParameterConstraints]
) -> dict[str, ParameterConstraints]:
    merged = dict(constraints)
    for name in tables:
        given = merged.get(name, ParameterConstraints())
        for asked, needed in ((given.sharding_types, SHARDING), (given.compute_kernels, KERNEL)):
            if asked and needed not in asked:
                raise ValueError(f"table {name}: a dynamic table needs {needed}, but constraints allow {asked} only")
        merged[name] = replace(given, sharding_types=[SHARDING], compute_kernels=[KERNEL])
    return merged


def shard(
    model: torch.nn.Module,
    tables: Mapping[str, DynamicTable],
    *,
    process_group: dist.ProcessGroup | None = None,
    device: torch.device | str | None = None,
    topology: Topology | None = None,
    constraints: Mapping[str, ParameterConstraints] | None = None,
    batch_size: int = BATCH_SIZE,
    seed: int = 0,
    strict: bool = False,
    data_parallel_wrapper: DataParallelWrapper | None = None,
) -> DistributedModelParallel:
    """Plans and shards a model. All ranks must call it.

    Args:
        model: the model; its collections of dynamic tables are on device ``meta``.
        tables: the dynamic tables by name. All other tables stay TorchRec's.
        process_group: a group with a backend for tensors of ``device``; None: the default group.
        device: device of model and tables: None is the CPU, ``cuda`` the current CUDA device.
        topology, constraints, batch_size: see ``planner()``.
        seed, strict: see ``sharders()``.
        data_parallel_wrapper: wrapper of the other parameters, as in ``DistributedModelParallel``; None: DDP.
    Raises:
        ValueError: a table does not exist or is configured for something that dynamic tables do not support, or the
            topology has another kind of device.
    """
    _expect_tables(model, tables)
    target = resolve_device(device)
    group = dist.group.WORLD if process_group is None else process_group
    if group is None:
        raise ValueError("torch.distributed is not initialised")
    topology = topology or _topology(target, group.size())
    if topology.compute_device != target.type:
        raise ValueError(f"the topology is of {topology.compute_device} devices, but the model is to be on {target}")
    makers = sharders(tables, seed=seed, strict=strict)
    plan = planner(tables, topology=topology, constraints=constraints, batch_size=batch_size).collective_plan(
        model, makers, group
    )
    env = ShardingEnv.from_process_group(group)
    return DistributedModelParallel(
        model, env=env, device=target, plan=plan, sharders=makers, data_parallel_wrapper=data_parallel_wrapper
    )


def _topology(device: torch.device, num_ranks: int) -> Topology:
    """Returns TorchRec's default topology, with the memory size of the actual GPU."""
    if device.type == "cpu":
        return Topology(world_size=num_ranks, compute_device="cpu")
    hbm_bytes = torch.cuda.get_device_properties(device).total_memory
    return Topology(world_size=num_ranks, compute_device="cuda", hbm_cap=hbm_bytes)


def _expect_tables(model: torch.nn.Module, tables: Mapping[str, DynamicTable]) -> None:
    kinds = tuple(sharder.module_type for sharder in sharders(tables))
    there = {config.name for module in model.modules() if isinstance(module, kinds) for config in configs_of(module)}
    missing = [name for name in tables if name not in there]
    if missing:
        raise ValueError(f"the model has no tables {', '.join(missing)}; it has: {', '.join(sorted(there))}")
