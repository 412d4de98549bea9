# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a training: a folder for each, which counts once its manifest is there.

Idea: all ranks save the tables, rank 0 saves the replicated rest, and the manifest is written last, under another name
and then renamed. So a folder without a manifest is what an interrupted save left. It does not count, and a save of the
same step replaces it. A training resumes with any number of ranks, since neither part depends on it.

Example: out/checkpoints/step_00000120 has dense.pt, the folders tables_0, tables_1, ... and manifest.json.

A training may resume from an older checkpoint. Later ones are then of a branch that it has left: a resume would
take the highest step, and a save would keep it instead of its own. They are moved aside, at the latest by ``save()``.

Invariants: an older checkpoint is removed only after a newer one is complete. The one that was saved last has the
highest step in the folder, and stays. All ranks call ``save()``.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist

_FORMAT = 1
_MANIFEST = "manifest.json"
M = TypeVar("M", bound="StepManifest")


class TrainingCheckpointError(RuntimeError):
    """A checkpoint cannot be read, or is not of this training."""


class SavedTables(Protocol):
    """Tables of a checkpoint: a ``HashTableCollection``, or tables on parameter servers."""

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Saves the tables. All ranks call it."""


@dataclass(frozen=True)
class StepManifest:
    """Describes a checkpoint of any training.

    Attributes:
        step: optimizer steps so far.
    """

    step: int


class CheckpointFolders:
    """The checkpoints in a folder.

    Args:
        folder: has a subfolder for each.
        keep: newest ones that stay after a save; 0: all.
        group: ranks of the training; None: one rank.
    """

    def __init__(self, folder: Path, *, keep: int, group: dist.ProcessGroup | None) -> None:
        self.folder, self._keep, self._group = folder, keep, group

    def latest(self) -> Path | None:
        """Returns the newest complete checkpoint."""
        complete = self._complete()
        return complete[-1] if complete else None

    def path_of(self, step: int) -> Path:
        """Returns the folder of the checkpoint of a step, which may not exist."""
        return self.folder / f"step_{step:08d}"

    def save(self, manifest: StepManifest, dense: dict[str, Any], tables: Sequence[SavedTables]) -> Path:
        """Saves a checkpoint, and removes old ones. Later ones move to a folder ``earlier_1``, ``earlier_2`` and so on.

        Raises:
            OSError, CheckpointError: it cannot be written; older ones are untouched.
        """
        path = self.path_of(manifest.step)
        if self._is_first and not (path / _MANIFEST).exists():
            shutil.rmtree(path, ignore_errors=True)  # Left by an interrupted save.
            path.mkdir(parents=True)
        if self._is_first and self.later_than(manifest.step):
            self.set_later_aside(manifest.step, free_folder(self.folder))
        self._barrier()
        for index, collection in enumerate(tables):
            collection.save(path / f"tables_{index}")
        if self._is_first:
            _write(path / "dense.pt", lambda file: torch.save(dense, file))
            values = {"format": _FORMAT} | asdict(manifest)
            _write(path / _MANIFEST, lambda file: file.write(json.dumps(values, indent=1).encode()))
            for old in self._complete()[: -self._keep] if self._keep else []:
                (old / _MANIFEST).unlink()  # First, so that half of a folder never counts as a checkpoint.
                shutil.rmtree(old)
        self._barrier()
        return path

    def later_than(self, step: int) -> list[Path]:
        """Returns the checkpoints of later steps, complete ones and others, by ascending step."""
        paths = [path for path in self.folder.glob("step_*") if path.name.removeprefix("step_").isdecimal()]
        return sorted(path for path in paths if int(path.name.removeprefix("step_")) > step)

    def set_later_aside(self, step: int, aside: Path) -> None:
        """Moves the checkpoints of later steps to the folder ``aside``. One rank calls it."""
        for path in self.later_than(step):
            aside.mkdir(parents=True, exist_ok=True)
            path.rename(aside / path.name)

    @staticmethod
    def read(path: Path, make: Callable[[dict[str, Any]], M]) -> M:
        """Reads a manifest of any kind, which ``make`` makes from its values.

        Raises:
            TrainingCheckpointError: it cannot be read, or another version wrote it.
        """
        try:
            values = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
            if values.pop("format") != _FORMAT:
                raise ValueError("another version wrote it")
            return make(values)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise TrainingCheckpointError(f"{path} is no checkpoint of a training: {error}") from error

    @staticmethod
    def load_dense(path: Path) -> dict[str, Any]:
        """Reads the replicated part.

        Raises:
            TrainingCheckpointError: it cannot be read.
        """
        try:
            dense: dict[str, Any] = torch.load(path / "dense.pt", map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            raise TrainingCheckpointError(f"{path / 'dense.pt'} cannot be read: {error}") from error
        return dense

    def _complete(self) -> list[Path]:
        return sorted(path.parent for path in self.folder.glob(f"step_*/{_MANIFEST}"))

    @property
    def _is_first(self) -> bool:
        return self._group is None or self._group.rank() == 0

    def _barrier(self) -> None:
        if self._group is not None:
            dist.barrier(group=self._group)


def free_folder(parent: Path) -> Path:
    """Returns the first of ``earlier_1``, ``earlier_2`` and so on in a folder that does not exist."""
    number = 1
    while (path := parent / f"earlier_{number}").exists():
        number += 1
    return path


def _write(path: Path, write: Any) -> None:
    """Writes a file that is there completely or not at all."""
    unfinished = path.with_suffix(".partial")
    with unfinished.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(path)
