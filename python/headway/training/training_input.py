# SPDX-License-Identifier: Apache-2.0
"""``TrainingInput``: opens the folders of a training, and makes the readers of a rank."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from headway.config_files import ConfigError
from headway.data.budget_reader import Budget, BudgetReader
from headway.data.parquet import ParquetFolder
from headway.data.reader import BatchReader, Position
from headway.data.schema import TARGET
from headway.parallel.balance.step_sources import CHUNK_SAMPLES
from headway.training.config import DEFAULT_BATCH, TrainingConfig

_GROUPS_TO_ESTIMATE, _ROWS_TO_ESTIMATE = 8, 128  #: Row groups, and rows of each, from which a mean is estimated.


class TrainingInput:
    """The samples of a training, for one rank.

    Args:
        config: all settings.
        has_own_model: the model is not a ``GRM``, so ``model.max_length`` limits no sample unless samples are cut.
        rank, num_ranks: ranks among which the samples are divided.
        pin_memory: join batches in pinned memory.
        say: called on rank 0 with a line about files that are left out.

    Attributes:
        folder: of the training.
        evaluation: of the evaluation; None: there is none.

    Raises:
        DataError: a folder cannot be read.
        ConfigError: a sample may have more tokens than a micro-batch, or there are fewer samples than ranks.
    """

    def __init__(
        self,
        config: TrainingConfig,
        *,
        has_own_model: bool,
        rank: int,
        num_ranks: int,
        pin_memory: bool,
        say: Callable[[str], None],
    ) -> None:
        self._config, self._has_own_model = config, has_own_model
        self._rank, self._num_ranks, self._pin_memory = rank, num_ranks, pin_memory
        self._say = say
        limits_length = not has_own_model or config.data.too_long != "raise"
        if 0 < config.data.max_tokens < self.longest and limits_length:
            raise ConfigError(
                f"data.max_tokens is {config.data.max_tokens}, and a sample may have {self.longest} tokens "
                "(model.max_length)"
            )
        self.folder = self._open(config.data.train)
        # Opened now, and its reader made: an error in it should not come after the training.
        self.evaluation = self._open(config.data.evaluation) if config.data.evaluation else None
        self._reader(self.folder)
        if self.evaluation is not None:
            self.evaluation_reader()

    @property
    def fingerprints(self) -> dict[str, str]:
        """``ParquetFolder.fingerprint`` of each folder, by its setting."""
        folders = {"data.train": self.folder, "data.evaluation": self.evaluation}
        return {key: folder.fingerprint for key, folder in folders.items() if folder is not None}

    @property
    def longest(self) -> int:
        """Most tokens of a sample, unless the model is one's own and samples are not cut."""
        return self._config.model.grm().max_length

    def steps_per_epoch(self) -> int:
        """Returns the steps of an epoch without a budget."""
        return self._reader(self.folder).steps_per_epoch

    def training_reader(self, start: Position, budget: Budget | None) -> BatchReader | BudgetReader:
        """Returns a reader of the training samples of this rank.

        Where samples move its steps have one batch, and with a budget over all ranks they are chunks for
        ``BalancedSteps``.

        Args:
            start: position of its first step.
            budget: limit of a micro-batch; None: steps have a number of samples.
        """
        data, epochs = self._config.data, self._config.run.epochs
        if budget is None:
            options: dict[str, Any] = {"micro_batches": 1, "pin_memory": False} if data.moves_samples else {}
            if data.moves_samples and data.balance == "budget":
                start = Position(start.epoch, start.samples // CHUNK_SAMPLES)
                options["global_batch"] = CHUNK_SAMPLES
            return self._reader(self.folder, start=start, epochs=epochs, order=data.order, **options)
        with _as_config_error():
            return BudgetReader(
                self.folder, budget=budget, start=start, epochs=epochs, **self._options(data.micro_batches)
            )

    def mean_cost(self, budget: Budget) -> float:
        """Estimates the mean cost of a training sample from some rows of some row groups."""
        data, groups = self._config.data, [each for each in self.folder.row_groups if each.num_rows > 0]
        costs: list[float] = []
        for group in groups[:: -(-len(groups) // _GROUPS_TO_ESTIMATE)]:
            end = min(group.num_rows, _ROWS_TO_ESTIMATE)
            chunk, *_ = self.folder.chunks(group, 0, end, num_rows=_ROWS_TO_ESTIMATE)
            history, targets = (np.diff(chunk.offsets[name]) for name in (data.events[0], TARGET + data.events[0]))
            costs += [budget.cost(len(data.context) + int(length)) for length in history + targets]
        return sum(costs) / len(costs)

    def evaluation_reader(self) -> BatchReader:
        """Returns a reader of the evaluation samples of this rank, in the order of time. There may be none.

        Raises:
            ValueError: the training has no evaluation data.
        """
        if self.evaluation is None:
            raise ValueError("there is no evaluation data: set data.evaluation")
        return self._reader(self.evaluation, order="time", micro_batches=1, allow_idle_ranks=True)

    def _open(self, path: str) -> ParquetFolder:
        data = self._config.data
        most = self.longest - len(data.context)
        folder = ParquetFolder(
            Path(path),
            data.schema(),
            max_events=None if self._has_own_model and data.too_long == "raise" else most,
            too_long=data.too_long,
            on_bad_file=data.on_bad_file,
        )
        if folder.bad_files and self._rank == 0:
            num_files = len(folder.bad_files)
            self._say(f"{num_files} {'file is' if num_files == 1 else 'files are'} left out: {folder.bad_files[0]}")
        return folder

    def _reader(self, folder: ParquetFolder, *, micro_batches: int | None = None, **options: Any) -> BatchReader:
        data = self._config.data
        options.setdefault("global_batch", data.global_batch or DEFAULT_BATCH)  # Evaluation has no budget.
        with _as_config_error():
            return BatchReader(
                folder,
                **self._options(data.micro_batches if micro_batches is None else micro_batches) | options,
            )

    def _options(self, micro_batches: int) -> dict[str, Any]:
        data = self._config.data
        return {
            "micro_batches": micro_batches,
            "num_streams": data.num_streams,
            "read_ahead": data.read_ahead,
            "seed": self._config.run.seed,
            "rank": self._rank,
            "num_ranks": self._num_ranks,
            "pin_memory": self._pin_memory,
        }


@contextlib.contextmanager
def _as_config_error() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ConfigError(str(error)) from error
