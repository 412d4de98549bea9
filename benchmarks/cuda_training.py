# SPDX-License-Identifier: Apache-2.0
"""A training step in the shape of TorchRec's on GPUs: ids, rows and gradients exchanged by Headway or by NCCL.

A serial step runs its parts one after the other. An overlapped step splits the batch into two halves, so that rows and
gradients of one half are in flight while the dense part of the other half runs. ``exposed_s`` is the time per step that
the stream waits for exchanges. ``headway_slots`` exchanges slot tensors (``headway.slots``), whose receive buffer is
the output.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.arguments import make_parser, whole_number
from benchmarks.harness.pairing import combine_rounds
from benchmarks.harness.plots import Panel, split_panels
from benchmarks.harness.points import Point
from benchmarks.harness.report import measure_and_report
from benchmarks.harness.torch_ranks import run_torch_rounds
from dlrm_examples.support.text_table import format_table, format_time

DESCRIPTION = "training steps on GPUs, serial and overlapped, against NCCL"


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = make_parser("cuda_training", DESCRIPTION, ranks=(2,), against="nccl", rounds=7)
    parser.add_argument("--batch", type=whole_number(2), default=8192, metavar="ROWS",
                        help="of each rank in a step; even (default: %(default)s)")  # fmt: skip
    parser.add_argument("--steps", type=whole_number(1), default=10, metavar="N",
                        help="of a round (default: %(default)s)")  # fmt: skip
    parser.add_argument("--groups", nargs="+", type=int, choices=(1, 2), default=[1, 2], metavar="N",
                        help="groups of a system: 1, or 2, one for ids alone (default: both)")  # fmt: skip
    parser.add_argument("--trace", type=Path, metavar="DIR",
                        help="gets traces of a few steps of each rank and system, for Perfetto")  # fmt: skip
    parser.add_argument("--time-limit", type=whole_number(1), default=300, metavar="S",
                        help="of a run (default: %(default)s s)")  # fmt: skip
    options = parser.parse_args(argv)
    if options.batch % 2 != 0:
        parser.error(f"--batch must be even, not {options.batch}")
    return measure_and_report(
        "cuda_training", parser, options, measure=measure, format_points=format_points, panels=_panels
    )


def measure(options: argparse.Namespace) -> list[Point]:
    """Measures all points, combined over rounds and ranks."""
    points = []
    if options.trace is not None:
        options.trace.mkdir(parents=True, exist_ok=True)
    for ranks, groups in itertools.product(options.ranks, options.groups):
        settings = {
            "systems": ["headway", "headway_slots"] + (["nccl"] if options.against != "none" else []),
            "batch": options.batch,
            "groups": groups,
            "steps": options.steps,
            "rounds": options.rounds,
            "timeout_s": options.time_limit,
            "trace_dir": None if options.trace is None else str(options.trace.resolve()),
        }
        rounds = run_torch_rounds(
            "benchmarks.torch_ranks.cuda_training_rank", settings, num_ranks=ranks, time_limit_s=options.time_limit
        )
        of_all_rounds = list(itertools.chain.from_iterable(rounds))
        points += [with_medians(point, of_all_rounds) for point in combine_rounds(rounds, reference="nccl")]
    return points


def with_medians(point: Point, all_points: Sequence[Point]) -> Point:
    """Adds the median of the exposed waiting time, and the loss after the last round as the mean over ranks."""
    same = [each for each in all_points if each.key == point.key and each.system == point.system]
    point.extra["exposed_s"] = statistics.median(each.extra["exposed_s"] for each in same)
    point.extra["loss"] = statistics.fmean(each.extra["loss"] for each in same[-point.params["ranks"] :])
    return point


def format_points(points: Sequence[Point]) -> str:
    """Formats the table: one row for each schedule and system."""
    rows = []
    for point in points:
        low, high = point.extra.get("ratio_low"), point.extra.get("ratio_high")
        is_compared = point.ratio is not None and low is not None and point.system != "nccl"
        rows.append(
            (
                "{ranks} ranks, {groups} groups, {schedule}".format(**point.params),
                point.system,
                format_time(point.median_s),
                f"{point.ratio:.3f}x ({low:.3f} to {high:.3f})" if is_compared else "",
                format_time(point.extra["exposed_s"]),
                f"{point.extra['loss']:.5f}",
            )
        )
    header = ("", "system", "a step", "faster (rounds)", "of that waiting", "loss")
    return format_table(header, rows)


def _panels(points: Sequence[Point]) -> list[Panel]:
    title = "{schedule} training step, {groups} groups"
    return split_panels(points, "groups", "schedule", title=title, x="batch", x_label="rows of a rank's batch")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
