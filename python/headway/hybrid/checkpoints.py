# SPDX-License-Identifier: Apache-2.0
"""``Checkpoints``: tables, dense model, optimizers and positions of loaders, saved together.

``headway hybrid run`` starts a job again from the newest one when it has lost a role. ``headway.checkpoints`` has the
folders: a checkpoint counts once its manifest is there, which is written last.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from headway.checkpoints import (
    CheckpointFolders,
    StepManifest,
    TrainingCheckpointError,
    load_weights,
    weights_of,
)
from headway.config_files import ConfigError
from headway.embedding import HashTableCollection
from headway.embedding.checkpoint.rank_values import all_gather
from headway.hybrid.config import HybridConfig
from headway.hybrid.tables import HybridTables


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was loaded.

    Attributes:
        path: its folder.
        step: optimizer steps so far; each dense worker has made so many batches.
        generation: of the dense workers that saved it; 0 with mode ``local``.
        positions: (dense workers that saved it) what each passed to ``save()``; with ``async`` that of the first one.
    """

    path: Path
    step: int
    generation: int
    positions: list[Any]


@dataclass(frozen=True)
class HybridManifest(StepManifest):
    """Describes a checkpoint of a script with ``headway.hybrid``.

    Attributes:
        generation: of the dense workers.
        positions: (dense workers that saved it) positions in the data, as the script has them.
    """

    generation: int
    positions: list[Any]


class Checkpoints:
    """Checkpoints of a training with tables of ``connect()``.

    ::

        checkpoints = hybrid.Checkpoints("ctr.toml", tables, model, dense)
        checkpoints.resume()
        for batch in hybrid.batches(tables, source(first=tables.step)):
            ...
            tables.optimizer.step()
            checkpoints.save_if_due()

    With mode ``async`` the first dense worker saves alone, after steps of its own, and servers write at once what they
    have. The others go on meanwhile. After ``resume()`` all workers are at its step.

    Args:
        config: settings with ``checkpoints.folder``, or their file.
        tables: of ``connect()``. They may be a part of ``model``.
        model: the dense model, equal on all dense workers.
        optimizer: of the dense model.
        others: by name, more objects with ``state_dict()`` and ``load_state_dict()``, equal on all dense workers, such
            as a scheduler or a ``GradScaler``.
    Raises:
        ConfigError: ``checkpoints.folder`` is missing.
    """

    def __init__(
        self,
        config: HybridConfig | str | os.PathLike[str],
        tables: HybridTables | HashTableCollection,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        others: Mapping[str, Any] | None = None,
    ) -> None:
        self._config = HybridConfig.of_argument(config).checkpoints
        if not self._config.folder:
            raise ConfigError("there is no folder of checkpoints: set checkpoints.folder")
        self._tables, self._model = tables, model
        self._states = {"optimizer": optimizer, "tables_optimizer": tables.optimizer, **(others or {})}
        is_async = isinstance(tables, HybridTables) and tables.is_async
        #: The dense workers that save together.
        self._group = None if tables.num_ranks == 1 or is_async else tables.process_group
        self._is_idle = isinstance(tables, HybridTables) and is_async and tables.rank != 0
        self._folders = CheckpointFolders(Path(self._config.folder), keep=self._config.keep, group=self._group)

    def save_if_due(self, position: Any = None) -> Path | None:
        """Saves after every ``checkpoints.every_steps`` steps. Call it after each step, on all dense workers.

        Args:
            position: see ``save()``.
        Returns:
            the folder of the checkpoint, or None.
        """
        return self.save(position) if self._tables.step % self._config.every_steps == 0 else None

    def save(self, position: Any = None) -> Path | None:
        """Saves a checkpoint between two steps, and removes old ones. All dense workers call it.

        Args:
            position: of this worker in its data, as JSON has it. Lookups run ahead, so it is that of the steps that
                were made: with a batch a step, ``tables.step`` says as much.
        Returns:
            its folder; with ``async`` None on all workers but the first.
        Raises:
            CheckpointError, OSError: it cannot be written; older ones are untouched.
            TypeError: JSON has no such position.
        """
        json.dumps(position)
        if self._is_idle:
            return None
        weights = weights_of(self._model, [self._tables])
        dense = {"model": weights, "states": {name: each.state_dict() for name, each in self._states.items()}}
        manifest = HybridManifest(
            step=self._tables.step,
            generation=self._tables.generation if isinstance(self._tables, HybridTables) else 0,
            positions=all_gather(position, self._group),
        )
        return self._folders.save(manifest, dense, [self._tables])

    def resume(self) -> Checkpoint | None:
        """Loads the newest checkpoint, if there is one. All dense workers call it, before the first step.

        Their number, and that of the servers, may differ from those that saved it.

        Returns:
            the checkpoint, or None.
        Raises:
            TrainingCheckpointError, CheckpointError: it cannot be read, or is of another model or of other tables.
        """
        path = self._folders.latest()
        return None if path is None else self.load(path)

    def load(self, path: str | os.PathLike[str]) -> Checkpoint:
        """Loads a checkpoint; see ``resume()``."""
        path = Path(path)
        manifest = self._folders.read(path, lambda values: HybridManifest(**values))
        dense = self._folders.load_dense(path)
        self._tables.load(path / "tables_0")
        if self._tables.step != manifest.step:
            raise TrainingCheckpointError(
                f"{path} has a dense model of step {manifest.step}, and tables of step {self._tables.step}"
            )
        load_weights(path, dense["model"], self._model, [self._tables])
        missing = self._states.keys() - dense["states"].keys()
        if missing:
            raise TrainingCheckpointError(f"{path} has no state of {', '.join(sorted(missing))}")
        for name, each in self._states.items():
            try:
                each.load_state_dict(dense["states"][name])
            except (ValueError, KeyError, RuntimeError) as error:
                raise TrainingCheckpointError(f"{path} does not fit {name}: {error}") from error
        return Checkpoint(path, manifest.step, manifest.generation, list(manifest.positions))


def newest_checkpoint(config: HybridConfig) -> Path | None:
    """Returns the newest complete checkpoint of a job; None: there is none, or no folder is set."""
    if not config.checkpoints.folder:
        return None
    return CheckpointFolders(Path(config.checkpoints.folder), keep=0, group=None).latest()
