# SPDX-License-Identifier: Apache-2.0
"""TorchRec's sharded collections, extended by dynamic tables."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torchrec import KeyedJaggedTensor
from torchrec.distributed.embedding import EmbeddingCollectionAwaitable, ShardedEmbeddingCollection
from torchrec.distributed.embedding_sharding import EmbeddingShardingInfo, KJTListSplitsAwaitable
from torchrec.distributed.embedding_types import EmbeddingComputeKernel, KJTList
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.distributed.types import Awaitable, ShardingEnv, ShardingType
from torchrec.modules.embedding_configs import PoolingType

from headway.embedding import NoRoomError
from headway.embedding.devices import resolve_device
from headway.embedding.merging import merge_tables
from headway.embedding.process_groups import gather_scalars
from headway.embedding.state_records import add_records, take_records
from headway.torchrec.exchange import Batch, CountsAwaitable, LocalKeysAwaitable
from headway.torchrec.feature_order import FeatureOrder
from headway.torchrec.kernel import MEMBER, TableKernel
from headway.torchrec.sequences import SequencesAwaitable
from headway.torchrec.settings import DynamicTable, GroupMember
from headway.torchrec.sharding import DynamicLookup, DynamicSharding

#: Key in fused_params by which the sharder passes the ``DynamicTable``s by name, and the seed.
SETTINGS = "headway_settings"

#: Sharding type of dynamic tables within a collection. It differs from row-wise, which static tables may have.
DYNAMIC = "headway_dynamic"

KERNEL = EmbeddingComputeKernel.CUSTOMIZED_KERNEL.value
SHARDING = ShardingType.ROW_WISE.value


def resolve_settings(
    module: Any, sharding_infos: Mapping[str, list[EmbeddingShardingInfo]]
) -> dict[str, list[EmbeddingShardingInfo]]:
    """Resolves the configuration of each dynamic table, and puts it into fused_params. Checks every entry of them.

    Args:
        module: the unsharded collection.
        sharding_infos: its tables by sharding type.
    Returns:
        the static tables by sharding type, and the dynamic ones under ``DYNAMIC``.
    Raises:
        ValueError: a dynamic table has a plan or setting that it does not support.
    """
    configs = {config.name: config for config in configs_of(module)}
    result: dict[str, list[EmbeddingShardingInfo]] = {}
    resolved = []
    for sharding_type, infos in sharding_infos.items():
        for info in infos:
            name = info.embedding_config.name
            tables, seed = info.fused_params.pop(SETTINGS)
            if name not in tables:
                result.setdefault(sharding_type, []).append(info)
                continue
            _expect_plan(name, info.param_sharding)
            settings: DynamicTable = tables[name]
            config = settings.resolve(configs[name], info.fused_params)
            info.fused_params = {MEMBER: GroupMember(config, seed)}
            resolved.append(config)
            result.setdefault(DYNAMIC, []).append(info)
    merge_tables(resolved)  # Raises if two names have the same table id.
    return result


def configs_of(module: Any) -> list[Any]:
    """Returns the table configurations of an unsharded collection."""
    by_kind = module.embedding_bag_configs if hasattr(module, "embedding_bag_configs") else module.embedding_configs
    configs: list[Any] = by_kind()
    return configs


def _expect_plan(name: str, sharding: Any) -> None:
    if (sharding.sharding_type, sharding.compute_kernel) != (SHARDING, KERNEL):
        raise ValueError(
            f"table {name}: the plan has {sharding.sharding_type} with kernel {sharding.compute_kernel}, but a dynamic "
            f"table needs {SHARDING} with {KERNEL}, as headway.torchrec.planner() plans it"
        )
    if sharding.key_value_params is not None:
        raise ValueError(f"table {name}: dynamic tables have nothing for key_value_params")


class _DynamicCollection:
    """Mixin with the common part of both kinds of collections. It precedes TorchRec's class in the list of bases."""

    strict = False  #: Raise NoRoomError if an id gets no row because its table is full.
    _tables_attribute: str  #: Name of the attribute with one submodule per table.
    _configs_attribute: str  #: Name of the attribute with the tables' configurations.
    module_sharding_plan: Mapping[str, Any]
    _lookups: list[Any]
    _env: ShardingEnv
    _device: torch.device | None

    @classmethod
    def create_grouped_sharding_infos(cls, module: Any, *others: Any) -> dict[str, list[EmbeddingShardingInfo]]:
        infos: dict[str, list[EmbeddingShardingInfo]]
        infos = super().create_grouped_sharding_infos(module, *others)  # type: ignore[misc]
        return resolve_settings(module, infos)

    def _dynamic_lookups(self) -> Iterator[DynamicLookup]:
        return (lookup for lookup in self._lookups if isinstance(lookup, DynamicLookup))

    def kernels(self) -> Iterator[TableKernel]:
        """The kernels of this rank, one for each merged dynamic table."""
        for lookup in self._dynamic_lookups():
            yield from lookup.kernels

    @functools.cached_property
    def _feature_order(self) -> FeatureOrder:
        names = (name for sharding in self._shardings() for name in sharding.feature_names())
        return FeatureOrder(names, resolve_device(self._device))

    def _shardings(self) -> Iterator[Any]:
        """Yields TorchRec's shardings in the order of the lookups."""
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """Initialises static tables. Rows of dynamic tables are initialised when they are inserted."""
        every: list[Any] = getattr(self, self._configs_attribute)
        plan = self.module_sharding_plan
        setattr(self, self._configs_attribute, [each for each in every if plan[each.name].compute_kernel != KERNEL])
        try:
            super().reset_parameters()  # type: ignore[misc]
        finally:
            setattr(self, self._configs_attribute, every)

    # TorchRec's context carries the Batch from the exchange of ids to the exchange of embeddings.

    def input_dist(self, ctx: Any, features: Any) -> KJTListSplitsAwaitable:
        """Sorts the features, starts the exchange of ids, and puts the batches of dynamic tables into the context."""
        ordered = self._feature_order.apply(features)
        for lookup in self._dynamic_lookups():
            lookup.counts_refused = self.strict
        awaitable: KJTListSplitsAwaitable = super().input_dist(ctx, ordered)  # type: ignore[misc]
        for sharding_ctx, of_ids in zip(ctx.sharding_contexts, awaitable.awaitables, strict=True):
            if isinstance(of_ids, CountsAwaitable | LocalKeysAwaitable):
                sharding_ctx.batch = of_ids.batch
        return awaitable

    def compute_and_output_dist(self, ctx: Any, input: KJTList) -> Awaitable:
        awaitable = super().compute_and_output_dist(ctx, input)  # type: ignore[misc]
        if self.strict:
            batches = [each.batch for each in ctx.sharding_contexts if hasattr(each, "batch")]
            self._expect_room(batches)
        return awaitable

    def _expect_room(self, batches: Sequence[Batch]) -> None:
        """Raises NoRoomError on all ranks if a key got no row. Embeddings are being sent already, so no rank hangs."""
        own = torch.stack([batch.lookup.own_refused(batch.begun) for batch in batches]).sum()
        refused = int(gather_scalars(own, self._env.process_group).sum())
        if refused > 0:
            raise NoRoomError(f"{refused} ids got no row: their table is full")

    # State

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)  # type: ignore[misc]
        add_records([kernel.shard for kernel in self.kernels()], destination, f"{prefix}{self._tables_attribute}.")

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        kernels = list(self.kernels())
        read = take_records(
            [kernel.shard for kernel in kernels],
            state_dict,
            f"{prefix}{self._tables_attribute}.",
            missing_keys=missing_keys,
            unexpected_keys=unexpected_keys,
            error_msgs=error_msgs,
        )
        super()._load_from_state_dict(  # type: ignore[misc]
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        # All or nothing: make all new tables, which may fail, before the first one is replaced.
        made = [(kernel, kernel.shard_of(records)) for kernel, records in zip(kernels, read, strict=True) if records]
        for kernel, shard in made:
            kernel.replace_by(shard)
        for lookup in self._dynamic_lookups():
            lookup.replace_tables()


class DynamicEmbeddingCollection(_DynamicCollection, ShardedEmbeddingCollection):  # type: ignore[misc]
    """A sharded ``EmbeddingCollection``: one embedding per id."""

    _tables_attribute = "embeddings"
    _configs_attribute = "_embedding_configs"

    def _shardings(self) -> Iterator[Any]:
        return iter(self._sharding_type_to_sharding.values())

    def input_dist(self, ctx: Any, features: KeyedJaggedTensor) -> Awaitable:
        if isinstance(features, KeyedJaggedTensor) and features.variable_stride_per_key():
            raise ValueError(
                "sequences with a batch size for each feature would learn nothing: TorchRec reorders them by an "
                "operator that has no gradient on the CPU"
            )
        return super().input_dist(ctx, features)

    def compute_and_output_dist(self, ctx: Any, input: KJTList) -> SequencesAwaitable:
        return self._sequences(super().compute_and_output_dist(ctx, input))

    def output_dist(self, ctx: Any, output: list[torch.Tensor]) -> SequencesAwaitable:
        return self._sequences(super().output_dist(ctx, output))

    def _sequences(self, theirs: EmbeddingCollectionAwaitable) -> SequencesAwaitable:
        """Replaces TorchRec's awaitable, which concatenates the embeddings of all features and splits them again."""
        dynamic = [isinstance(lookup, DynamicLookup) for lookup in self._lookups]

        def ours(values: Sequence[Any]) -> list[Any]:
            return [value for value, is_ours in zip(values, dynamic, strict=True) if is_ours]

        found = SequencesAwaitable(
            ours(theirs._awaitables_per_sharding),
            ours(theirs._features_per_sharding),
            ours(self._embedding_names_per_sharding),
            others=None if all(dynamic) else theirs,
            need_indices=self._need_indices,
        )
        for name in ("_awaitables_per_sharding", "_features_per_sharding", "_embedding_names_per_sharding"):
            values = zip(getattr(theirs, name), dynamic, strict=True)
            setattr(theirs, name, [value for value, is_ours in values if not is_ours])
        if theirs._sharding_types:
            theirs._sharding_types = [each for each in theirs._sharding_types if each != DYNAMIC]
        return found

    @classmethod
    def create_embedding_sharding(
        cls,
        sharding_type: str,
        sharding_infos: list[EmbeddingShardingInfo],
        env: ShardingEnv,
        device: torch.device | None = None,
        qcomm_codecs_registry: Any = None,
    ) -> Any:
        if sharding_type == DYNAMIC:
            return DynamicSharding(sharding_infos, env, device)
        return super().create_embedding_sharding(sharding_type, sharding_infos, env, device, qcomm_codecs_registry)


class DynamicEmbeddingBagCollection(_DynamicCollection, ShardedEmbeddingBagCollection):  # type: ignore[misc]
    """A sharded ``EmbeddingBagCollection``: one sum or mean per bag, pooled on the rank that has the bag."""

    _tables_attribute = "embedding_bags"
    _configs_attribute = "_embedding_bag_configs"

    def __init__(self, *arguments: Any, **others: Any) -> None:
        super().__init__(*arguments, **others)
        self._leave_means_to_exchange()

    def _leave_means_to_exchange(self) -> None:
        """Makes TorchRec divide the means of static tables only: the exchange of dynamic tables returns means."""
        plan = self.module_sharding_plan
        configs = [config for config in self._embedding_bag_configs if plan[config.name].sharding_type == SHARDING]
        of_kind: dict[bool, set[str]] = {True: set(), False: set()}  # Features of dynamic tables, and of static ones.
        for config in configs:
            of_kind[plan[config.name].compute_kernel == KERNEL].update(config.feature_names)
        means = set(self._pooling_type_to_rs_features[PoolingType.MEAN.value])
        in_both = sorted(of_kind[True] & of_kind[False] & means)
        if in_both:
            raise ValueError(
                f"the features {', '.join(in_both)} have a mean in a dynamic table and in a row-wise static one, which "
                "TorchRec cannot divide apart: put one of the tables into a collection of its own"
            )
        ours = [name for name in self._pooling_type_to_rs_features[PoolingType.MEAN.value] if name in of_kind[True]]
        theirs = [name for name in self._pooling_type_to_rs_features[PoolingType.MEAN.value] if name not in ours]
        self._pooling_type_to_rs_features[PoolingType.MEAN.value] = theirs
        self._pooling_type_to_rs_features[PoolingType.SUM.value] += ours
        self._has_mean_pooling_callback = bool(theirs)

    def _shardings(self) -> Iterator[Any]:
        return iter(self._embedding_shardings)

    def input_dist(self, ctx: Any, features: KeyedJaggedTensor) -> Awaitable:
        if self._is_weighted and torch.is_grad_enabled() and isinstance(features, KeyedJaggedTensor):
            weights = features.weights_or_none()
            if weights is not None and weights.requires_grad:
                raise ValueError(
                    "weights of ids get no gradient from dynamic tables, as TorchRec drops it where it permutes or "
                    "exchanges them: detach them"
                )
        return super().input_dist(ctx, features)

    def update_shards(self, *arguments: Any) -> None:
        raise NotImplementedError("dynamic tables do not move between ranks; save and load their state")

    @classmethod
    def create_embedding_bag_sharding(
        cls,
        sharding_infos: list[EmbeddingShardingInfo],
        env: ShardingEnv,
        device: torch.device | None = None,
        permute_embeddings: bool = False,
        qcomm_codecs_registry: Any = None,
    ) -> Any:
        if MEMBER in sharding_infos[0].fused_params:
            return DynamicSharding(sharding_infos, env, device)
        return super().create_embedding_bag_sharding(
            sharding_infos, env, device, permute_embeddings, qcomm_codecs_registry
        )


def statistics(model: torch.nn.Module) -> dict[str, dict[str, int]]:
    """Returns sizes and counters of this rank's tables.

    Args:
        model: a sharded model.
    Returns:
        rows, bytes, and numbers of inserted, evicted and refused keys and so on, as in
        ``headway.embedding.HashTableCollection.statistics()``, by ``<path of the collection>.<merged table>``.
    """
    return {
        f"{path}.{kernel.merged.name}": {**kernel.table.size(), **kernel.table.statistics()}
        for path, module in model.named_modules()
        if isinstance(module, _DynamicCollection)
        for kernel in module.kernels()
    }
