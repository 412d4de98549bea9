# SPDX-License-Identifier: Apache-2.0
"""More ranks than cores: all-to-alls against Open MPI that yields, and the CPU time that idle ranks use."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.arguments import add_program_options, flat, make_parser, whole_number
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.pairing import combine_rounds
from benchmarks.harness.plots import Panel, split_panels
from benchmarks.harness.points import Point
from benchmarks.harness.programs import HEADWAY, OPENMPI, Launch, Programs
from benchmarks.harness.report import measure_and_report
from benchmarks.harness.turns import choose_systems, take_turns
from dlrm_examples.support.text_table import format_bytes, format_ratio, format_table, format_time

DESCRIPTION = "8 ranks on 2 cores against Open MPI with mpi_yield_when_idle, and what idle ranks burn"

_REPETITIONS = 500


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = make_parser("oversubscribed", DESCRIPTION, ranks=(8,), sizes="8,512,4K,32K,256K,2M", against=OPENMPI,
                         rounds=3)  # fmt: skip
    parser.add_argument("--num-cores", type=whole_number(1), default=2, metavar="N",
                        help="processors that all ranks share (default: %(default)s)")  # fmt: skip
    parser.add_argument("--idle", type=float, default=2.0, metavar="S", help="seconds that ranks idle (default: 2)")
    add_program_options(parser)
    options = parser.parse_args(argv)
    return measure_and_report(
        "oversubscribed", parser, options, measure=measure, format_points=format_points, panels=_panels
    )


def format_points(points: Sequence[Point]) -> str:
    """A table of the calls, and one of the idle ranks."""
    calls = format_calls([point for point in points if point.name == "oversubscribed"])
    return calls + "\n\n" + format_idle([point for point in points if point.name == "idle"])


def measure(options: argparse.Namespace) -> list[Point]:
    """Measures points named ``oversubscribed`` and ``idle``."""
    programs = Programs(options.programs)
    systems = choose_systems(programs, options.against, OPENMPI)
    cores = first_cores(options.num_cores)
    arguments = ["--sizes", ",".join(map(str, flat(options.sizes)))]
    arguments += ["--repetitions", str(options.repetitions or _REPETITIONS)]
    points = []
    for ranks in options.ranks:
        launch = Launch(ranks=ranks, cores=cores, bind=False, yield_when_idle=True)

        def run(system: str, launch: Launch = launch) -> list[Point]:
            return programs.run(system, arguments, launch, timeout_s=options.time_limit)

        title = f"{ranks} ranks on {len(cores)} cores"
        combined = combine_rounds(take_turns(systems, options.rounds, run, title=title), reference=OPENMPI)
        points += [_renamed(point, "oversubscribed", len(cores)) for point in combined]
        idle = ["--mode", "idle", "--idle", str(options.idle)]
        for system in systems:
            found = programs.run(system, idle, launch, timeout_s=options.time_limit)
            points += [_renamed(point, "idle", len(cores)) for point in found]
    return points


def first_cores(count: int) -> frozenset[int]:
    """Returns ``count`` hardware threads of different cores, among those that this process may use.

    Raises:
        BenchmarkError: there are fewer cores.
    """
    chosen: dict[str, int] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        chosen.setdefault(path.read_text().strip() if path.exists() else str(cpu), cpu)
    if len(chosen) < count:
        raise BenchmarkError(f"--num-cores {count}: this process may use {len(chosen)}")
    return frozenset(list(chosen.values())[:count])


def _renamed(point: Point, name: str, num_cores: int) -> Point:
    return dataclasses.replace(point, name=name, params=point.params | {"cores": num_cores})


def format_calls(points: Sequence[Point]) -> str:
    """The table of all-to-alls."""
    others = {point.key: point for point in points if point.system == OPENMPI}
    rows = []
    for point in points:
        if point.system == HEADWAY:
            other = others.get(point.key)
            rows.append(
                (
                    f"{point.params['ranks']} ranks on {point.params['cores']} cores",
                    format_bytes(point.params["bytes_per_rank"]),
                    format_time(point.median_s),
                    format_time(other.median_s if other else None),
                    format_ratio(point.ratio, point.extra.get("ratio_low"), point.extra.get("ratio_high")),
                    format_ratio(point.extra.get("mean_ratio")),
                )
            )
    return format_table(("", "per rank", "headway", "openmpi", "faster (rounds)", "by the mean"), rows)


def format_idle(points: Sequence[Point]) -> str:
    """The table of idle ranks."""
    rows = [(point.params["state"], point.system, f"{point.rate:.2%}") for point in points if point.rate is not None]
    return format_table(("ranks are", "system", "of a core, worst rank"), rows)


def _panels(points: Sequence[Point]) -> list[Panel]:
    chosen = [point for point in points if point.name == "oversubscribed"]
    return split_panels(chosen, "ranks", title="{ranks} ranks", x="bytes_per_rank")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
