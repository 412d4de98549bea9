"""Tables of embeddings for the features of a model, as one module."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from headway._embedding import Keys, Table
from headway.embedding import checkpoint
from headway.embedding.config import FeatureConfig, TableConfig
from headway.embedding.features import Features, GroupInput, group_features
from headway.embedding.merging import group_of_tables, merge_tables
from headway.embedding.optimizer import TableOptimizer
from headway.embedding.sharded_lookup import Dedup, Lookup, ShardedLookup


class NoRoomError(RuntimeError):
    """Ids got no row because a table was full."""


@dataclass(eq=False)
class PendingBatch:
    """A batch whose lookup has begun; ``HashTableCollection`` takes it in the place of its features."""

    inputs: list[GroupInput]
    lookup: Lookup


class HashTableCollection(nn.Module):
    """Looks ids up in tables that take any 64-bit id, and learns their vectors.

    Tables of equal configuration are merged; ranks of ``process_group`` share the ids out, and look up, exchange and
    learn together, so all of them must call alike. ``optimizer`` updates the tables; with ``eval()`` a lookup inserts
    and counts nothing.

    Args:
        tables: what tables there are.
        features: what is looked up in them.
        process_group: of CPU tensors; None: this rank has all ids.
        dedup: whether duplicates are found before the exchange (``first``), at the owner (``second``), or ``both``.
            Results do not depend on it.
        seed: of initial vectors.
        num_threads: for tables; None: as many as torch has.
        strict: raise NoRoomError where an id gets no row because a table is full, instead of counting it.

    Raises:
        ValueError: names are used twice, or a feature's table does not exist.
    """

    def __init__(
        self,
        *,
        tables: Iterable[TableConfig],
        features: Iterable[FeatureConfig],
        process_group: dist.ProcessGroup | None = None,
        dedup: Dedup = "both",
        seed: int = 0,
        num_threads: int | None = None,
        strict: bool = False,
    ) -> None:
        super().__init__()
        self.groups = merge_tables(tables)
        self.features = list(features)
        self.process_group = process_group
        self.rank = 0 if process_group is None else process_group.rank()
        self.num_ranks = 1 if process_group is None else process_group.size()
        self.step = 0  #: updates so far
        self._strict = strict
        self._features_of = self._assign_features()
        self._seed = seed
        self._num_threads = torch.get_num_threads() if num_threads is None else num_threads
        self.tables = self._build_tables()
        self._lookup = ShardedLookup(self.tables, group=process_group, dedup=dedup, num_threads=self._num_threads)
        # They make autograd call us, and carry "not finite" to a GradScaler; they are no parameters of the model.
        self._anchors = [torch.zeros(1, requires_grad=True) for _ in self.groups]
        self._gradients: list[list[_Gradient]] = [[] for _ in self.groups]
        self._in_use: weakref.WeakSet[Lookup] = weakref.WeakSet()
        self.optimizer = TableOptimizer(self, self.groups, self._anchors)
        self._begin_step()

    def _build_tables(self) -> list[Table]:
        return [
            group.build(seed=self._seed, num_ranks=self.num_ranks, num_threads=self._num_threads)
            for group in self.groups
        ]

    def _assign_features(self) -> list[list[FeatureConfig]]:
        group_of = group_of_tables(self.groups)
        features_of: list[list[FeatureConfig]] = [[] for _ in self.groups]
        names: set[str] = set()
        for feature in self.features:
            if feature.name in names:
                raise ValueError(f"feature {feature.name} is there twice")
            if feature.table not in group_of:
                raise ValueError(f"feature {feature.name}: there is no table {feature.table}")
            names.add(feature.name)
            features_of[group_of[feature.table]].append(feature)
        for group, features in zip(self.groups, features_of, strict=True):
            if not features:
                raise ValueError(f"no feature uses the table {group.name}")
        return features_of

    # Lookups

    def begin(self, features: Features) -> PendingBatch:
        """Starts the lookup of a batch, so that the number of keys is on its way while the model still computes.

        Args:
            features: a ``KeyedJaggedTensor``, or by name (values, lengths) or (values, lengths, weights) with values
                (K,) int64, lengths (B,) and weights (K,) float32. Features that no table has are not looked at.
        Raises:
            ValueError: a feature is missing, or its tensors do not fit each other.
        """
        inputs = [group_features(features, configs) for configs in self._features_of]
        lookup = self._lookup.begin([each.keys for each in inputs], step=self.step + 1, inserts=self.training)
        return PendingBatch(inputs, lookup)

    def forward(self, features: Features | PendingBatch) -> dict[str, torch.Tensor]:
        """Vectors of a batch.

        Returns:
            by feature, (B, dim) where it is pooled, else (K, dim) with a row for each id.
        Raises:
            NoRoomError: with ``strict``, after the exchange, so that no rank waits for another one.
        """
        batch = features if isinstance(features, PendingBatch) else self.begin(features)
        self._lookup.finish(batch.lookup)
        outputs = _Lookup.apply(self, batch, *self._anchors)  # type: ignore[no-untyped-call]
        batch.lookup.vectors_UD.clear()
        if self._strict and batch.lookup.refused > 0:
            raise NoRoomError(f"{batch.lookup.refused} ids got no row on rank {self.rank}: the table is full")
        by_name = {}
        for configs, each, output in zip(self._features_of, batch.inputs, outputs, strict=True):
            for config, vectors in zip(configs, output.split(each.num_bags), strict=True):
                by_name[config.name] = vectors
        return {feature.name: by_name[feature.name] for feature in self.features}

    # Learning

    def apply_gradients(self, rates: Sequence[float], grad_scale: float = 1.0) -> None:
        """Updates the rows that have gradients; ``optimizer.step()`` calls it."""
        self.step += 1
        for table, rate, gradients in zip(self.tables, rates, self._gradients, strict=True):
            if not gradients:
                continue
            keys, rows, values = gradients[0].keys, gradients[0].rows_W, gradients[0].values_WD
            if len(gradients) > 1 or self._lookup.has_duplicates():
                keys, values = self._lookup.sum_of([(each.keys, each.values_WD) for each in gradients])
                rows, _ = table.find(keys)
            elif gradients[0].is_late:
                rows, _ = table.find(keys)
            table.update(keys, rows, values if grad_scale == 1 else values / grad_scale, lr=rate, step=self.step)
        self.drop_gradients()
        self._begin_step()

    def drop_gradients(self) -> None:
        """Forgets the gradients that were not applied; ``optimizer.zero_grad()`` calls it."""
        for gradients in self._gradients:
            gradients.clear()

    def halve_counts(self) -> None:
        """Makes lookups so far weigh half; rows that become cold give up their float32."""
        for table in self.tables:
            table.halve_counts()

    def _begin_step(self) -> None:
        oldest = min((lookup.step for lookup in self._in_use), default=self.step + 1)
        for table in self.tables:
            table.begin_step(self.step + 1, oldest)

    def _backward(self, batch: PendingBatch, gradients_BD: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        lookup = batch.lookup
        is_first = lookup in self._in_use
        self._in_use.discard(lookup)
        sums = [
            self._lookup.add_up(lookup, number, gradients.contiguous(), each.offsets, each.weights)
            for number, (each, gradients) in enumerate(zip(batch.inputs, gradients_BD, strict=True))
        ]
        anchors = []
        for number, values_WD in enumerate(self._lookup.return_gradients(lookup, sums)):
            part = lookup.parts[number]
            assert part.received is not None and part.rows_W is not None, "gradients come after vectors"
            # A graph that was kept for a second pass does not keep its rows where they were.
            is_late = not is_first and lookup.step <= self.step
            self._gradients[number].append(_Gradient(part.received.keys, part.rows_W, values_WD, is_late))
            # 0, or not a number if any gradient is not finite.
            anchors.append((values_WD.sum() * 0 + sums[number].sum() * 0).reshape(1))
        return anchors

    # Checkpoints

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Makes ``folder`` the checkpoint of all tables: ids, vectors, the optimizer's state, counts and steps.

        All ranks call it between steps. The learning rates are in ``optimizer.state_dict()``.

        Raises:
            CheckpointError: a rank could not write; what was in the folder before is still good.
        """
        checkpoint.save(Path(folder), self.groups, self.tables, step=self.step, process_group=self.process_group)

    def load(self, folder: str | os.PathLike[str], *, strict: bool = True) -> None:
        """Replaces all tables by those of a checkpoint that any number of ranks wrote; all ranks call it.

        Args:
            folder: of ``save()``.
            strict: the checkpoint must have the tables of this collection and no others; else those that it has not
                are empty, and others are passed over.
        Raises:
            CheckpointError: a file is missing, truncated or altered, or a table differs; nothing is changed then.
        """
        tables = self._build_tables()
        self.step = checkpoint.load(Path(folder), self.groups, tables, process_group=self.process_group, strict=strict)
        self.tables[:] = tables
        self.drop_gradients()
        self._begin_step()

    # What is inside

    def statistics(self) -> dict[str, Any]:
        """Of this rank: sizes and counts by merged table, and the traffic of all."""
        tables = {
            group.name: {**table.size(), **table.statistics()}
            for group, table in zip(self.groups, self.tables, strict=True)
        }
        return {"tables": tables, "traffic": asdict(self._lookup.traffic)}

    def extra_repr(self) -> str:
        tables = ", ".join(f"{group.name} (dim {group.config.dim})" for group in self.groups)
        return f"{tables}; {len(self.features)} features on {self.num_ranks} ranks"


@dataclass(frozen=True)
class _Gradient:
    """Of the keys of one lookup that this rank owns."""

    keys: Keys
    rows_W: torch.Tensor
    values_WD: torch.Tensor
    is_late: bool  #: the rows may have moved


class _Lookup(torch.autograd.Function):
    """Hands the vectors of a batch out, and takes their gradients."""

    @staticmethod
    def forward(
        ctx: Any, collection: HashTableCollection, batch: PendingBatch, *anchors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.collection, ctx.batch = collection, batch
        # Its rows stay where they are until its gradients are applied, or its graph is dropped.
        if any(ctx.needs_input_grad):
            collection._in_use.add(batch.lookup)
        return tuple(
            collection._lookup.hand_out(batch.lookup, number, each.offsets, each.weights)
            for number, each in enumerate(batch.inputs)
        )

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        return None, None, *ctx.collection._backward(ctx.batch, gradients)
