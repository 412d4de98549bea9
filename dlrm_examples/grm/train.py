# SPDX-License-Identifier: Apache-2.0
"""``headway train``: without a config it generates logs and trains a small model on them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from headway.training.command_line import main as train_main

from dlrm_examples.grm.generate import write_log

_NUM_TRAIN, _NUM_EVALUATION = 8_000, 1_500


_CONFIG = Path(__file__).with_name("generated.toml")


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    return train_main(argv, default_config=_CONFIG, generate=generate)


def generate(out: Path) -> Path:
    """Writes generated logs below ``out`` if they are not there; returns the config beside them."""
    folder = out / "generated"
    config = folder / _CONFIG.name
    if not config.exists():
        write_log(folder / "train", num_samples=_NUM_TRAIN, seed=1)
        write_log(folder / "evaluation", num_samples=_NUM_EVALUATION, seed=2, first_user=_NUM_TRAIN)
        shutil.copyfile(_CONFIG, config)  # Last: its presence means that the logs are complete.
    return config
