# SPDX-License-Identifier: Apache-2.0
"""Lookups at a parameter server of hybrid training, in turns with the same lookups elsewhere.

Systems: ``table`` is a table of the process behind one lock, without a server, and ``stripes`` the same table with
locks of its stripes. ``in_process`` is a server that is a thread of the process. ``shm`` and ``tcp`` are a server in
another process. ``raw_tcp`` moves the same bytes over a loopback socket and looks nothing up. The program
``bench_parameter_server`` has details.

Each system is measured alone, and while another thread updates rows. The ratio is the speed over that of the system in
``_LIMITS`` under the same conditions; ``raw_tcp`` has no rows to update.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.harness.arguments import make_parser, whole_number
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.points import Point, parse_point
from benchmarks.harness.process_tree import run_process_tree
from benchmarks.harness.report import measure_and_report
from dlrm_examples.support.text_table import format_table, format_time

DESCRIPTION = "lookups at a parameter server beside those in a table of the process"
_PROGRAM = Path(__file__).resolve().parents[1] / "build" / "benchmarks" / "hybrid" / "bench_parameter_server"
#: System whose speed limits that of another one.
_LIMITS = {"stripes": "table", "in_process": "table", "shm": "in_process", "tcp": "raw_tcp"}


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = make_parser("parameter_server", DESCRIPTION, ranks=(2,), rounds=9)
    for name, default, text in (
        ("--rows", 1_000_000, "rows of the table"),
        ("--dim", 64, "floats of a row"),
        ("--keys", 4096, "keys of a lookup"),
        ("--updates", 200, "updates of as many rows in a second, beside lookups"),
        ("--milliseconds", 300, "milliseconds of a round"),
    ):
        parser.add_argument(name, type=whole_number(1), default=default, help=f"{text} (default: %(default)s)")
    return measure_and_report(
        "parameter_server", parser, parser.parse_args(argv), measure=measure, format_points=format_points
    )


def measure(options: argparse.Namespace) -> list[Point]:
    """Measures a point for each system.

    Raises:
        BenchmarkError: the program is not built, or has failed.
    """
    if options.ranks != [2]:
        raise BenchmarkError("--ranks is 2: a process that asks, and one that is the server")
    if not _PROGRAM.is_file():
        raise BenchmarkError(f"{_PROGRAM} is not built: run tools/build.sh in a checkout")
    names = ("rows", "dim", "keys", "updates", "rounds", "milliseconds")
    command = [str(_PROGRAM), *(word for name in names for word in (f"--{name}", str(getattr(options, name))))]
    limit_s = 120 + options.rounds * options.milliseconds / 50
    ended = run_process_tree([*command, "--time-limit", str(round(limit_s))], timeout_s=limit_s, environment=os.environ)
    if ended.returncode != 0:
        raise BenchmarkError(ended.stderr.strip().splitlines()[-1] if ended.stderr.strip() else "the program failed")
    points = [parse_point(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    times = {(point.system, point.params["updates"]): point.median_s or 0.0 for point in points}

    def ratio_of(point: Point) -> float | None:
        if point.system not in _LIMITS:
            return None
        limit, updates = _LIMITS[point.system], point.params["updates"]
        limit_s = times.get((limit, updates), times[limit, 0])
        return limit_s / times[point.system, updates]

    order = ["table", "stripes", "in_process", "shm", "tcp", "raw_tcp"]
    points.sort(key=lambda point: (point.params["updates"], order.index(point.system)))
    return [replace(point, ratio=ratio_of(point)) for point in points]


def format_points(points: Sequence[Point]) -> str:
    """Formats the table: one row for each system, alone and with updates."""
    rows = [
        (
            point.system,
            f"{point.extra['update_rate']:.0f}/s" if point.params["updates"] else "",
            format_time(point.median_s),
            f"{(point.rate or 0) / 1e6:.2f}",
            "" if point.ratio is None else f"{point.ratio:.2f} of {_LIMITS[point.system]}",
        )
        for point in points
    ]
    return format_table(("system", "updates", "a lookup", "million rows/s", "speed"), rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
