# SPDX-License-Identifier: Apache-2.0
"""The manifest of a checkpoint of ``Trainer``: its place in the data, and what it must have in common with a resume."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.checkpoints import CheckpointFolders, StepManifest, TrainingCheckpointError, free_folder
from headway.data.reader import Position
from headway.training.config import TrainingConfig, differences, effective

#: Settings of data that a resumed training may change: steps have the same samples.
_MAY_CHANGE = ("data.train", "data.evaluation", "data.read_ahead", "data.micro_batches", "data.budget",
               "data.budget_memory", "data.max_tokens", "data.square_weight", "data.weight_exponent")  # fmt: skip


@dataclass(frozen=True)
class Manifest(StepManifest):
    """Describes a checkpoint.

    Attributes:
        next: position in the data of the first step that is not in it.
        num_ranks: ranks that wrote it.
        fingerprint: of the data; see ``ParquetFolder.fingerprint``.
        config: all settings.
        weight_exponent: e, set or fitted; a sample of L tokens weighs L^e. None: not used.
        budget: most tokens of a micro-batch, set or measured; 0: not used.
        square_weight: w, set or fitted; a sample of L tokens costs L + w L^2 (``headway.data.Budget``). None: not used.
    """

    next: Position
    num_ranks: int
    fingerprint: str
    config: dict[str, Any]
    square_weight: float | None = None
    budget: int = 0
    weight_exponent: float | None = None

    def expect_same_training(self, path: Path, config: TrainingConfig, fingerprint: str) -> None:
        """Checks that model, data and seed are those of the checkpoint at ``path``.

        Raises:
            TrainingCheckpointError: they differ; the message says how.
        """
        before, now = effective(self.config), effective(config.as_dict())
        ignored = set(_MAY_CHANGE)
        if "budget" not in (self.config["data"].get("balance"), config.data.balance):  # Samples of a step are the same.
            ignored |= {"data.balance", "data.scope", "data.planner", "data.weight_model"}
        found = [
            str(each) for each in differences(before, now, sections=("data", "model")) if each.key not in ignored
        ]
        if self.config["run"]["seed"] != config.run.seed:
            found.append(f"run.seed is {config.run.seed}, and was {self.config['run']['seed']}")
        if self.fingerprint != fingerprint:
            found.append(f"the data in {config.data.train} differs from that of the checkpoint")
        if found:
            raise TrainingCheckpointError(f"{path} cannot be resumed: {'; '.join(found)}")


#: Files and folders that a training writes to its folder.
_OF_TRAINING = ("checkpoints", "results.jsonl", "report.html", "not_finite_step_*.json", "trace.json", "trace",
                "tensorboard")  # fmt: skip


def set_aside(out: Path) -> Path | None:
    """Moves everything that an earlier training wrote away, so that a new one does not mix with it.

    Args:
        out: folder of the training.
    Returns:
        the folder in ``out`` that it is in; None: there is nothing.
    """
    found = [path for name in _OF_TRAINING for path in sorted(out.glob(name))]
    if not found:
        return None
    aside = free_folder(out)
    aside.mkdir()
    for each in found:
        each.rename(aside / each.name)
    return aside


def set_later_aside(checkpoints: CheckpointFolders, out: Path, step: int) -> Path | None:
    """Moves checkpoints and results after ``step`` away, if a training has left them for an older checkpoint.

    Without a later checkpoint nothing moves: lines after the newest one are of steps that are trained again.

    Args:
        checkpoints: those of the training.
        out: its folder.
        step: of the checkpoint from which it goes on.
    Returns:
        the folder in ``out`` that they are in; None: there are none.
    """
    if not checkpoints.later_than(step):
        return None
    aside = free_folder(out)
    checkpoints.set_later_aside(step, aside / "checkpoints")
    if (out / "report.html").exists():
        (out / "report.html").rename(aside / "report.html")
    results = out / "results.jsonl"
    if results.exists():
        of_place: dict[bool, list[str]] = {True: [], False: []}
        for line in results.read_text(encoding="utf-8").splitlines(keepends=True):
            of_place[_step_of(line) > step].append(line)
        (aside / results.name).write_text("".join(of_place[True]), encoding="utf-8")
        unfinished = results.with_suffix(".partial")
        unfinished.write_text("".join(of_place[False]), encoding="utf-8")
        unfinished.rename(results)
    return aside


def _step_of(line: str) -> int:
    """Returns the step of a line of results; 0 for one that was cut."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, TypeError, KeyError):
        return 0


class Checkpoints(CheckpointFolders):
    """Checkpoints with a ``Manifest``."""

    @staticmethod
    def manifest(path: Path) -> Manifest:
        """Reads the manifest of a checkpoint.

        Raises:
            TrainingCheckpointError: it cannot be read, or another version wrote it.
        """

        def make(values: dict[str, Any]) -> Manifest:
            following = values["next"] | {"taken": tuple(values["next"].get("taken", ()))}
            return Manifest(**values | {"next": Position(**following)})

        return CheckpointFolders.read(path, make)
