# SPDX-License-Identifier: Apache-2.0
"""Figures of a training for TensorBoard."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.config_files import ConfigError
from headway.evaluation import LabelQuality
from headway.training.progress import Progress

_FIGURES = ("tokens_per_s", "flops_per_s", "input_wait", "idle", "exchange_wait", "server_wait", "staleness", "rows",
            "evictions", "truncated")  # fmt: skip


class TensorBoard:
    """Writes events of one run; for rank 0.

    Args:
        folder: of the events; earlier runs have files there, too.
        step: the present one. Events of later steps, which an interrupted run left, are hidden.
    """

    def __init__(self, folder: Path, *, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder), purge_step=step + 1)

    @staticmethod
    def expect_installed() -> None:
        """Raises ConfigError if the package tensorboard is missing. All ranks call it, so that all end."""
        if importlib.util.find_spec("tensorboard") is None:
            raise ConfigError("run.tensorboard needs the package tensorboard: pip install 'headway[train]'")

    def add_progress(self, progress: Progress) -> None:
        """Writes losses as ``loss/HEAD``, and other known figures as ``training/NAME``."""
        for name, loss in progress.losses.items():
            self._add(f"loss/{name}", loss, progress.step)
        for name in _FIGURES:
            self._add(f"training/{name}", getattr(progress, name), progress.step)

    def add_quality(self, quality: Mapping[str, LabelQuality], step: int) -> None:
        """Writes the quality of each label as ``LABEL/METRIC``."""
        for label, of_label in quality.items():
            for name, value in of_label._asdict().items():
                self._add(f"{label}/{name}", value, step)

    def close(self) -> None:
        self._writer.close()

    def _add(self, tag: str, value: Any, step: int) -> None:
        if isinstance(value, int | float) and math.isfinite(value):
            self._writer.add_scalar(tag, value, step)
