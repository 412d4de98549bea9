# SPDX-License-Identifier: Apache-2.0
"""Time from the call of a small exchange until its future (``Work.get_future()``) is complete, over Headway and Gloo.

The system ``torch`` is the lower limit: a future of torch that is completed without an exchange.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.harness.arguments import make_parser, whole_number
from benchmarks.harness.plots import Panel, split_panels
from benchmarks.harness.points import Point
from benchmarks.harness.report import measure_and_report
from benchmarks.harness.torch_ranks import run_torch_rounds
from dlrm_examples.support.text_table import format_table, format_time

DESCRIPTION = "latency of futures of small exchanges, against Gloo and a bare future of torch"

_GLOO = "gloo"


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = make_parser("futures", DESCRIPTION, ranks=(2,), against=_GLOO, rounds=3)
    parser.add_argument("--repetitions", type=whole_number(1), default=5000, metavar="N",
                        help="timed calls per round (default: %(default)s)")  # fmt: skip
    parser.add_argument("--time-limit", type=whole_number(1), default=300, metavar="S",
                        help="time limit of a run in seconds (default: %(default)s)")  # fmt: skip
    options = parser.parse_args(argv)
    return measure_and_report("futures", parser, options, measure=measure, format_points=format_points, panels=_panels)


def measure(options: argparse.Namespace) -> list[Point]:
    """Returns one point for each number of ranks, round and system: percentiles of rounds cannot be averaged."""
    settings = {
        "systems": ["headway", *([] if options.against == "none" else [_GLOO]), "torch"],
        "rounds": options.rounds,
        "repetitions": options.repetitions,
        "timeout_s": options.time_limit,
    }
    points = []
    for ranks in options.ranks:
        rounds = run_torch_rounds(
            "benchmarks.torch_ranks.futures_rank", settings, num_ranks=ranks, time_limit_s=options.time_limit
        )
        for each in rounds:
            points += each
    return points


def format_points(points: Sequence[Point]) -> str:
    """Formats the table: one row for each point."""
    rows = [
        (
            f"{point.params['ranks']} ranks, {point.system}",
            format_time(point.median_s),
            *(format_time(point.extra[name]) for name in ("p90_s", "p99_s", "longest_s")),
        )
        for point in points
    ]
    return format_table(("", "median", "p90", "p99", "longest"), rows)


def _panels(points: Sequence[Point]) -> list[Panel]:
    return split_panels(points, "ranks", title="futures, {ranks} ranks", x="run", x_label="round")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
