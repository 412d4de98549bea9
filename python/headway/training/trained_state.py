# SPDX-License-Identifier: Apache-2.0
"""Everything that an update changes, and how checkpoints hold it.

Tables are saved apart from the rest: each rank has rows of its own, and the rest is the same on all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from headway.checkpoints import load_weights, weights_of
from headway.hybrid import HybridTables
from headway.training.checkpoints import Checkpoints
from headway.training.loss_scaling import LossScaler
from headway.training.trained_tables import TrainedTables


@dataclass(frozen=True)
class TrainedState:
    """A model with what trains it.

    Attributes:
        model: all layers, tables included.
        tables: the tables of the model, which have optimizers of their own.
        optimizer: of the dense parameters.
        scaler: of losses and gradients.
    """

    model: torch.nn.Module
    tables: list[TrainedTables]
    optimizer: torch.optim.Optimizer
    scaler: LossScaler

    def zero_grad(self) -> None:
        """Forgets the gradients since the last update."""
        self.optimizer.zero_grad(set_to_none=True)
        for collection in self.tables:
            collection.optimizer.zero_grad()

    def skip_update(self) -> None:
        """Ends a step without an update."""
        self.zero_grad()
        for collection in self.tables:
            if isinstance(collection, HybridTables):  # Servers wait for gradients of each step, or for a void notice.
                collection.skip_learned()

    def update(self, *, clip_norm: float) -> None:
        """Updates weights and rows by their gradients, at most of norm ``clip_norm``; 0: any norm.

        Float16 gradients that overflowed are dropped instead. All ranks call it.
        """
        if not self.scaler.prepare_update(list(self.model.parameters()), self.tables, clip_norm=clip_norm):
            self.skip_update()
            return
        self.optimizer.step()
        for collection in self.tables:
            collection.optimizer.step()

    def bytes_of_first_update(self) -> int:
        """Returns the bytes that the dense optimizer allocates at its first update; 0 after it. Adam has two states."""
        if self.optimizer.state:
            return 0
        num_bytes: list[int] = [each.nbytes for group in self.optimizer.param_groups for each in group["params"]]
        return 2 * sum(num_bytes)

    def dense(self) -> dict[str, Any]:
        """Returns what a checkpoint holds beside the tables."""
        model = weights_of(self.model, self.tables)
        return {"model": model, "optimizer": self.optimizer.state_dict(), "scaler": self.scaler.state_dict()}

    def load(self, path: Path) -> None:
        """Takes over a checkpoint. Settings of the optimizer stay those of this training. All ranks call it.

        Raises:
            TrainingCheckpointError: it cannot be read, or is of another model.
        """
        dense = Checkpoints.load_dense(path)
        load_weights(path, dense["model"], self.model, self.tables)
        for group, own in zip(dense["optimizer"]["param_groups"], self.optimizer.param_groups, strict=True):
            group.update({name: value for name, value in own.items() if name != "params"})
        self.optimizer.load_state_dict(dense["optimizer"])
        self.scaler.load_state_dict(dense.get("scaler", {}))
        for index, collection in enumerate(self.tables):
            collection.load(path / f"tables_{index}")
