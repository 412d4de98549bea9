# SPDX-License-Identifier: Apache-2.0
"""``HybridTables``: embedding tables on parameter servers, with the interface of ``HashTableCollection``.

Idea: lookups of coming batches are sent before the dense model gets to them, and the updates of past ones arrive
meanwhile. Servers hold an answer back until the updates of all steps but the last ``staleness`` are in it.

Small tables (``sync_rows``) are not on servers: ``Replicas`` has them, and a step updates them on all dense workers.

The life of a batch: ``begin()`` sends its ids, ``forward()`` waits for its embeddings, the backward pass keeps their
gradients, and ``optimizer.step()`` sends them. At most ``staleness`` + 1 batches are in that state.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from headway._embedding import Table
from headway._hybrid import GenerationOptions, ServerStatus
from headway.embedding.anchor import Anchor
from headway.embedding.checkpoint import CheckpointError
from headway.embedding.checkpoint.rank_values import all_gather
from headway.embedding.collection import is_recomputation
from headway.embedding.config import FeatureConfig, NoOptimizer, TableConfig
from headway.embedding.features import Features
from headway.embedding.optimizer import TableOptimizer
from headway.embedding.process_groups import GroupOrLocal, any_rank, resolve_group
from headway.hybrid import server_checkpoints
from headway.hybrid.agreed_calls import Ask, agreed_call
from headway.hybrid.batch_counts import BatchCounts
from headway.hybrid.batch_window import BatchWindow, HybridBatch
from headway.hybrid.config import HybridConfig
from headway.hybrid.dense_optimizer import DenseOptimizer
from headway.hybrid.lookups import (
    BatchRef,
    ServerLookups,
    SmallFound,
    SplitLayout,
    Values,
    WorkerLookups,
    blocks_of,
)
from headway.hybrid.replicas import ReplicaBatch, Replicas


class HybridOptimizer(TableOptimizer):
    """``TableOptimizer`` for tables on servers, where a step that a GradScaler skips is a void notice."""

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Sends the gradients of the oldest batch. With a GradScaler that found inf or NaN it sends void notices."""
        if not bool(getattr(self, "found_inf", False)):
            return super().step(closure)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        tables = self._tables()
        assert isinstance(tables, HybridTables)
        tables.skip_learned()
        return loss


class _Expand(torch.autograd.Function):
    """Gives the embeddings of a batch to autograd, and keeps their gradients in the batch."""

    @staticmethod
    def forward(context: Any, batch: HybridBatch, tables: HybridTables, *inputs: torch.Tensor) -> Any:
        context.set_materialize_grads(False)
        context.batch, context.tables = batch, tables
        context.save_for_backward(inputs[-1])  # So that a second pass over a graph that was not retained is refused.
        return tuple(inputs[: len(tables.features)])

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor | None) -> Any:
        _ = context.saved_tensors
        context.tables._keep_gradients(context.batch, gradients)
        return (None,) * (2 + len(gradients) + len(context.tables.merged_tables))


