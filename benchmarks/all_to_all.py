# SPDX-License-Identifier: Apache-2.0
"""Time of all-to-alls over sizes, against Open MPI in the same harness. Calls block unless ``--lag`` is above 0.

Figure 6a of the paper on bounded-lag collectives (arXiv 2512.19342) shows the same measurement. Large sizes are also
compared with the speed of a plain ``memcpy``, the limit of an exchange in shared memory.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.harness.arguments import add_program_options, flat, make_parser, whole_number
from benchmarks.harness.pairing import combine_rounds
from benchmarks.harness.plots import Panel
from benchmarks.harness.points import Point
from benchmarks.harness.programs import HEADWAY, OPENMPI, Launch, Programs, num_cores
from benchmarks.harness.report import measure_and_report
from benchmarks.harness.turns import choose_systems, take_turns
from dlrm_examples.support.text_table import format_bytes, format_ratio, format_table, format_time

DESCRIPTION = "all-to-all of 1 B to 256 MiB per rank against MPI_Alltoallv, even and skewed splits"

SIZES = "1,8,64,512,4K,32K,256K,2M,16M,128M,256M"
SPLITS = ("even", "zipf", "incast")
_COPY_FROM_BYTES = 256 << 10  #: Smaller copies stay in the nearest cache and say nothing about memory speed.


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = make_parser("all_to_all", DESCRIPTION, ranks=(2, 4, 8), sizes=SIZES, against=OPENMPI, rounds=5)
    parser.add_argument("--split", nargs="+", choices=SPLITS, default=["even", "zipf"],
                        help="how a rank's bytes are spread: even; zipf, each rank with an order of its own; "
                             "incast, zipf with one hot rank (default: even zipf)")  # fmt: skip
    parser.add_argument("--lag", type=whole_number(0), default=0, metavar="K", help="calls in flight less one (0)")
    parser.add_argument("--fork", action="store_true", help="start Headway's ranks without mpirun")
    add_program_options(parser)
    options = parser.parse_args(argv)
    return measure_and_report(
        "all_to_all", parser, options, measure=measure, format_points=format_points, panels=_panels
    )


def measure(options: argparse.Namespace) -> list[Point]:
    """Measures all points, combined over rounds. Large sizes get the copy speed of the machine beside them."""
    programs = Programs(options.programs, use_mpirun=not options.fork)
    systems = choose_systems(programs, options.against, OPENMPI)
    sizes = flat(options.sizes)
    points = []
    for ranks in options.ranks:
        launch = Launch(ranks=ranks)
        if ranks > num_cores():
            print(f"note: {ranks} ranks on {num_cores()} cores: these times say little about a machine with enough")
        for split in options.split:
            arguments = ["--split", split, "--lag", str(options.lag), "--sizes", ",".join(map(str, sizes))]
            if options.repetitions is not None:
                arguments += ["--repetitions", str(options.repetitions)]

            def run(system: str, arguments: list[str] = arguments, launch: Launch = launch) -> list[Point]:
                return programs.run(system, arguments, launch, timeout_s=options.time_limit)

            rounds = take_turns(systems, options.rounds, run, title=f"{ranks} ranks, {split}")
            points += combine_rounds(rounds, reference=OPENMPI)
        points += _measure_copy(programs, launch, [size for size in sizes if size >= _COPY_FROM_BYTES], options)
    return points


def _measure_copy(programs: Programs, launch: Launch, sizes: list[int], options: argparse.Namespace) -> list[Point]:
    if not sizes:
        return []
    arguments = ["--mode", "copy", "--sizes", ",".join(map(str, sizes))]
    return programs.run(HEADWAY, arguments, launch, timeout_s=options.time_limit)


def format_points(points: Sequence[Point]) -> str:
    """Formats the table: one row for each number of ranks, split and size."""
    copy_s = {_ranks_and_bytes(point): point.median_s for point in points if point.system == "memcpy"}
    others = {(_ranks_and_bytes(point), point.params["split"]): point for point in points if point.system == OPENMPI}
    rows = []
    for point in points:
        if point.system != HEADWAY:
            continue
        other = others.get((_ranks_and_bytes(point), point.params["split"]))
        copied = copy_s.get(_ranks_and_bytes(point))
        rows.append(
            (
                f"{point.params['ranks']} ranks, {point.params['split']}",
                format_bytes(point.params["bytes_per_rank"]),
                format_time(point.median_s),
                format_time(other.median_s if other else None),
                format_ratio(point.ratio, point.extra.get("ratio_low"), point.extra.get("ratio_high")),
                f"{point.rate:.2f}" if point.rate is not None and point.params["bytes_per_rank"] >= 4096 else "",
                f"{copied / point.median_s:.0%}" if copied and point.median_s else "",
            )
        )
    headings = ("", "per rank", "headway", "openmpi", "faster (rounds)", "GB/s per rank", "of copy speed")
    return format_table(headings, rows)


def _ranks_and_bytes(point: Point) -> tuple[int, int]:
    return point.params["ranks"], point.params["bytes_per_rank"]


def _panels(points: Sequence[Point]) -> list[Panel]:
    combinations = dict.fromkeys((p.params["ranks"], p.params["split"]) for p in points if p.system == HEADWAY)
    return [
        Panel(
            title=f"{ranks} ranks, {split}",
            points=[
                point
                for point in points
                if point.params["ranks"] == ranks and (point.params["split"] == split or point.system == "memcpy")
            ],
            x=lambda point: float(point.params["bytes_per_rank"]),
            x_label="bytes per rank",
        )
        for ranks, split in combinations
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
