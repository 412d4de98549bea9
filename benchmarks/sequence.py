# SPDX-License-Identifier: Apache-2.0
"""1 to 100,000 all-to-alls in a row, against Open MPI in the same harness.

Figure 6b of the paper on bounded-lag collectives (arXiv 2512.19342) shows the same measurement.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.harness.arguments import add_program_options, flat, make_parser, whole_number
from benchmarks.harness.pairing import combine_rounds
from benchmarks.harness.plots import Panel, split_panels
from benchmarks.harness.points import Point
from benchmarks.harness.programs import HEADWAY, OPENMPI, Launch, Programs
from benchmarks.harness.report import measure_and_report
from benchmarks.harness.turns import choose_systems, take_turns
from dlrm_examples.support.text_table import format_bytes, format_ratio, format_table, format_time

DESCRIPTION = "time per call of 1 to 100,000 all-to-alls in a row at 32 KiB per rank"

COUNTS = (1, 10, 100, 1_000, 10_000, 100_000)


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = make_parser("sequence", DESCRIPTION, ranks=(8,), sizes="32K", against=OPENMPI, rounds=3)
    parser.add_argument("--counts", type=whole_number(1), nargs="+", default=list(COUNTS), metavar="N",
                        help="calls in a row (default: 1 10 ... 100000)")  # fmt: skip
    parser.add_argument("--lag", type=whole_number(0), default=0, metavar="K", help="calls in flight less one (0)")
    add_program_options(parser)
    options = parser.parse_args(argv)
    return measure_and_report("sequence", parser, options, measure=measure, format_points=format_points, panels=_panels)


def measure(options: argparse.Namespace) -> list[Point]:
    """Measures one point for each system, number of ranks, size and count, combined over rounds."""
    programs = Programs(options.programs)
    systems = choose_systems(programs, options.against, OPENMPI)
    arguments = ["--mode", "sequence", "--lag", str(options.lag)]
    arguments += ["--sizes", ",".join(map(str, flat(options.sizes)))]
    arguments += ["--counts", ",".join(map(str, options.counts))]
    if options.repetitions is not None:
        arguments += ["--repetitions", str(options.repetitions)]
    points = []
    for ranks in options.ranks:
        launch = Launch(ranks=ranks)

        def run(system: str, launch: Launch = launch) -> list[Point]:
            return programs.run(system, arguments, launch, timeout_s=options.time_limit)

        rounds = take_turns(systems, options.rounds, run, title=f"{ranks} ranks")
        points += combine_rounds(rounds, reference=OPENMPI)
    return points


def format_points(points: Sequence[Point]) -> str:
    """Formats the table: one row for each number of ranks, size and count.

    "faster" is Open MPI's time divided by Headway's, with its lowest and highest value over the rounds.
    """
    others = {point.key: point for point in points if point.system == OPENMPI}
    rows = []
    for point in points:
        if point.system != HEADWAY:
            continue
        other = others.get(point.key)
        rows.append(
            (
                f"{point.params['ranks']} ranks",
                format_bytes(point.params["bytes_per_rank"]),
                str(point.params["calls"]),
                format_time(point.median_s),
                format_time(other.median_s if other else None),
                format_ratio(point.ratio, point.extra.get("ratio_low"), point.extra.get("ratio_high")),
            )
        )
    return format_table(("", "per rank", "calls", "headway, a call", "openmpi, a call", "faster (rounds)"), rows)


def _panels(points: Sequence[Point]) -> list[Panel]:
    title = "{ranks} ranks, {bytes_per_rank} bytes per rank"
    return split_panels(points, "ranks", "bytes_per_rank", title=title, x="calls", x_label="calls in a row")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