class _NoLookups:
    """Takes the place of lookups after ``disconnect()``."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("the tables have been disconnected from their servers")


class HybridTables(nn.Module):
    """Embedding tables whose rows are on parameter servers.

    All dense workers of ``process_group`` construct it together, and each makes the same number of steps. A step looks
    up one batch on each of them; a batch may be empty. Gradients of all workers are added (as with
    ``gradient_reduction="sum"`` of ``HashTableCollection``), so a loss is a sum, divided by the number of terms over
    all workers. Tables are on the CPU; inputs and embeddings are on ``device``.

    With mode ``async`` each worker makes steps of its own and waits for no other. Only ``connect()`` and ``load()`` are
    called together. A loss is divided by the number of the worker's own terms.

    Args:
        config: addresses of the servers, mode and staleness.
        tables: the tables. The first trainer gives them to the servers; a later difference is an error.
        features: the features that are looked up in them. With embedding workers (``workers.addresses``) batches are
            what a ``Loader`` returned, and ids stay away from this process.
        dense: optimizer of the dense model, with mode ``async`` alone.
        process_group: the dense workers; None: the world group if there is one; ``LOCAL``: this process alone.
        seed: seed of initial embeddings.
        num_threads: threads that remove duplicates and add gradients; None: as many as torch has.
        device: device of inputs and embeddings.
    Raises:
        ValueError: an argument is wrong, or the secret of the job is missing.
        RuntimeError: a server cannot be reached, or has other tables. The message names it.
    """

    def __init__(
        self,
        config: HybridConfig,
        *,
        tables: Iterable[TableConfig],
        features: Iterable[FeatureConfig],
        dense: DenseOptimizer | None = None,
        process_group: GroupOrLocal = None,
        seed: int = 0,
        num_threads: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        self.config, self.device = config, torch.device(device)
        split = SplitLayout.of(config, tables, features, blocks_of(config, dense))
        has_workers = config.workers.are_there
        layout = split.of_workers if has_workers else split.on_servers
        self._split = split
        self.features, self.merged_tables, self._of_table = split.features, split.merged_tables, split.of_table
        self._tables_of_servers = layout.merged_tables
        self._num_on_servers = len(split.on_servers.own.merged_tables)
        self.process_group = resolve_group(process_group)
        self._dense: DenseOptimizer | None = None  #: With ``async``.
        if dense is not None and self.is_async:
            dense.bind(self.process_group, self)
            self._dense = dense
        self.rank = 0 if self.process_group is None else self.process_group.rank()
        self.num_ranks = 1 if self.process_group is None else self.process_group.size()
        threads = torch.get_num_threads() if num_threads is None else num_threads
        self._lookups: WorkerLookups | ServerLookups = (
            WorkerLookups(config, split, seed=seed)
            if has_workers
            else ServerLookups(config, layout, seed=seed, num_threads=threads)
        )
        self._replicas: Replicas | None = None  #: Small tables.
        if config.most_small_rows and split.small is None:
            warnings.warn(
                f"sync_rows = {config.sync_rows} has no effect: no table has max_rows up to it, without eviction, "
                "time_to_live, min_count and hot_count",
                stacklevel=3,
            )
        if split.small is not None:
            self._replicas = Replicas(
                split.small, seed=seed, num_threads=threads, group=self.process_group, has_indices=has_workers
            )
        #: Gradients of the backward passes since the last step that a GradScaler has not seen, by merged table.
        self._unseen: list[list[Values]] = [[] for _ in self.merged_tables]
        self._anchors = [
            Anchor.make(torch.device("cpu"), partial(self._new_gradients, index), self._agree)
            for index in range(len(self.merged_tables))
        ]
        self.optimizer = HybridOptimizer(self, self.merged_tables, self._anchors)
        self._window = BatchWindow(
            self._lookups,
            rank=self.rank,
            staleness=config.most_missing_steps,
            num_tables=len(self.merged_tables),
            step=self._begin_generation(),
        )
        if self._replicas is not None:
            self._replicas.begin_at(self._window.step)
        self._has_ended = False
        self._has_warned = False  #: A warning of lost gradients was given.

    @property
    def step(self) -> int:
        """Optimizer steps so far; with ``async`` those of this worker."""
        return self._window.step

    @property
    def is_async(self) -> bool:
        """Each dense worker makes steps of its own."""
        return self.config.mode == "async"

    def _begin_generation(self) -> int:
        """Begins a generation of dense workers at the servers; returns the number of steps before it."""
        chosen: list[Any] = [None]
        is_alone = self.process_group is None or self.num_ranks == 1
        if not is_alone:  # Servers have taken the gradients of all workers.
            dist.barrier(group=self.process_group)
        if self.rank == 0:
            states = self._lookups.status()
            generation = max(each.generation for each in states) + 1
            chosen = [(generation, max(each.num_applied for each in states), secrets.randbits(63))]
        if not is_alone:
            dist.broadcast_object_list(chosen, group=self.process_group, group_src=0)
        self.generation, first_step, token = chosen[0]
        self._lookups.begin_generation(
            self.generation,
            GenerationOptions(
                workers=self.num_ranks,
                staleness=self.config.most_missing_steps,
                first_step=first_step,
                is_exact=self.config.order == "exact",
                sums_parts=self.config.combine == "sum" and not self.is_async,
                shares_clock=not self.is_async,
            ),
            token=token,
        )
        return int(first_step)

    def _begin_if_ended(self) -> None:
        if self._has_ended:
            self._window.restart(self._begin_generation())
            self._has_ended = False

    # Lookups

    @property
    def most_in_flight(self) -> int:
        """Batches that may be between ``begin()`` and the confirmation of their gradients."""
        return self._window.most

    def begin(self, features: Features | BatchRef | None) -> HybridBatch:
        """Sends the ids of the next batch to the servers that own them. Does not wait for their embeddings.

        Gradients on their way are batches in flight, too. While there are too many, the ids are sent later: when
        servers have confirmed gradients, at the latest when the embeddings are wanted. So the number of batches that
        have begun does not depend on the time that messages take.

        Args:
            features: as for ``HashTableCollection``; weights do not get a gradient. With embedding workers a
                ``BatchRef``, or None for a batch without samples.
        Raises:
            ValueError: a feature is missing or its tensors do not fit, or ``staleness`` + 1 batches have not made their
                step.
            RuntimeError: a server is lost. The message names it.
        """
        self._begin_if_ended()
        self._window.expect_room()
        prepared, has_samples = self._lookups.prepare(features)
        in_replicas = self._prepare_in_replicas(features)
        batch = self._window.begin(features, prepared, has_samples=has_samples)
        batch.in_replicas = in_replicas
        return batch

    def forward(self, features: Features | BatchRef | HybridBatch) -> dict[str, torch.Tensor]:
        """Looks up the embeddings of a batch. With ``eval()`` nothing is inserted or counted, and nothing is held back.

        With ``train()`` each call with features begins a batch, which ends by ``optimizer.step()`` or ``skip()``.
        Activation checkpointing repeats a lookup; it gets the same embeddings.

        Args:
            features: the features as for ``begin()``, or what it returned.
        Returns:
            for each feature name (B, dim) if it is pooled, else (K, dim), one embedding per id.
        Raises:
            ValueError: the batch has made its step.
            RuntimeError: a server is lost, or did not answer within ``job.timeout_s``. The message names it.
        """
        if isinstance(features, HybridBatch):
            batch = features
        elif self.training and is_recomputation():
            batch = self._window.batch_of(features)
        elif not self.training:
            self._window.confirm_all()  # So that it sees the updates of this worker.
            num_bags, values, small = self._lookups.read(features)
            in_replicas = self._prepare_in_replicas(features, small)
            return self._by_feature(*self._with_replicas(*self._take_dense_rows(num_bags, values), in_replicas))
        else:
            self._window.wait_for_room()
            batch = self.begin(features)
        self._window.wait_until_sent(batch)
        num_bags, values, small = self._lookups.wait(batch.step, self.rank)
        if small is not None and not batch.is_looked_up:
            batch.in_replicas = self._prepare_in_replicas(features, small)
        found = self._take_dense_rows(num_bags, values)
        batch.num_bags, values = self._with_replicas(*found, batch.in_replicas)
        outputs = self._by_feature(batch.num_bags, values)
        batch.is_looked_up = True
        if not torch.is_grad_enabled():
            return outputs
        with_gradient = _Expand.apply(batch, self, *outputs.values(), *self._anchors)
        return dict(zip(outputs, with_gradient, strict=True))

    def _take_dense_rows(self, num_bags: list[int], of_tables: list[Values]) -> tuple[list[int], list[Values]]:
        """Sets the parameters of the dense model if they came, too. Returns the rest."""
        if self._dense is None:
            return num_bags, of_tables
        # A repeated lookup has the same rows, and its backward pass must find the parameters unchanged.
        if num_bags[-1] > 0 and not is_recomputation():
            self._dense.take_rows(of_tables[-1])
        return num_bags[:-1], of_tables[:-1]

    def _prepare_in_replicas(self, features: Any, small: SmallFound | None = None) -> ReplicaBatch | None:
        """Returns the ids of a batch in small tables. Those of an embedding worker come with its answer."""
        if self._replicas is None:
            return None
        if small is not None:
            return self._replicas.prepare_indices(small)
        return None if self.config.workers.are_there else self._replicas.prepare(features)

    def _with_replicas(
        self, num_bags: list[int], of_tables: list[Values], batch: ReplicaBatch | None
    ) -> tuple[list[int], list[Values]]:
        """Adds bags and embeddings of small tables to those of servers."""
        if self._replicas is None or batch is None:
            return num_bags, of_tables
        of_replicas = self._replicas.read(batch, evaluates=not self.training)
        return self._split.join(num_bags, batch.num_bags), [*of_tables, *of_replicas]

    def _by_feature(self, num_bags: Sequence[int], of_tables: Sequence[Values]) -> dict[str, torch.Tensor]:
        outputs: dict[str, torch.Tensor] = {}
        for values, of_merged in zip(of_tables, self._of_table, strict=True):
            parts = torch.split(torch.from_numpy(values).to(self.device), [num_bags[index] for index in of_merged])
            outputs.update({self.features[index].name: part for index, part in zip(of_merged, parts, strict=True)})
        return {feature.name: outputs[feature.name] for feature in self.features}

    # Learning

    def _keep_gradients(self, batch: HybridBatch, gradients: Sequence[torch.Tensor | None]) -> None:
        if batch not in self._window.ahead:
            raise RuntimeError(
                f"backward(): the batch of step {batch.step} has made its step, and its gradients were sent before"
            )
        batch.has_backward = True
        for merged, of_merged in enumerate(self._of_table):
            if all(gradients[index] is None for index in of_merged):
                continue
            dim = self.merged_tables[merged].config.dim
            parts = []
            for index in of_merged:
                gradient = gradients[index]
                parts.append(
                    torch.zeros(batch.num_bags[index], dim)
                    if gradient is None
                    else gradient.detach().to("cpu", torch.float32)
                )
            values = torch.cat(parts).contiguous().numpy()
            kept = batch.gradients[merged]
            batch.gradients[merged] = values if kept is None else kept + values
            self._unseen[merged].append(values)

    def _new_gradients(self, index: int) -> list[tuple[torch.Tensor, None]]:
        unseen, self._unseen[index] = self._unseen[index], []
        return [(torch.from_numpy(values), None) for values in unseen]

    def _agree(self, mark: torch.Tensor | None) -> torch.Tensor | None:
        """Returns NaN if the gradients of any dense worker are not finite, so that scalers of all skip the step."""
        is_bad = mark is not None and not bool(mark.isfinite())
        return torch.full((1,), float("nan")) if any_rank(self._step_group, is_bad) else mark

    def apply_gradients(
        self, rates: Sequence[float], divisors: Sequence[float], factors: Sequence[Mapping[str, float]] = ()
    ) -> None:
        """Sends the gradients of a batch to the servers, which update the rows. ``optimizer.step()`` calls it.

        It is the batch of the last backward pass, or else the last one that was looked up. Older batches are void: the
        loop has passed them over.

        Raises:
            ValueError: tables that share storage have different rates.
            RuntimeError: no batch was looked up, two have had a backward pass, a table with gradients has no optimizer,
                or a server is lost.
        """
        batch = self._window.batch_to_step()
        for merged, by_name in zip(self.merged_tables, factors or [{}] * len(rates), strict=True):
            if len({by_name.get(each.name, 1.0) for each in merged.tables}) > 1:
                raise ValueError(
                    f"the tables {merged.name} share storage, and parameter servers have one learning rate for them"
                )
        arguments: list[tuple[float, Values | None]] = []
        for index, merged in enumerate(self.merged_tables):
            factor = (factors[index] if factors else {}).get(merged.tables[0].name, 1.0)
            values = batch.gradients[index]
            if values is not None and isinstance(merged.config.optimizer, NoOptimizer):
                raise RuntimeError(f"table {merged.name} has gradients but no optimizer: give its TableConfig one")
            if values is not None and divisors[index] != 1:
                values = values / np.float32(divisors[index])
            arguments.append((rates[index] * factor, values))
        on_servers, in_replicas = arguments[: self._num_on_servers], arguments[self._num_on_servers :]
        if self._dense is not None:
            on_servers.append((self._dense.learning_rate, batch.dense_gradients))
        while self._window.ahead[0] is not batch:
            self.skip()
        self._lookups.return_gradients(batch.step, self.rank, on_servers)
        self._window.end_oldest()
        self._forget_anchors()
        self._end_step_of_replicas(batch, in_replicas)

    def _end_step_of_replicas(self, batch: HybridBatch, arguments: Sequence[tuple[float, Values | None]] = ()) -> None:
        """Updates small tables on all dense workers. Without arguments this worker's batch makes no step."""
        if self._replicas is None:
            return
        is_finite = self._replicas.end_step(
            batch.step,
            batch.in_replicas if arguments else None,
            [values for _, values in arguments],
            [rate for rate, _ in arguments],
            is_strict=self.config.servers.strict,
        )
        if not is_finite:
            batch.loss = "not_finite"

    def keep_dense_gradients(self, values: Values) -> None:
        """Keeps gradients of the dense model, (blocks, BLOCK_DIM), for ``optimizer.step()``.

        Raises:
            RuntimeError: no batch was looked up since the last step.
        """
        try:
            self._window.batch_to_step().dense_gradients = values
        except RuntimeError as error:
            raise RuntimeError(f"dense.step() comes before tables.optimizer.step(): {error}") from error

    def drop_gradients(self) -> None:
        """Drops gradients that are kept, and not sent. ``optimizer.zero_grad()`` calls it."""
        for batch in self._window.ahead:
            batch.gradients = [None] * len(self.merged_tables)
        self._forget_anchors()

    def scale_gradients(self, factor: torch.Tensor | float) -> None:
        """Multiplies the gradients that ``optimizer.step()`` would send."""
        for batch in self._window.ahead:
            for values in batch.gradients:
                if values is not None:
                    values *= np.float32(float(factor))

    def has_finite_gradients(self) -> bool:
        """Whether the gradients that ``optimizer.step()`` would send are finite on all dense workers, which call it.

        With ``async`` those of this worker.
        """
        of_batches = [values for batch in self._window.ahead for values in batch.gradients if values is not None]
        return not any_rank(self._step_group, not all(bool(np.isfinite(values).all()) for values in of_batches))

    def _forget_anchors(self) -> None:
        for anchor in self._anchors:
            anchor.grad = None

    def skip(self) -> None:
        """Ends the oldest batch without a step: servers get void notices instead of its gradients.

        Raises:
            RuntimeError: no batch has begun, or a server is lost.
        """
        if not self._window.ahead:
            raise RuntimeError("skip(): no batch has begun")
        self._drop_oldest("skipped")

    def skip_learned(self) -> None:
        """Ends the batch that ``optimizer.step()`` would take, and older ones, without a step."""
        batch = self._window.batch_to_step()
        batch.has_backward = False  # Its gradients are dropped on purpose.
        while self._window.ahead[0] is not batch:
            self.skip()
        self._drop_oldest("overflow")

    def _drop_oldest(self, cause: str) -> None:
        batch = self._window.ahead[0]
        self._window.drop_oldest(cause)
        self._forget_anchors()
        self._end_step_of_replicas(batch)

    def pass_over(self, batch: HybridBatch) -> None:
        """Ends a batch without a step if it has made none; older ones, too. Warns once if gradients are lost."""
        if batch in self._window.ahead and batch.has_backward and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"the batch of step {batch.step} had a backward pass and no optimizer.step(): its gradients are lost. "
                "Is tables.optimizer.step() called?",
                stacklevel=3,
            )
        while batch in self._window.ahead:
            self.skip()

    def forget_ahead(self) -> None:
        """Ends all batches that have begun without a step, as far as servers can be reached. It does not wait.

        So other dense workers do not learn of it, and small tables are not updated in these steps.
        """
        with contextlib.suppress(RuntimeError):
            while self._window.ahead:
                self._window.drop_oldest("skipped")
                self._forget_anchors()

    def drain(self) -> None:
        """Like ``finish()``. Afterwards ``eval()`` reads the updates of all dense workers; with ``async`` its own."""
        self.finish()
        if self._step_group is not None and self.num_ranks > 1:
            dist.barrier(group=self._step_group)

    def finish(self) -> None:
        """Ends batches that have begun and make no step, and waits until servers have taken all gradients.

        All dense workers call it after their last step, with the same number of steps. A lookup afterwards begins a new
        generation, which all of them do together. With ``async`` each calls it for itself, and may go on afterwards.
        """
        while self._window.ahead:
            self.skip()
        self._window.confirm_all()
        if self.is_async:
            return
        self._lookups.end_at(self._window.next_step)
        self._has_ended = True

    def disconnect(self) -> None:
        """Takes leave of the servers, which would warn of a lost worker otherwise. Tables cannot be used afterwards."""
        self._lookups = self._window.lookups = cast(Any, _NoLookups())

    # Checkpoints

    def save(self, folder: str | os.PathLike[str], *, replace: bool = False) -> None:
        """Saves all tables to ``folder``: ids, embeddings, optimizer states, counts and steps.

        All dense workers call it between steps. It has the updates of all steps so far. Batches whose lookups have
        begun are looked up again afterwards, in a new generation, so the training goes on as one that loads the
        checkpoint would. The checkpoint counts their first lookups, and has rows of their ids. Servers write the files,
        so ``folder`` is one that all roles see. The format is that of ``HashTableCollection.save()``. Learning rates
        are not saved: they are in ``optimizer.state_dict()``.

        With ``async`` there is no step between which all workers could save. The first dense worker's call lets each
        server write what it has at that moment, also of the dense model, and nobody waits. The call of another worker
        does nothing.

        Args:
            folder: created if it does not exist; an older checkpoint in it is replaced.
            replace: allow a checkpoint with tables that are not here to be replaced.
        Raises:
            CheckpointError: a server could not write, or the folder has the checkpoint of other tables. The previous
                checkpoint stays valid. Servers are named.
            RuntimeError: a server is lost.
            ValueError: a batch was looked up, and has not made its step.
        """
        if self.is_async:
            return self._save_at_once(Path(folder), replace=replace)
        self._begin_if_ended()
        with self._together("save()") as ask:
            if any(batch.is_looked_up for batch in self._window.ahead):
                raise ValueError(
                    f"save(): the batch of step {self.step} was looked up, and has not made its step: call "
                    "optimizer.step() or skip() before"
                )
            self._window.confirm_all()
        # Workers may have sent different numbers of lookups ahead. Servers wait for none from the first missing one.
        own_end = next((batch.step for batch in self._window.ahead if not batch.is_sent), self._window.next_step)
        end = min(all_gather(own_end, self._group))

        def save() -> None:
            self._store_replicas()
            server_checkpoints.save(
                Path(folder),
                self._tables_of_servers,
                self.config,
                generation=self.generation,
                step=self.step,
                end=end,
                replace=replace,
                replicas=self._replicas_with_ids,
            )

        error = ask(save)[1]
        self._has_ended = True
        try:
            self._begin_again()
        finally:
            if error is not None:
                raise CheckpointError(error)

    def load(self, folder: str | os.PathLike[str], *, strict: bool = True, embeddings_only: bool = False) -> None:
        """Replaces all tables by those of a checkpoint of servers or of a collection. All dense workers call it.

        Batches that have begun are void. ``step`` is that of the checkpoint afterwards. Servers hold old and new tables
        meanwhile.

        Args:
            folder: folder that ``save()`` wrote, also that of a ``HashTableCollection``.
            strict: require the checkpoint to have exactly these tables. Otherwise tables that it lacks keep their rows,
                and others in it are skipped.
            embeddings_only: read embeddings, counts and steps, and start with new optimizer states. The checkpoint may
                then have another optimizer.
        Raises:
            CheckpointError: a file is missing, truncated or altered, or a table differs; nothing is changed then.
            RuntimeError: a server is lost.
        """
        self._begin_if_ended()
        new_replicas: list[Table] = []
        with self._together("load()") as ask:
            self.finish()
            if self._replicas_with_ids is not None:
                new_replicas = server_checkpoints.read_replicas(
                    Path(folder), self._replicas_with_ids, embeddings_only=embeddings_only
                )

        def load() -> int:
            self._store_replicas()  # Tables that the checkpoint lacks keep their rows.
            return server_checkpoints.load(
                Path(folder),
                self._tables_of_servers,
                self.config,
                generation=self.generation,
                step=self.step,
                strict=strict,
                embeddings_only=embeddings_only,
                replicas=self._replicas_with_ids,
            )

        step, error = ask(load)
        if error is not None:
            raise CheckpointError(error)
        if self._replicas is not None:
            self._replicas.replace(new_replicas or self._replicas.build(), step=step)
        self._window.restart(step)
        if self.is_async:
            self._begin_generation()

    @property
    def _replicas_with_ids(self) -> Replicas | None:
        """Small tables whose rows this process can save and load. With row indices servers do it."""
        return None if self._replicas is None or self._replicas.has_indices else self._replicas

    def _store_replicas(self) -> None:
        """Gives servers the rows of small tables if they have row indices."""
        if self._replicas is not None and self._replicas.has_indices:
            server_checkpoints.store_replicas(
                self._replicas, self.config, generation=self.generation, first_merged=self._num_on_servers
            )

    def _save_at_once(self, folder: Path, *, replace: bool) -> None:
        if self.rank != 0:
            return
        self._window.confirm_all()
        server_checkpoints.save(
            folder,
            self._tables_of_servers,
            self.config,
            generation=self.generation,
            step=self.step,
            end=self.step,
            replace=replace,
        )

    def _together(self, name: str) -> contextlib.AbstractContextManager[Ask]:
        return agreed_call(
            name, rank=self.rank, step=lambda: 0 if self.is_async else self.step, group=self._group
        )

    @property
    def _step_group(self) -> dist.ProcessGroup | None:
        """The dense workers that make the same steps as this one; None: it is alone."""
        return None if self.is_async else self.process_group

    @property
    def _group(self) -> dist.ProcessGroup | None:
        return None if self.num_ranks == 1 else self.process_group

    def _begin_again(self) -> None:
        """Looks up the batches that have begun in a new generation."""
        if self._window.ahead:
            self._begin_if_ended()
        self._window.send_again()

    # Statistics

    def status(self) -> list[ServerStatus]:
        """Returns counters of each server."""
        return self._lookups.status()

    def small_rows(self) -> dict[str, int]:
        """Returns the rows of each small table (``sync_rows``). Servers do not know them."""
        if self._replicas is None:
            return {}
        named = zip(self._replicas.merged_tables, self._replicas.tables, strict=True)
        return {merged.name: table.size()["rows"] for merged, table in named}

    def counts(self) -> BatchCounts:
        """Returns what became of the batches of this dense worker."""
        return self._window.counts()

    def waits(self) -> list[tuple[str, float]]:
        """Returns the time in seconds for which this dense worker waited, for each server or embedding worker.

        It waits for one server after the other, so a later one has the time by which it answered after those before.
        """
        return self._lookups.waits()

    def waited_s(self) -> float:
        """Returns the seconds that this dense worker has waited for embeddings, and for the receipt of gradients."""
        return sum(seconds for _, seconds in self.waits())

    def extra_repr(self) -> str:
        tables = ", ".join(f"{merged.name} (dim {merged.config.dim})" for merged in self.merged_tables)
        return (
            f"{tables}; {len(self.features)} features on {len(self.config.servers.addresses)} parameter servers, "
            f"staleness {self.config.most_missing_steps}"
        )
