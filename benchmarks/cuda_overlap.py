# SPDX-License-Identifier: Apache-2.0
"""Slowdown of GPU work while exchanges run beside it: no exchange, bare copies, Headway, or NCCL.

Bare copies are the driver's copies between devices, without any local copy and without waiting for peers. No exchange
over copy engines can cost less. ``headway_empty`` exchanges into memory of ``headway.empty()``, which peers write
directly. ``headway_slots`` exchanges slot tensors (``headway.slots``), whose receive buffer is the output.
``nccl_copy_engines`` is NCCL on symmetric memory. The work is matrix products or attention.

The clock rate is reported too, because exchanges can lower it. Time x clock rate is the work's number of cycles. A
point is ``covered`` if exchanges ran during all of the work.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections.abc import Sequence

from benchmarks.harness.arguments import make_parser, size, whole_number
from benchmarks.harness.pairing import combine_rounds
from benchmarks.harness.plots import Panel, split_panels
from benchmarks.harness.points import Point
from benchmarks.harness.report import measure_and_report
from benchmarks.harness.torch_ranks import run_torch_rounds
from dlrm_examples.support.text_table import format_table, format_time

DESCRIPTION = "work on GPUs beside exchanges, against NCCL"

_ALONE = "none"  #: The work without exchanges, to which the others are compared.
_SYSTEMS = (_ALONE, "copies", "headway_slots", "headway_empty", "headway", "nccl_copy_engines", "nccl")
_WORKS = ("products", "attention")


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = make_parser("cuda_overlap", DESCRIPTION, ranks=(2,), against="nccl", rounds=15)
    parser.add_argument("--bytes", type=size, default=256 << 20, metavar="BYTES",
                        help="of a rank in one exchange (default: 256M)")  # fmt: skip
    parser.add_argument("--work", nargs="+", choices=_WORKS, default=list(_WORKS),
                        help="what runs beside them (default: both)")  # fmt: skip
    parser.add_argument("--time-limit", type=whole_number(1), default=300, metavar="S",
                        help="of a run (default: %(default)s s)")  # fmt: skip
    options = parser.parse_args(argv)
    return measure_and_report(
        "cuda_overlap", parser, options, measure=measure, format_points=format_points, panels=_panels
    )


def measure(options: argparse.Namespace) -> list[Point]:
    """Measures all points, combined over rounds and ranks. ``ratio``: speed of the work over that without exchanges."""
    points = []
    for ranks in options.ranks:
        settings = {
            "systems": [each for each in _SYSTEMS if not each.startswith("nccl") or options.against != "none"],
            "works": options.work,
            "bytes_per_rank": options.bytes,
            "rounds": options.rounds,
            "timeout_s": options.time_limit,
        }
        rounds = run_torch_rounds(
            "benchmarks.torch_ranks.cuda_overlap_rank", settings, num_ranks=ranks, time_limit_s=options.time_limit
        )
        of_all_rounds = list(itertools.chain.from_iterable(rounds))
        points += [with_clock(point, of_all_rounds) for point in combine_rounds(rounds, reference=_ALONE)]
    return points


def with_clock(point: Point, all_points: Sequence[Point]) -> Point:
    """Adds medians of the clock rate and of time x clock rate. Says if exchanges ran during all work in every round."""
    same = [each for each in all_points if each.key == point.key and each.system == point.system]
    point.extra["clock_mhz"] = statistics.median(each.extra["clock_mhz"] for each in same)
    point.extra["cycles"] = statistics.median((each.median_s or 0) * each.extra["clock_mhz"] * 1e6 for each in same)
    point.extra["exchange_s"] = statistics.median(each.extra["exchange_s"] for each in same)
    point.extra["covered"] = all(each.extra["covered"] for each in same)
    return point


def format_points(points: Sequence[Point]) -> str:
    """Formats the table: one row for each work and system."""
    rows = []
    for point in points:
        alone = next(each for each in points if each.key == point.key and each.system == _ALONE)
        low, high = point.extra.get("ratio_low"), point.extra.get("ratio_high")
        slower = f"{(1 / point.ratio - 1) * 100:+.2f}% ({(1 / high - 1) * 100:+.2f} to {(1 / low - 1) * 100:+.2f})"
        cycles = f"{(point.extra['cycles'] / alone.extra['cycles'] - 1) * 100:+.2f}%"
        rows.append(
            (
                f"{point.params['ranks']} ranks, {point.params['work']}",
                point.system,
                format_time(point.median_s),
                slower,
                f"{point.extra['clock_mhz']:.0f} MHz",
                cycles,
                format_time(point.extra["exchange_s"]),
                "yes" if point.extra["covered"] else "NO",
            )
        )
    header = ("", "beside", "time of the work", "slower (rounds)", "clock", "time x clock", "an exchange", "covered")
    return format_table(header, rows)


def _panels(points: Sequence[Point]) -> list[Panel]:
    return split_panels(points, "work", title="{work} beside exchanges", x="bytes_per_rank")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
