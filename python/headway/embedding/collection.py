# SPDX-License-Identifier: Apache-2.0
"""``HashTableCollection``: the dynamic embedding tables of a model, as one module.

A ``TableLookup`` (embedding/torch/tensor_lookup.hpp) looks ids up and keeps gradients. It is a C++ ``ShardedTable`` on
tensors. This module adds configurations, the optimizer and errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from headway._embedding import LookupBatch, TableLookup, ThreadPool
from headway.embedding.agreement import agreement, settings_of
from headway.embedding.anchor import Anchor
from headway.embedding.config import FeatureConfig, NoOptimizer, TableConfig, learning_rate_of
from headway.embedding.devices import resolve_device
from headway.embedding.features import Features, columns_of, tensors_of
from headway.embedding.merging import merge_tables, merged_table_indices, table_id_of
from headway.embedding.optimizer import TableOptimizer, unscaled_by
from headway.embedding.prioritized import PrioritizedUpdates
from headway.embedding.process_groups import GroupOrLocal, gather_scalars, resolve_group
from headway.embedding.sharded_tables import NoRoomError, ShardedTables
from headway.embedding.state_records import import_records
from headway.embedding.table_records import Listing

Dedup = Literal["none", "first", "second", "both"]
#: A batch whose lookup has begun. Pass it to ``HashTableCollection`` instead of the features.
PendingBatch = LookupBatch


class HashTableCollection(ShardedTables):
    """Dynamic embedding tables: looks up arbitrary 64-bit ids, inserts new ones, and trains their embeddings.

    Tables of equal configuration without limits (``max_rows``, ``max_pending``) are merged: they share one hash table
    (merging.py). The ranks of
    ``process_group`` share the ids by hash. All of them must construct the collection, look up, run backward and step
    together, with the same arguments except ``num_threads``. ``optimizer`` updates the tables. A table counts the
    lookups of each id, for admission and eviction. With ``eval()`` a lookup inserts and counts nothing.

    Args:
        tables: the tables.
        features: the features that are looked up in them.
        process_group: a group with a backend for tensors of ``device``; None: the world group if there is one. With
            ``LOCAL``, or without a world group, this rank has all ids.
        dedup: removes duplicates before the exchange (``first``), at the owner (``second``), at ``both``, or nowhere
            (``none``). It changes neither counts nor embeddings, except for the rounding of sums.
        gradient_reduction: ``mean`` divides the sum over ranks by their number, as DDP does; ``sum`` does not.
        lookahead: number of batches that may be looked up before the step of an earlier one. Their rows are not
            removed meanwhile. A gradient of an older lookup searches its row again, and is dropped and counted if there
            is none.
        seed: seed of initial embeddings.
        num_threads: threads of tables on the CPU; None: as many as torch has.
        strict: raise NoRoomError on all ranks if an id gets no row because a table is full, instead of counting it.
            On CUDA it makes each lookup wait for the device.
        prioritized: allow ``read_ahead()``, which hides exchanges of embeddings behind compute. A ``lookahead`` of at
            least 1 is needed. Applies what it defers before anything else is read; see ``drain()``.
        device: device of tables and inputs: the CPU, or a CUDA device (``cuda``: the current one). On CUDA one rank
            never waits for the device, except for a GradScaler or the growth of a table. Several ranks wait once per
            batch, for the sizes of exchanges.

    Raises:
        ValueError: a name is used twice, a feature's table does not exist, an option is not for this device, or ranks
            of the group have different arguments. If one rank raises, all do.
    """

    def __init__(
        self,
        *,
        tables: Iterable[TableConfig],
        features: Iterable[FeatureConfig],
        process_group: GroupOrLocal = None,
        dedup: Dedup = "both",
        gradient_reduction: Literal["mean", "sum"] = "mean",
        lookahead: int = 1,
        seed: int = 0,
        num_threads: int | None = None,
        strict: bool = False,
        prioritized: bool = False,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.process_group = resolve_group(process_group)
        with agreement("HashTableCollection", self.process_group) as settings:
            tables, features = list(tables), list(features)
            self._arguments = (dedup, gradient_reduction, lookahead, seed, num_threads, strict, prioritized, device)
            self._make(tables, features, *self._arguments)
            settings.update(settings_of(tables, features))
            settings.update(
                {
                    "dedup": dedup,
                    "gradient_reduction": gradient_reduction,
                    "lookahead": str(lookahead),
                    "seed": str(seed),
                    "strict": str(strict),
                    "prioritized": str(prioritized),
                    "device": self.device.type,
                }
            )

    def _make(
        self,
        tables: list[TableConfig],
        features: list[FeatureConfig],
        dedup: Dedup,
        gradient_reduction: Literal["mean", "sum"],
        lookahead: int,
        seed: int,
        num_threads: int | None,
        strict: bool,
        prioritized: bool,
        device: torch.device | str | None,
    ) -> None:
        """Builds the members of this rank, without an exchange."""
        self.device = resolve_device(device)
        self.merged_tables = merge_tables(tables)
        self.features = features
        self.rank = 0 if self.process_group is None else self.process_group.rank()
        self.num_ranks = 1 if self.process_group is None else self.process_group.size()
        self.step = 0  #: Optimizer steps so far.
        if gradient_reduction not in ("mean", "sum"):
            raise ValueError(f"gradient_reduction must be mean or sum, not {gradient_reduction!r}")
        if lookahead < 0:
            raise ValueError(f"lookahead must be from 0, not {lookahead}")
        if prioritized and lookahead == 0:
            raise ValueError(
                "prioritized updates need a lookahead of at least 1: rows of a step are updated in the next"
            )
        if num_threads is not None and self.device.type != "cpu":
            raise ValueError(f"num_threads is for tables on the CPU, and these are on {self.device}")
        self.gradient_reduction = gradient_reduction  #: "mean" or "sum".
        self._divisor = self.num_ranks if gradient_reduction == "mean" else 1
        self._lookahead = lookahead
        self._strict = strict
        features_of = self._assign_features()
        self._looked_up = [feature for of_table in features_of for feature in of_table]  #: Adjacent by table.
        self._seed = seed
        default_threads = torch.get_num_threads() if self.device.type == "cpu" else 1
        self._thread_pool = ThreadPool(default_threads if num_threads is None else num_threads)
        self.tables = self._build_tables()
        self._lookup = TableLookup(
            tables=self.tables,
            table_ids=[[table_id_of(table.name) for table in merged.tables] for merged in self.merged_tables],
            hides_unknown=[merged.config.unknown == "zeros" for merged in self.merged_tables],
            names=[feature.name for feature in self._looked_up],
            feature_tables=[table_id_of(feature.table) for feature in self._looked_up],
            poolings=[feature.pooling for feature in self._looked_up],
            group=self.process_group,
            dedup=dedup,
            thread_pool=self._thread_pool,
            device=self.device,
        )
        self._anchors = [
            Anchor.make(self.device, partial(self._lookup.new_gradients, index))
            for index in range(len(self.merged_tables))
        ]
        self.optimizer = TableOptimizer(self, self.merged_tables, self._anchors)
        self._begin_step(self.tables, self.step)
        self._prioritized: PrioritizedUpdates | None = None
        if prioritized and self.num_ranks > 1:
            self._prioritized = PrioritizedUpdates(self._lookup)
        self._may_read_ahead = prioritized

    def _assign_features(self) -> list[list[FeatureConfig]]:
        index_of = merged_table_indices(self.merged_tables)
        features_of: list[list[FeatureConfig]] = [[] for _ in self.merged_tables]
        names: set[str] = set()
        for feature in self.features:
            if feature.name in names:
                raise ValueError(f"feature {feature.name} is there twice")
            if feature.table not in index_of:
                raise ValueError(f"feature {feature.name}: there is no table {feature.table}")
            names.add(feature.name)
            features_of[index_of[feature.table]].append(feature)
        for merged, features in zip(self.merged_tables, features_of, strict=True):
            if not features:
                raise ValueError(f"no feature uses the table {merged.name}")
        return features_of

    # Lookups

    def begin(self, features: Features) -> PendingBatch:
        """Starts the lookup of a batch: ranks exchange their numbers of keys while the model still computes.

        Args:
            features: a ``KeyedJaggedTensor``, or a mapping of names to (values, lengths) or (values, lengths, weights):
                values (K,) int64, lengths (B,), weights (K,) float32, all on ``device``. Weights that require a
                gradient get one. Features without a table are ignored.
        Returns:
            the batch, to be passed to ``forward()``.
        Raises:
            ValueError: a feature is missing, its tensors do not fit each other, or are on another device. Lengths on
                CUDA that do not add up to the number of values are an assertion of the device.
        """
        columns = columns_of(features)
        ids, lengths, weights = zip(*(tensors_of(columns, each.name) for each in self._looked_up), strict=True)
        batch = self._lookup.begin(
            ids,
            lengths,
            weights,
            inserts=self.training and not is_recomputation(),
            evaluates=not self.training,
            counts_refused=self._strict,
        )
        if self._prioritized is not None and self.training and not is_recomputation():
            self._prioritized.begin(batch)
        return batch

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, features: Features | PendingBatch) -> dict[str, torch.Tensor]:
        """Looks up the embeddings of a batch. With ``eval()`` nothing is inserted or counted, even under autograd.

        Activation checkpointing repeats the lookup inside the backward pass. That lookup gives the same embeddings and
        counts nothing.

        Args:
            features: the features as for ``begin()``, or what it returned.
        Returns:
            for each feature name (B, dim) if it is pooled, else (K, dim), one embedding per id.
        Raises:
            NoRoomError: with ``strict``; raised after the exchange, so that no rank waits for another one.
        """
        batch = features if isinstance(features, PendingBatch) else self.begin(features)
        outputs = self._lookup.finish(batch, self._anchors)
        if self._prioritized is not None and self.training and torch.is_grad_enabled() and not is_recomputation():
            self._prioritized.add(batch)
        if self._strict and (refused := self._lookup.num_refused(batch)) > 0:
            raise NoRoomError(f"{refused} ids got no row: their table is full")
        by_name = {feature.name: output for feature, output in zip(self._looked_up, outputs, strict=True)}
        return {feature.name: by_name[feature.name] for feature in self.features}

    def read_ahead(self, batches: Sequence[PendingBatch]) -> None:
        """Reads the rows of the next step's batches, except those that the present step updates.

        All ranks call it with as many batches, after the last forward pass of a step and before its last backward pass.
        Then their keys and most of their embeddings travel during that pass. ``optimizer.step()`` updates the other
        rows first, and sends them. Losses and rows have the same bits as without it. One rank reads nothing ahead.

        Clipping by a norm, and a GradScaler that unscales, need all gradients at once: results are right, but little
        is hidden. If a GradScaler skips a step, rows of the next one keep the number of the step after it. Activation
        checkpointing must not repeat the lookups, and gradients of lookups in ``eval()`` are refused in such a step.

        Args:
            batches: what ``begin()`` returned for the batches of the next step, in ``train()`` mode.
        Raises:
            ValueError: the collection was made without ``prioritized``, or it was called twice in a step.
        """
        if not self._may_read_ahead:
            raise ValueError("read_ahead() needs a collection with prioritized=True")
        if self._prioritized is not None:
            following = self.step + 2  # Lookups of the present step have the number step + 1.
            self._prioritized.read_ahead(batches, step=following, oldest_in_use=max(following - self._lookahead, 0))

    def drain(self) -> None:
        """Applies the gradients that the last ``optimizer.step()`` has deferred after ``read_ahead()``.

        All ranks call it. ``save()``, ``load()`` and every lookup but those read ahead do it by themselves. Other
        methods that read or change rows raise RuntimeError before.
        """
        self._lookup.drain()

    def forget_ahead(self) -> None:
        """Gives up batches that were read ahead and are not looked up, such as at an early end of a loop.

        All ranks call it. The batches cannot be used afterwards; their lookups stay counted. ``load()`` does it too.
        """
        self._lookup.forget_ahead()
        if self._prioritized is not None:
            self._prioritized.end_step()

    def _expect_drained(self) -> None:
        if self._lookup.has_deferred():
            raise RuntimeError("updates of rows are deferred: call drain() on all ranks before")

    def _expect_nothing_ahead(self) -> None:
        self._expect_drained()
        if self._lookup.has_ahead():
            raise RuntimeError("batches were read ahead: look them up, or call forget_ahead() on all ranks before")

    def script_lookup(self, name: str) -> torch.ScriptObject:
        """Returns the lookup as an object of ``torch.classes.headway.TableLookup``, for ``torch.ops.headway.look_up``.

        Its features are ``looked_up_features``, in that order.

        Args:
            name: name of the lookup in this process, by which saved programs refer to it.
        Raises:
            ValueError: another lookup has the name, or this one has another name.
        """
        self._lookup.register_as(name)
        return self._lookup.script_object()

    @property
    def looked_up_features(self) -> list[str]:
        """Names of the features in the order of the lookup: those of a merged table are adjacent."""
        return [feature.name for feature in self._looked_up]

    # Learning

    def apply_gradients(
        self, rates: Sequence[float], divisors: Sequence[float], factors: Sequence[Mapping[str, float]] = ()
    ) -> None:
        """Updates the rows that have gradients. ``optimizer.step()`` calls it.

        Args:
            rates: learning rate of each merged table.
            divisors: divisor of each merged table's gradients: the scale of a GradScaler that is still in them.
            factors: for each merged table, factors of the rate by table name; tables without one have 1.
        Raises:
            ValueError: a rate is negative or not finite; nothing is updated then.
            RuntimeError: a gradient was changed in place since the backward pass, or its table has no optimizer;
                nothing is updated then.
        """
        rates_G = []  # G merged tables; each entry maps table ids to rates.
        for merged, rate, by_name in zip(self.merged_tables, rates, factors or [{}] * len(rates), strict=True):
            learning_rate_of(rate, f"the learning rate of table {merged.name}")
            rates_G.append(
                {
                    table_id_of(each.name): learning_rate_of(
                        rate * by_name.get(each.name, 1.0), f"the learning rate of table {each.name}"
                    )
                    for each in merged.tables
                }
            )
        for index, merged in enumerate(self.merged_tables):
            if self._lookup.has_gradients(index) and isinstance(merged.config.optimizer, NoOptimizer):
                raise RuntimeError(f"table {merged.name} has gradients but no optimizer: give its TableConfig one")
        self._lookup.expect_unchanged()
        self.step += 1
        self._lookup.apply(step=self.step, rates=rates_G, divisors=[each * self._divisor for each in divisors])
        self.drop_gradients()
        if self._prioritized is None or not self._prioritized.end_step():
            self._begin_step(self.tables, self.step)

    def gradient_norm(self) -> torch.Tensor:
        """Returns the L2 norm of the gradients that ``optimizer.step()`` would apply, over all tables and ranks.

        All ranks call it. With a GradScaler call its ``unscale_()`` before.

        Returns:
            () float64, the same bits on all ranks.
        """
        norms = [torch.zeros((), dtype=torch.float64, device=self.device)]
        for index, anchor in enumerate(self._anchors):
            if self._lookup.has_gradients(index):
                norms.append(self._lookup.norm(index) * (unscaled_by(anchor) / self._divisor))
        own = torch.stack(norms).square().sum().sqrt()
        if self.process_group is None or self.num_ranks == 1:
            return own
        return gather_scalars(own, self.process_group).square().sum().sqrt()

    def scale_gradients(self, factor: torch.Tensor | float) -> None:
        """Multiplies pending gradients by a number or a () tensor, which must be the same on all ranks."""
        self._lookup.scale(torch.as_tensor(factor))

    def drop_gradients(self) -> None:
        """Drops pending gradients. ``optimizer.zero_grad()`` calls it."""
        self._lookup.drop()
        for anchor in self._anchors:
            anchor.grad = None

    def _replace_tables(self) -> None:
        self._lookup.replace_tables(self.tables)

    def __deepcopy__(self, memo: dict[int, Any]) -> HashTableCollection:
        """Copies rows, optimizer states, counts, steps and learning rates, such as for an average of weights.

        The copy shares the process group and nothing else. Each rank copies its part without an exchange. Pending
        gradients and statistics are not copied.

        Raises:
            MemoryError: there is no memory for another copy.
        """
        self._expect_drained()
        made = type(self).__new__(type(self))
        nn.Module.__init__(made)
        memo[id(self)] = made
        made.process_group, made._arguments = self.process_group, self._arguments
        made._make(
            [table for merged in self.merged_tables for table in merged.tables], list(self.features), *self._arguments
        )
        for own, theirs in zip(self._shards(), made._shards(), strict=True):
            listing = Listing(own)
            import_records(theirs, [(name, listing.read(name, own.buckets)) for name in own.names])
        made.step = self.step
        made._resume_step(made.tables, made.step)
        made.optimizer.load_state_dict(self.optimizer.state_dict())
        return made.train(self.training)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a HashTableCollection cannot be pickled: pickle its state_dict(), or use save() and load()")

    # Statistics

    def statistics(self) -> dict[str, Any]:
        """Returns sizes and counters of this rank's tables, and its traffic. Waits for the device.

        Returns:
            a dictionary with ``tables``, sizes and counters by merged table, and ``traffic``, numbers of keys and bytes
            by the names in ``Traffic`` of headway/embedding/sharded_table.hpp.
        """
        tables = {
            merged.name: {**table.size(), **table.statistics()}
            for merged, table in zip(self.merged_tables, self.tables, strict=True)
        }
        return {"tables": tables, "traffic": self._lookup.traffic()}

    def time_waits(self, is_enabled: bool = True) -> None:
        """Measures waits for exchanges from now on, or no longer. Begins at 0."""
        self._lookup.time_waits(is_enabled)

    def waited_s(self) -> float:
        """Returns the seconds of waits since ``time_waits()``: of calling threads on the CPU, of streams on CUDA."""
        return self._lookup.waited_s()

    def extra_repr(self) -> str:
        tables = ", ".join(f"{merged.name} (dim {merged.config.dim})" for merged in self.merged_tables)
        return f"{tables}; {len(self.features)} features on {self.num_ranks} ranks, device {self.device}"


def is_recomputation() -> bool:
    """Is this thread inside a backward pass? Activation checkpointing repeats forward passes there."""
    return torch._C._current_graph_task_id() != -1
