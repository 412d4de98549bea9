# SPDX-License-Identifier: Apache-2.0
"""Memory of a group (communicator): reserved bytes, and bytes in use after exchanges.

A group reserves a ring of receive slots per peer. A slot holds one block: the bytes from one rank to another in one
exchange. An exchange with a larger block works, but no rank runs ahead in it. The group's memory grows with the slot
size and with the bound k, the number of exchanges that a rank may run ahead of its peers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.harness.arguments import add_program_options, flat, make_parser, size, whole_number
from benchmarks.harness.plots import Panel
from benchmarks.harness.points import Point
from benchmarks.harness.programs import HEADWAY, Launch, Programs
from benchmarks.harness.report import measure_and_report
from dlrm_examples.support.text_table import format_bytes, format_table

DESCRIPTION = "memory of a group over ranks, slot size and bound k"


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = make_parser("group_memory", DESCRIPTION, ranks=(2, 4, 8), sizes="32K")
    parser.add_argument("--slot-bytes", type=size, nargs="+", default=[64 << 10, 256 << 10, 1 << 20], metavar="BYTES",
                        help="largest block that lags (default: 64K 256K 1M)")  # fmt: skip
    parser.add_argument("--lag", type=whole_number(0), nargs="+", default=[0, 1, 2, 4], metavar="K",
                        help="bounds (default: 0 1 2 4)")  # fmt: skip
    add_program_options(parser)
    options = parser.parse_args(argv)
    return measure_and_report(
        "group_memory", parser, options, measure=measure, format_points=format_points, panels=_panels
    )


def measure(options: argparse.Namespace) -> list[Point]:
    """Measures one point for each number of ranks, slot size, bound and size."""
    programs = Programs(options.programs, use_mpirun=False)
    return [
        point
        for ranks in options.ranks
        for slot_bytes in options.slot_bytes
        for lag in options.lag
        for size_bytes in flat(options.sizes)
        for point in programs.run(
            HEADWAY,
            ["--mode", "memory", "--sizes", str(size_bytes), "--slot-bytes", str(slot_bytes), "--lag", str(lag)],
            Launch(ranks=ranks),
            timeout_s=options.time_limit,
        )
    ]


def format_points(points: Sequence[Point]) -> str:
    """Formats the table: bytes per rank, as the mean over ranks."""
    rows = [
        (
            f"{point.params['ranks']} ranks",
            format_bytes(point.params["slot_bytes"]),
            str(point.params["lag"]),
            format_bytes(point.params["bytes_per_rank"]),
            _each(point, "reserved_bytes"),
            _each(point, "resident_bytes_connected"),
            _each(point, "resident_bytes_used"),
        )
        for point in points
    ]
    headings = ("", "slot", "k", "per rank", "reserved, a rank", "in use when connected", "in use after exchanges")
    return format_table(headings, rows)


def _each(point: Point, name: str) -> str:
    total = point.extra[name]
    return "-" if total is None else format_bytes(max(0.0, total) / point.params["ranks"])


def _panels(points: Sequence[Point]) -> list[Panel]:
    return [
        Panel(
            title=f"slots of {format_bytes(slot_bytes)}",
            points=[point for point in points if point.params["slot_bytes"] == slot_bytes],
            x=lambda point: float(point.params["lag"]),
            x_label="bound k",
            label=lambda point: f"{point.params['ranks']} ranks",
            y=lambda point: float(point.extra["reserved_bytes"]) / point.params["ranks"] / (1 << 20),
            y_label="reserved by a rank (MiB)",
            log_x=False,
            log_y=False,
        )
        for slot_bytes in dict.fromkeys(point.params["slot_bytes"] for point in points)
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
