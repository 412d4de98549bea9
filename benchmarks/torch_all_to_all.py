"""``torch.distributed.all_to_all_single`` over Headway and over Gloo, in turns in the same processes."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from benchmarks.harness.arguments import flat, make_parser, whole_number
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.pairing import combine_rounds
from benchmarks.harness.plots import Panel, save_plot
from benchmarks.harness.points import Point, parse_point, write_json_lines
from benchmarks.harness.table import format_bytes, format_ratio, format_table, format_time
from benchmarks.torch_ranks.block_sizes import SPLITS

DESCRIPTION = "torch.distributed.all_to_all_single against Gloo"

_HEADWAY = "headway"
_GLOO = "gloo"
_ROOT = Path(__file__).resolve().parents[1]


def main(argv: Sequence[str]) -> int:
    """Command line; returns the exit status."""
    parser = make_parser("torch_all_to_all", DESCRIPTION, ranks=(8,), sizes="8,64,512,4K,32K,256K,2M,16M",
                         against=_GLOO, rounds=5)  # fmt: skip
    parser.add_argument("--split", nargs="+", choices=SPLITS, default=["even"],
                        help="how a rank's bytes are spread (default: even)")  # fmt: skip
    parser.add_argument("--repetitions", type=whole_number(1), metavar="N",
                        help="timed calls of a point and round (default: by size)")  # fmt: skip
    parser.add_argument("--time-limit", type=whole_number(1), default=300, metavar="S",
                        help="of a run (default: %(default)s s)")  # fmt: skip
    options = parser.parse_args(argv)
    try:
        points = [point for ranks in options.ranks for point in measure(options, ranks)]
    except BenchmarkError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    print(format_points(points))
    if options.json is not None:
        write_json_lines(options.json, points)
    save_plot(options.out / "torch_all_to_all.png", _panels(points))
    return 0


def measure(options: argparse.Namespace, ranks: int) -> list[Point]:
    """Points of all systems and sizes for one number of ranks, combined over rounds."""
    by_round: dict[int, list[Point]] = defaultdict(list)
    for line in run_ranks(options, ranks).splitlines():
        if line.startswith("{"):
            point = parse_point(line)
            by_round[point.extra.pop("round")].append(point)
    return combine_rounds([by_round[index] for index in sorted(by_round)], reference=_GLOO)


def run_ranks(options: argparse.Namespace, ranks: int) -> str:
    """Runs all ranks to their end and returns what rank 0 printed.

    Raises:
        BenchmarkError: a rank failed or the time is over.
    """
    settings = {
        "ranks": ranks,
        "systems": [_HEADWAY] if options.against == "none" else [_HEADWAY, _GLOO],
        "sizes": flat(options.sizes),
        "splits": options.split,
        "rounds": options.rounds,
        "repetitions": options.repetitions,
        "timeout_s": options.time_limit,
    }
    print(f"{ranks} ranks: starting python", flush=True)
    with tempfile.TemporaryDirectory(prefix="headway-bench-") as folder:
        processes = []
        try:
            for rank in range(ranks):
                argument = json.dumps({**settings, "rank": rank, "store": f"{folder}/store"})
                own = Path(folder) / str(rank)
                with own.with_suffix(".out").open("w") as output, own.with_suffix(".err").open("w") as errors:
                    processes.append(_start(argument, output, errors))
            _wait(processes, Path(folder), options.time_limit)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return (Path(folder) / "0.out").read_text()


def _start(argument: str, output: IO[str], errors: IO[str]) -> subprocess.Popen[bytes]:
    environment = dict(os.environ)
    # Gloo else looks up the host's name, which not every container can resolve.
    environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    environment.setdefault("OMP_NUM_THREADS", "1")
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), environment.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "benchmarks.torch_ranks.all_to_all_rank", argument]
    return subprocess.Popen(command, stdout=output, stderr=errors, env=environment)


def _wait(processes: Sequence[subprocess.Popen[bytes]], folder: Path, time_limit_s: int) -> None:
    deadline = time.monotonic() + time_limit_s
    while any(process.poll() is None for process in processes):
        failed = [rank for rank, process in enumerate(processes) if process.returncode not in (None, 0)]
        if failed or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    for rank, process in enumerate(processes):
        if process.poll() not in (None, 0):
            lines = (folder / f"{rank}.err").read_text().strip().splitlines()
            raise BenchmarkError(f"rank {rank} failed: {lines[-1] if lines else 'no message'}")
    if any(process.poll() is None for process in processes):
        raise BenchmarkError(f"the ranks took longer than {time_limit_s} s")


def format_points(points: Sequence[Point]) -> str:
    """The table: one row for each number of ranks, split and size."""
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
    combinations = dict.fromkeys((point.params["ranks"], point.params["split"]) for point in points)
    return [
        Panel(
            title=f"torch, {ranks} ranks, {split}",
            points=[p for p in points if (p.params["ranks"], p.params["split"]) == (ranks, split)],
            x=lambda point: float(point.params["bytes_per_rank"]),
            x_label="bytes per rank",
        )
        for ranks, split in combinations
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
