# SPDX-License-Identifier: Apache-2.0
"""Cost of a bound k > 0 when no rank is late: groups with different bounds take turns in the same processes.

The bound k (``max_lag``) is the number of exchanges that a rank may run ahead of its peers.

All bounds cycle through the same sets of buffers, one set more than the largest bound. So only the bound differs. One
more row shows blocking calls that reuse a single set: a program with calls in flight cannot do that.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from benchmarks.harness.arguments import add_program_options, flat, make_parser, size, whole_number
from benchmarks.harness.pairing import median_interval
from benchmarks.harness.plots import Panel, split_panels
from benchmarks.harness.points import Point
from benchmarks.harness.programs import HEADWAY, Launch, Programs, num_cores
from benchmarks.harness.report import measure_and_report
from benchmarks.harness.turns import take_turns
from dlrm_examples.support.text_table import format_bytes, format_table, format_time

DESCRIPTION = "time of an exchange with bound k = 1 to 4 over that with k = 0, all ranks alike"

_LEAST_SLOT_BYTES = 256 << 10


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = make_parser("lag_cost", DESCRIPTION, ranks=(2,), sizes="512,4K,32K,256K,2M", rounds=3)
    parser.add_argument("--lags", type=whole_number(1), nargs="+", default=[1, 2, 3, 4], metavar="K",
                        help="bounds to compare with 0 (default: 1 2 3 4)")  # fmt: skip
    parser.add_argument("--slot-bytes", type=size, metavar="BYTES",
                        help="largest block that can lag; an exchange with a larger one works, but does not lag "
                             "(default: as the largest size needs, 256K at least)")  # fmt: skip
    add_program_options(parser)
    options = parser.parse_args(argv)
    return measure_and_report("lag_cost", parser, options, measure=measure, format_points=format_points, panels=_panels)


def measure(options: argparse.Namespace) -> list[Point]:
    """Measures one point for each number of ranks, size and bound.

    For each number of ranks and size, it also measures bound 0 with a single set of buffers.
    """
    programs = Programs(options.programs)
    sizes = flat(options.sizes)
    points = []
    for ranks in options.ranks:
        if ranks > num_cores():
            print(f"note: {ranks} ranks on {num_cores()} cores: they are not alike, some wait for a core")
        slot_bytes = options.slot_bytes or max(_LEAST_SLOT_BYTES, -(-max(sizes) // ranks))
        arguments = ["--mode", "lag_cost", "--sizes", ",".join(map(str, sizes)), "--slot-bytes", str(slot_bytes)]
        arguments += ["--lags", ",".join(map(str, [0, *options.lags]))]
        if options.repetitions is not None:
            arguments += ["--repetitions", str(options.repetitions)]
        launch = Launch(ranks=ranks)

        def run(system: str, arguments: list[str] = arguments, launch: Launch = launch) -> list[Point]:
            return programs.run(system, arguments, launch, timeout_s=options.time_limit)

        points += compare_turns(take_turns([HEADWAY], options.rounds, run, title=f"{ranks} ranks"))
    return points


def compare_turns(rounds: Sequence[Sequence[Point]]) -> list[Point]:
    """Merges the points of equal size, bound and number of sets, and compares them with bound 0 turn by turn.

    The base of all ratios is bound 0 on all sets of buffers, also for the point with a single set.

    Returns:
        points whose ``extra`` has ``time_ratio``, ``time_ratio_low`` and ``time_ratio_high``: the median over turns of
        this point's time over that of the base, with its 95% interval.
    """
    num_sets = max(point.params["sets"] for points in rounds for point in points)
    turns_s: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    firsts: dict[tuple[int, int, int], Point] = {}
    for points in rounds:
        for point in points:
            key = (point.params["bytes_per_rank"], point.params["lag"], point.params["sets"])
            firsts.setdefault(key, point)
            turns_s[key] += point.extra["turns_s"]
    compared = []
    for key, point in firsts.items():
        bytes_per_rank = point.params["bytes_per_rank"]
        times_s, base_s = turns_s[key], turns_s[bytes_per_rank, 0, num_sets]
        interval = median_interval([time / base for time, base in zip(times_s, base_s, strict=True)])
        low_s, median_s, high_s = np.quantile(times_s, (0.05, 0.5, 0.95)).tolist()
        extra = {"time_ratio": interval.median, "time_ratio_low": interval.low, "time_ratio_high": interval.high}
        compared.append(
            dataclasses.replace(
                point,
                median_s=median_s,
                p5_s=low_s,
                p95_s=high_s,
                rate=bytes_per_rank / median_s / 1e9,
                ratio=1 / interval.median,
                samples=len(times_s),
                extra=extra,
            )
        )
    return compared


def format_points(points: Sequence[Point]) -> str:
    """Formats the table: one row for each number of ranks, size, bound and number of sets of buffers."""
    rows = [
        (
            f"{point.params['ranks']} ranks",
            format_bytes(point.params["bytes_per_rank"]),
            str(point.params["lag"]),
            str(point.params["sets"]),
            format_time(point.median_s),
            f"{point.extra['time_ratio']:.3f}",
            f"{point.extra['time_ratio_low']:.3f} to {point.extra['time_ratio_high']:.3f}",
        )
        for point in points
    ]
    return format_table(("", "per rank", "k", "buffers", "an exchange", "time over k = 0", "95% interval"), rows)


def _panels(points: Sequence[Point]) -> list[Panel]:
    options = {"y_label": "time over that of k = 0", "log_x": False, "log_y": False}
    return split_panels(
        [point for point in points if point.params["sets"] > 1], "ranks", title="{ranks} ranks", x="lag",
        x_label="bound k", label=lambda point: format_bytes(point.params["bytes_per_rank"]),
        y=lambda point: point.extra["time_ratio"], **options,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
