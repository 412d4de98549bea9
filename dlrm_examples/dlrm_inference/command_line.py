# SPDX-License-Identifier: Apache-2.0
"""Command-line options shared by the demo (one setting) and the grid (all settings)."""

from __future__ import annotations

import argparse
from pathlib import Path

from headway.cli.one_line_parser import OneLineParser

from dlrm_examples.dlrm_inference.devices import DEVICE_NAMES
from dlrm_examples.dlrm_inference.systems import SYSTEMS
from dlrm_examples.support.command_line import at_least
from dlrm_examples.support.data.columnar_store import default_store_root
from dlrm_examples.support.data.log_formats import FORMATS
from dlrm_examples.support.foreign_load import parse_foreign_load

MAX_ROWS_PER_TABLE = 1_000_000


def make_parser(program: str, description: str, *, default_out: str, default_steps: int) -> argparse.ArgumentParser:
    """Creates a parser with the shared options."""
    parser = OneLineParser(
        prog=program,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--ranks", type=at_least(1), default=4, help="processes (default: %(default)s)")
    parser.add_argument(
        "--lag",
        type=at_least(0),
        nargs="+",
        default=[0, 1, 2, 3, 4],
        metavar="K",
        help="bounds to try: steps that a rank may be ahead of another (default: 0 1 2 3 4)",
    )
    parser.add_argument(
        "--device",
        choices=DEVICE_NAMES,
        default="cpu",
        help="where the ranks compute: cpu, or cuda, a GPU of this host for each (default: %(default)s)",
    )
    parser.add_argument(
        "--systems",
        nargs="+",
        choices=tuple(SYSTEMS),
        help="; ".join(f"{system.name}: {system.description}" for system in SYSTEMS.values())
        + " (default: all of the device)",
    )
    parser.add_argument(
        "--data", type=Path, metavar="PATH", help="log file or directory, .gz too (default: a generated Criteo log)"
    )
    parser.add_argument(
        "--format",
        choices=("auto", *FORMATS),
        default="auto",
        help="format of --data; auto tells a directory of Ali-CCP from Criteo's files (default: auto)",
    )
    parser.add_argument("--strict", action="store_true", help="stop at a malformed line instead of counting it")
    parser.add_argument(
        "--steps", type=at_least(1), default=default_steps, help="batches per run (default: %(default)s)"
    )
    parser.add_argument("--runs", type=at_least(1), default=5, help="repetitions of each point (default: %(default)s)")
    parser.add_argument(
        "--mini-batch", type=at_least(1), default=128, help="rows that a rank answers per step (default: %(default)s)"
    )
    parser.add_argument(
        "--max-rows-per-table",
        type=at_least(1),
        default=MAX_ROWS_PER_TABLE,
        metavar="ROWS",
        help="larger tables are cut to this, ids are taken modulo (default: %(default)s)",
    )
    parser.add_argument("--seed", type=at_least(0), default=0, help="of weights, delays and ids (default: %(default)s)")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(default_out),
        metavar="DIR",
        help="gets report.html, results.jsonl and plots (default: %(default)s)",
    )
    parser.add_argument(
        "--store",
        type=Path,
        default=default_store_root(),
        metavar="DIR",
        help="keeps converted logs for the next time (default: %(default)s)",
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="write traces of the exchanges over Headway, for ui.perfetto.dev: FILE.SETTING.DATASET.RANK.json",
    )
    parser.add_argument(
        "--foreign-load",
        type=parse_foreign_load,
        nargs="+",
        default=[],
        metavar="KIND=N",
        help="run N other programs meanwhile: spin=N count, memory=N copy memory, compile=N compile C++",
    )
    parser.add_argument(
        "--timeout", type=at_least(1), default=1800, metavar="S", help="stop after this time (default: %(default)s s)"
    )
    return parser
