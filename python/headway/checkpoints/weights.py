# SPDX-License-Identifier: Apache-2.0
"""Weights of a model in a checkpoint, without those of its tables, which have files of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from headway.checkpoints.folders import TrainingCheckpointError


def weights_of(model: torch.nn.Module, tables: Sequence[torch.nn.Module]) -> dict[str, torch.Tensor]:
    """Returns the weights of a model, except those of its tables."""
    prefixes = _table_prefixes(model, tables)
    return {name: value for name, value in model.state_dict().items() if not name.startswith(prefixes)}


def load_weights(
    path: Path, weights: Mapping[str, torch.Tensor], model: torch.nn.Module, tables: Sequence[torch.nn.Module]
) -> None:
    """Loads the weights of a checkpoint into a model, except those of its tables.

    Raises:
        TrainingCheckpointError: the checkpoint at ``path`` is of another model.
    """
    prefixes = _table_prefixes(model, tables)
    try:
        missing, unexpected = model.load_state_dict(weights, strict=False)
    except RuntimeError as error:  # A shape differs.
        raise TrainingCheckpointError(f"{path} does not fit the model: {error}") from error
    missing = [name for name in missing if not name.startswith(prefixes)]
    if missing or unexpected:
        raise TrainingCheckpointError(
            f"{path} does not fit the model: it lacks {missing or 'nothing'}, and has in addition "
            f"{unexpected or 'nothing'}"
        )


def _table_prefixes(model: torch.nn.Module, tables: Sequence[torch.nn.Module]) -> tuple[str, ...]:
    """Returns how names of the tables begin in the state of the model."""
    return tuple(f"{name}." for name, module in model.named_modules() if module in tables)
