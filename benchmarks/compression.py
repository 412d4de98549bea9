# SPDX-License-Identifier: Apache-2.0
"""Compression of ids and values in hybrid training: how much smaller they get, and how fast both ways are.

Kinds: ``ids`` are drawn by Zipf's law. ``hashed_ids`` are the same, spread over 64 bits by a hash. ``values`` are rows
of floats. The program ``bench_compression`` has details.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.arguments import make_parser, whole_number
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.points import Point, parse_point
from benchmarks.harness.process_tree import run_process_tree
from benchmarks.harness.report import measure_and_report
from dlrm_examples.support.text_table import format_table, format_time

DESCRIPTION = "compression of ids and values in hybrid training"
_PROGRAM = Path(__file__).resolve().parents[1] / "build" / "benchmarks" / "hybrid" / "bench_compression"
_NAMES = ("samples", "ids", "space", "zipf", "rows", "dim", "rounds")


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = make_parser("compression", DESCRIPTION, ranks=(1,), rounds=101)
    for name, default, text in (
        ("--samples", 4096, "lists of ids"),
        ("--ids", 20, "ids of a list"),
        ("--space", 50_000_000, "ids to draw from"),
        ("--zipf", 120, "exponent of Zipf's law in hundredths, not 100"),
        ("--rows", 16_384, "rows of values"),
        ("--dim", 64, "values of a row"),
    ):
        parser.add_argument(name, type=whole_number(1), default=default, help=f"{text} (default: %(default)s)")
    return measure_and_report(
        "compression", parser, parser.parse_args(argv), measure=measure, format_points=format_points
    )


def measure(options: argparse.Namespace) -> list[Point]:
    """Measures a point for each kind and direction.

    Raises:
        BenchmarkError: the program is not built, or has failed.
    """
    if options.ranks != [1]:
        raise BenchmarkError("--ranks is 1: one thread compresses")
    if not _PROGRAM.is_file():
        raise BenchmarkError(f"{_PROGRAM} is not built: run tools/build.sh in a checkout")
    command = [str(_PROGRAM), *(word for name in _NAMES for word in (f"--{name}", str(getattr(options, name))))]
    ended = run_process_tree(command, timeout_s=600, environment=os.environ)
    if ended.returncode != 0:
        raise BenchmarkError(ended.stderr.strip().splitlines()[-1] if ended.stderr.strip() else "the program failed")
    return [parse_point(line) for line in ended.stdout.splitlines() if line.startswith("{")]


def format_points(points: Sequence[Point]) -> str:
    """Formats the table: one row for each kind and direction."""
    rows = [
        (
            str(point.params["kind"]),
            point.system,
            f"{point.extra['compressed']:.2f}",
            format_time(point.median_s),
            f"{point.rate or 0:.1f}",
        )
        for point in points
    ]
    return format_table(("kind", "direction", "times smaller", "a batch", "GB/s of plain bytes"), rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
