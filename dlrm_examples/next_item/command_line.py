# SPDX-License-Identifier: Apache-2.0
"""Command-line options."""

from __future__ import annotations

import argparse
from pathlib import Path

from headway.cli.one_line_parser import OneLineParser

from dlrm_examples.next_item.settings import MODEL_NAMES, ModelSettings, TrainingSettings
from dlrm_examples.support.command_line import at_least, program_name


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Creates the parser of the command. Defaults are those of the settings classes."""
    parser = OneLineParser(prog=program_name("dlrm_examples.next_item"), description=description)
    parser.add_argument(
        "--data", type=Path, required=True, metavar="PATH", help="MovieLens' ratings.csv, also .gz, or its directory"
    )
    parser.add_argument(
        "--min-count",
        type=at_least(1),
        default=5,
        metavar="N",
        help="films with fewer ratings are left out (default: %(default)s)",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="gets one JSON line a run")
    parser.add_argument(
        "--model", nargs="+", choices=MODEL_NAMES, default=["hstu", "sasrec"], help="(default: hstu sasrec)"
    )
    parser.add_argument(
        "--attention",
        choices=("kernel", "reference"),
        help="of HSTU: the operator, or the slow reference in plain PyTorch (default: kernel)",
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--seeds", type=at_least(1), default=1, help="runs of each model (default: %(default)s)")
    _add_training(parser.add_argument_group("training, the same for all models"))
    return parser


def settings_of(options: argparse.Namespace) -> tuple[ModelSettings, TrainingSettings]:
    """Builds the settings of model and training from parsed options.

    Raises:
        ValueError: a value is out of range.
    """
    model = ModelSettings(
        dim=options.dim,
        num_layers=options.layers,
        num_heads=options.heads,
        max_length=options.length,
        dropout=options.dropout,
        temperature=options.temperature,
    )
    training = TrainingSettings(
        epochs=options.epochs, batch_size=options.batch_size, lr=options.lr, num_negatives=options.negatives
    )
    return model, training


def _add_training(group: argparse._ArgumentGroup) -> None:
    model, training = ModelSettings(), TrainingSettings()
    default = "(default: %(default)s)"
    group.add_argument("--epochs", type=at_least(1), default=training.epochs, help=f"passes {default}")
    group.add_argument(
        "--batch-size",
        type=at_least(1),
        default=training.batch_size,
        metavar="N",
        help=f"sequences of a step {default}",
    )
    group.add_argument("--lr", type=float, default=training.lr, metavar="RATE", help=f"of Adam {default}")
    group.add_argument(
        "--negatives",
        type=at_least(0),
        default=training.num_negatives,
        metavar="N",
        help=f"items that the next one is told from; 0: all {default}",
    )
    group.add_argument("--dropout", type=float, default=model.dropout, metavar="SHARE", help=default)
    group.add_argument(
        "--temperature",
        type=float,
        default=model.temperature,
        metavar="T",
        help=f"that cosines are divided by {default}",
    )
    group.add_argument("--dim", type=at_least(1), default=model.dim, help=f"columns of embeddings {default}")
    group.add_argument("--layers", type=at_least(1), default=model.num_layers, help=default)
    group.add_argument("--heads", type=at_least(1), default=model.num_heads, help=default)
    group.add_argument(
        "--length", type=at_least(1), default=model.max_length, metavar="N", help=f"longest sequence {default}"
    )
