# SPDX-License-Identifier: Apache-2.0
"""Host time of an exchange's arguments: packing the rows of merged tables by rank, and unpacking the received rows.

No rank is started: the counts are those of ``--ranks`` virtual ranks. Each rank gets a few rows of each of three merged
tables, so that the number of pieces decides the time, not the bytes. A merged table holds tables of equal
configuration, which share exchanges.

Suffixes: G merged tables, R ranks.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import torch
from headway.embedding.keys import all_to_all_arguments, by_table

from benchmarks.harness.arguments import make_parser
from benchmarks.harness.points import Point
from benchmarks.harness.report import measure_and_report
from dlrm_examples.support.text_table import format_table, format_time

DESCRIPTION = "host time of packing and unpacking the rows of merged tables for many ranks"

_WIDTHS = (16, 16, 16)  #: Columns of the merged tables.
_ROWS = 4  #: Rows of each merged table for each rank.
_CALLS = 200


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = make_parser("exchange_arguments", DESCRIPTION, ranks=(8, 128, 1024), rounds=5)
    options = parser.parse_args(argv)
    return measure_and_report("exchange_arguments", parser, options, measure=measure, format_points=format_points)


def measure(options: argparse.Namespace) -> list[Point]:
    """Measures two points for each number of ranks: packing and unpacking."""
    torch.set_num_threads(1)
    points = []
    for num_ranks in options.ranks:
        counts_GR = torch.full((len(_WIDTHS), num_ranks), _ROWS)
        values_G = [torch.randn(_ROWS * num_ranks, width) for width in _WIDTHS]
        # [1] is the send buffer. All counts are equal, so it has the form of a receive buffer too.
        buffer = all_to_all_arguments(values_G, counts_GR, counts_GR)[1]
        calls: dict[str, Callable[[], object]] = {
            "pack": lambda v=values_G, c=counts_GR: all_to_all_arguments(v, c, c),
            "unpack": lambda b=buffer, c=counts_GR: by_table(b, c, _WIDTHS),
        }
        for name, call in calls.items():
            _median_s(call)  # Warms up.
            times_s = sorted(_median_s(call) for _ in range(options.rounds))
            median_s = statistics.median(times_s)
            points.append(
                Point(
                    name="exchange_arguments", params={"ranks": num_ranks, "call": name}, system="headway",
                    median_s=median_s, p5_s=times_s[0], p95_s=times_s[-1], samples=len(times_s),
                    extra={"ns_per_rank": median_s * 1e9 / num_ranks},
                )
            )  # fmt: skip
    return points


def _median_s(call: Callable[[], object]) -> float:
    times_s = []
    for _ in range(_CALLS):
        started = time.perf_counter()
        call()
        times_s.append(time.perf_counter() - started)
    return statistics.median(times_s)


def format_points(points: Sequence[Point]) -> str:
    """Formats the table: one row for each point."""
    rows = [
        (
            str(point.params["ranks"]),
            str(point.params["call"]),
            format_time(point.median_s),
            f"{point.extra['ns_per_rank']:.0f} ns",
        )
        for point in points
    ]
    return format_table(("ranks", "call", "time", "for each rank"), rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
