# SPDX-License-Identifier: Apache-2.0
"""Steps of a sharded table with duplicates removed nowhere, before the exchange, after it, or both.

A step looks up a batch, expands the embeddings to all ids, and applies one gradient per id. The four settings take
turns in the same processes with the same ids: ``none``, ``first`` (a rank removes duplicates before it sends ids to
their owners), ``second`` (an owner removes them after the exchange) and ``both``. They are the settings of figure 16 of
the MTGRBoost paper. The owner of an id is the rank that stores its row.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.harness.arguments import make_parser, whole_number
from benchmarks.harness.gpus import expect_gpu_each
from benchmarks.harness.plots import Panel, split_panels
from benchmarks.harness.points import Point
from benchmarks.harness.report import measure_and_report
from benchmarks.harness.torch_ranks import measure_torch_ranks
from dlrm_examples.support.text_table import format_ratio, format_table, format_time

DESCRIPTION = "steps of a shared table by where duplicates are found, on GPUs"

_SETTINGS = ("device", "keys", "length", "ids", "exponent", "steps", "rounds")


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = make_parser("dedup_steps", DESCRIPTION, ranks=(2,), rounds=5)
    for name, default, text in (
        ("--keys", 262_144, "ids of a rank and step"),
        ("--length", 128, "of them in a list"),
        ("--ids", 50_000_000, "that may come"),
        ("--steps", 5, "of a round"),
        ("--time-limit", 300, "seconds of a run"),
    ):
        parser.add_argument(name, type=whole_number(1), default=default, help=f"{text} (default: %(default)s)")
    parser.add_argument("--exponent", type=float, default=1.05, help="of their popularity (default: %(default)s)")
    parser.add_argument("--dim", type=whole_number(1), nargs="+", default=[2048], help="(default: %(default)s)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try it out")
    options = parser.parse_args(argv)
    if options.length > options.keys:
        parser.error(f"--length must be {options.keys} at most, not {options.length}")
    return measure_and_report(
        "dedup_steps", parser, options, measure=measure, format_points=format_points, panels=_panels
    )


def measure(options: argparse.Namespace) -> list[Point]:
    """Measures a point for each number of ranks, dim and setting of deduplication.

    Raises:
        BenchmarkError: there are fewer GPUs than ranks, or a rank failed.
    """
    if options.device == "cuda":
        expect_gpu_each(options.ranks)
    settings = {name: getattr(options, name) for name in _SETTINGS} | {"timeout_s": options.time_limit}
    points: list[Point] = []
    for num_ranks in options.ranks:
        for dim in options.dim:
            points += measure_torch_ranks(
                "benchmarks.torch_ranks.dedup_steps_rank", {**settings, "dim": dim}, num_ranks=num_ranks,
                time_limit_s=options.time_limit, reference="none",
            )  # fmt: skip
    return points


def format_points(points: Sequence[Point]) -> str:
    """Formats the table: one row for each number of ranks, dim and setting of deduplication."""
    rows = [
        (
            f"{point.params['ranks']} ranks, dim {point.params['dim']}",
            point.system,
            format_time(point.median_s),
            format_ratio(point.ratio, point.extra.get("ratio_low"), point.extra.get("ratio_high")),
        )
        for point in points
    ]
    return format_table(("", "duplicates found", "a step", "faster than none (rounds)"), rows)


def _panels(points: Sequence[Point]) -> list[Panel]:
    return split_panels(points, "dim", title="a step, dim {dim}", x="ranks")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
