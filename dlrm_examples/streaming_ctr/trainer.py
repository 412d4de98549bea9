# SPDX-License-Identifier: Apache-2.0
"""Trains a model in time order, on one or several ranks. The caller chooses where to stop in between.

Shapes: E examples, L labels.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from headway.embedding import Adam
from headway.hybrid import DenseOptimizer
from headway.training import TrainStep

from dlrm_examples.streaming_ctr.group import all_gather, slice_of
from dlrm_examples.streaming_ctr.model import HEAD, LabelLoss, SharedBottom
from dlrm_examples.streaming_ctr.tables import Tables, TableSettings
from dlrm_examples.support.data.log import Log


@dataclass(frozen=True, kw_only=True)
class TrainerSettings:
    """Settings of a run, besides the log and the kind of tables.

    Attributes:
        tables: settings of all embedding tables; their seed is also the seed of the MLP.
        batch_size: examples of a step, over all ranks.
        dense_lr: learning rate of Adam for the MLP.
        hidden: hidden widths of the MLP.
    """

    tables: TableSettings
    batch_size: int = 256
    dense_lr: float = 0.002
    hidden: tuple[int, ...] = (64, 32)

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.dense_lr <= 0 or min(self.hidden, default=1) < 1:
            raise ValueError(f"batch_size, dense_lr and widths must be above 0: {self}")


@dataclass(frozen=True)
class DenseModel:
    """A dense model on parameter servers."""

    model: SharedBottom
    optimizer: DenseOptimizer

    @classmethod
    def of(cls, log: Log, settings: TrainerSettings) -> DenseModel:
        """Makes the model, and the optimizer that ``ServedTables`` binds to its servers."""
        model = make_model(log, settings)
        return cls(model, DenseOptimizer(model, Adam(lr=settings.dense_lr)))


def make_model(log: Log, settings: TrainerSettings) -> SharedBottom:
    """Makes the model for the features and labels of a log."""
    return SharedBottom(
        log.features,
        num_labels=len(log.label_names),
        dim=settings.tables.dim,
        hidden=settings.hidden,
        seed=settings.tables.seed,
    )


class Trainer:
    """A model, its tables, and their progress in the log.

    With a group, the model is replicated on all ranks (data parallel), and each rank takes its slice of each batch. All
    calls are then collective. A model on parameter servers is an exception: its ranks meet only where a call ends.
    """

    def __init__(
        self,
        log: Log,
        tables: Tables,
        settings: TrainerSettings,
        *,
        num_train: int,
        group: dist.ProcessGroup | None = None,
        dense: DenseModel | None = None,
    ) -> None:
        """Starts before the first example.

        Args:
            log: training data.
            tables: tables to train.
            settings: settings of the run.
            num_train: examples of an epoch, the first ones of the log.
            group: the group of ``tables``.
            dense: the model, if it is on the servers of ``tables``. Each rank makes steps of its own then, and divides
                losses by the number of its own terms. None: the ranks have it, and make the same steps.
        """
        if not 1 <= num_train <= log.num_examples:
            raise ValueError(f"{num_train} examples to train on of {log.num_examples}")
        self._log = log
        self._tables = tables
        self._settings = settings
        self._num_train = num_train
        self._group = group
        self._makes_own_steps = dense is not None
        self._model = make_model(log, settings) if dense is None else dense.model
        self._optimizer: torch.optim.Optimizer = (
            torch.optim.Adam(self._model.parameters(), lr=settings.dense_lr) if dense is None else dense.optimizer
        )
        self._train_step = TrainStep(
            LabelLoss(self._model, tables),
            optimizer=self._optimizer,
            tables=(),  # Their updates differ by kind: see Tables.step().
            group=None if self._makes_own_steps else group,
        )
        self.num_seen = 0
        """Examples trained on so far, all epochs together."""

    def train_until(self, num_seen: int) -> None:
        """Trains until ``num_seen`` examples were seen, counted over all epochs.

        The last batch, and that of each epoch, may be smaller. A stop within a batch shifts all later batches.

        Raises:
            ValueError: more examples were seen already.
        """
        if num_seen < self.num_seen:
            raise ValueError(f"cannot go back from {self.num_seen} examples to {num_seen}")
        batches: deque[tuple[Any, int]] = deque()
        parts = self._parts(num_seen)
        while True:
            while len(batches) <= self._tables.ahead and (part := next(parts, None)) is not None:
                batch = self._log.batch(*slice_of(*part, self._group))
                begun = batch._replace(features=self._tables.begin(batch.features))
                batches.append((begun, part[1] - part[0]))
            if not batches:
                break
            self._step(*batches.popleft())
        self._tables.finish()

    def _parts(self, num_seen: int) -> Iterator[tuple[int, int]]:
        """Yields first example and end of each batch until ``num_seen`` examples were seen."""
        seen = self.num_seen
        while seen < num_seen:
            begin = seen % self._num_train
            end = min(self._num_train, begin + num_seen - seen, begin + self._settings.batch_size)
            yield begin, end
            seen += end - begin

    def _step(self, batch: Any, size: int) -> None:
        """Trains on one batch of ``size`` examples over all ranks. Losses and gradients of the ranks sum to those of
        the batch mean, unless ranks make steps of their own."""
        num_examples = len(batch.labels) if self._makes_own_steps else size
        self._train_step([batch], {HEAD: num_examples * batch.labels.shape[1]})
        self._tables.step()
        self.num_seen += size

    @torch.no_grad()
    def predict(self, begin: int, end: int) -> torch.Tensor:
        """Predicts examples ``begin`` to before ``end``, at least one; returns (end - begin, L) logits."""
        size = self._settings.batch_size
        logits = []  # one tensor of this rank per batch
        for first in range(begin, end, size):
            batch = self._log.batch(*slice_of(first, min(first + size, end), self._group))
            logits.append(self._model(batch.features, self._tables))
        by_rank = all_gather(logits, self._group)
        return torch.cat([part for parts in zip(*by_rank, strict=True) for part in parts])

    def state_dict(self) -> dict[str, Any]:
        """State of everything except the tables; equal on all ranks."""
        return {
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "num_seen": self.num_seen,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the result of ``state_dict()``.

        Raises:
            RuntimeError: the state belongs to a model of different sizes.
        """
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.num_seen = state["num_seen"]
