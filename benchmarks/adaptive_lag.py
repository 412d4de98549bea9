# SPDX-License-Identifier: Apache-2.0
"""Compares an adaptive lag bound with every fixed bound, for several patterns of lateness.

The bound k (``max_lag``) is the number of exchanges that a rank may run ahead of its peers. With ``"auto"`` Headway
chooses it while the loop runs, up to ``--limit``. A larger bound hides the lateness of single ranks, but the result of
an exchange is then used later: ``request_latency_s`` is the mean time from the start of a step until its exchange is
complete. ``mean_lag`` is the mean bound over the steps.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence

from benchmarks.harness.arguments import make_parser, whole_number
from benchmarks.harness.plots import Panel, split_panels
from benchmarks.harness.points import Point, parse_point
from benchmarks.harness.report import measure_and_report
from benchmarks.harness.torch_ranks import run_torch_ranks
from dlrm_examples.support.text_table import format_table, format_time

DESCRIPTION = "the bound 'auto' against every fixed bound, under several kinds of lateness"

PATTERNS = {
    "random": "each rank busy for 0 to 10 ms, drawn anew in each step",
    "drifting": "2 ms, and 8 ms on one rank, another one every two steps",
    "bursts": "2 ms, and 20 ms in one step of twenty, on each rank by itself",
    "straggler": "2 ms, and 6 ms always on the last rank: lag cannot help",
    "balanced": "4 ms on all ranks: lag cannot help",
}


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    epilog = "patterns:\n" + "\n".join(f"  {name:10}  {text}" for name, text in PATTERNS.items())
    parser = make_parser("adaptive_lag", DESCRIPTION, ranks=(4,), rounds=3, epilog=epilog)
    parser.add_argument("--patterns", nargs="+", choices=tuple(PATTERNS), default=list(PATTERNS),
                        help="which to run (default: all)")  # fmt: skip
    parser.add_argument("--steps", type=whole_number(1), default=400, metavar="N",
                        help="exchanges of a run (default: %(default)s)")  # fmt: skip
    parser.add_argument("--limit", type=whole_number(0), default=8, metavar="K",
                        help="largest bound (default: %(default)s)")  # fmt: skip
    parser.add_argument("--time-limit", type=whole_number(1), default=600, metavar="S",
                        help="of a run (default: %(default)s s)")  # fmt: skip
    options = parser.parse_args(argv)
    return measure_and_report(
        "adaptive_lag", parser, options, measure=measure, format_points=format_points, panels=_panels
    )


def measure(options: argparse.Namespace) -> list[Point]:
    """Measures all points."""
    return [point for ranks in options.ranks for point in measure_ranks(options, ranks)]


def measure_ranks(options: argparse.Namespace, ranks: int) -> list[Point]:
    """Returns one point for each pattern and bound: the median over rounds, with the extremes as p5 and p95."""
    settings = {
        "patterns": options.patterns,
        "max_lags": [*range(options.limit + 1), "auto"],
        "limit": options.limit,
        "steps": options.steps,
        "rounds": options.rounds,
        "timeout_s": options.time_limit,
    }
    module = "benchmarks.torch_ranks.adaptive_lag_rank"
    printed = run_torch_ranks(module, settings, num_ranks=ranks, time_limit_s=options.time_limit)
    by_key: dict[tuple[str, str], list[Point]] = defaultdict(list)
    for line in printed.splitlines():
        if line.startswith("{"):
            point = parse_point(line)
            by_key[point.params["pattern"], str(point.params["lag"])].append(point)
    combined = [_combine(points) for points in by_key.values()]
    return sorted(combined, key=lambda point: (options.patterns.index(point.params["pattern"]), _order(point)))


def _order(point: Point) -> float:
    lag = point.params["lag"]
    return float("inf") if lag == "auto" else float(lag)


def _combine(points: Sequence[Point]) -> Point:
    times_s = [point.median_s for point in points if point.median_s is not None]
    median_s = statistics.median(times_s)
    means = {name: statistics.mean(point.extra[name] for point in points) for name in ("request_latency_s", "mean_lag")}
    return Point(
        name=points[0].name,
        params=points[0].params,
        system=points[0].system,
        median_s=median_s,
        p5_s=min(times_s),
        p95_s=max(times_s),
        samples=len(points),
        rate=1 / median_s,
        unit=points[0].unit,
        extra=means,
    )


def best_fixed(points: Iterable[Point]) -> float:
    """Highest rate of a fixed bound."""
    return max(point.rate or 0.0 for point in points if point.params["lag"] != "auto")


def _panels(points: Sequence[Point]) -> list[Panel]:
    options = {"y": lambda point: point.rate, "y_label": "steps/s", "log_x": False, "log_y": False}
    return split_panels(
        points, "ranks", "pattern", title="{ranks} ranks, {pattern}", x=lambda point: float(point.extra["mean_lag"]),
        x_label="mean bound", label=lambda point: "auto" if point.params["lag"] == "auto" else "fixed", **options,
    )  # fmt: skip


def format_points(points: Sequence[Point]) -> str:
    """Formats the table: one row for each number of ranks, pattern and bound."""
    rows = []
    for point in points:
        like = [
            other
            for other in points
            if (other.params["ranks"], other.params["pattern"]) == (point.params["ranks"], point.params["pattern"])
        ]
        rows.append(
            (
                f"{point.params['ranks']} ranks, {point.params['pattern']}",
                f"k = {point.params['lag']}",
                format_time(point.median_s),
                f"{(point.rate or 0.0) / best_fixed(like):.3f}",
                f"{point.extra['mean_lag']:.1f}",
                format_time(point.extra["request_latency_s"]),
            )
        )
    return format_table(("", "bound", "a step", "of the best fixed", "mean k", "request latency"), rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
