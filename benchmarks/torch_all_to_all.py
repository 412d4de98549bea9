# SPDX-License-Identifier: Apache-2.0
"""Compares ``torch.distributed.all_to_all_single`` over Headway and over Gloo, in turns in the same processes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.harness.arguments import make_parser
from benchmarks.harness.plots import Panel, split_panels
from benchmarks.harness.points import Point
from benchmarks.harness.report import measure_and_report
from benchmarks.harness.torch_exchanges import add_exchange_options, measure_exchanges
from dlrm_examples.support.text_table import format_bytes, format_ratio, format_table, format_time

DESCRIPTION = "torch.distributed.all_to_all_single against Gloo"

_HEADWAY = "headway"
_GLOO = "gloo"


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = make_parser("torch_all_to_all", DESCRIPTION, ranks=(8,), sizes="8,64,512,4K,32K,256K,2M,16M",
                         against=_GLOO, rounds=5)  # fmt: skip
    add_exchange_options(parser, splits=["even"])
    options = parser.parse_args(argv)
    return measure_and_report(
        "torch_all_to_all", parser, options, measure=measure, format_points=format_points, panels=_panels
    )


def measure(options: argparse.Namespace) -> list[Point]:
    """Measures all points, combined over rounds."""
    return measure_exchanges("benchmarks.torch_ranks.all_to_all_rank", options, systems=[_HEADWAY], reference=_GLOO)


def format_points(points: Sequence[Point]) -> str:
    """Formats the table: one row for each number of ranks, split (bytes by destination) and size.

    "faster" is Gloo's time divided by Headway's, with its lowest and highest value over the rounds.
    """
    others = {point.key: point for point in points if point.system == _GLOO}
    rows = []
    for point in points:
        if point.system == _HEADWAY:
            other = others.get(point.key)
            rows.append(
                (
                    f"{point.params['ranks']} ranks, {point.params['split']}",
                    format_bytes(point.params["bytes_per_rank"]),
                    format_time(point.median_s),
                    format_time(other.median_s if other else None),
                    format_ratio(point.ratio, point.extra.get("ratio_low"), point.extra.get("ratio_high")),
                )
            )
    return format_table(("", "per rank", "headway", "gloo", "faster (rounds)"), rows)


def _panels(points: Sequence[Point]) -> list[Panel]:
    return split_panels(points, "ranks", "split", title="torch, {ranks} ranks, {split}", x="bytes_per_rank")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
