# SPDX-License-Identifier: Apache-2.0
"""Lookups at a parameter server of hybrid training, in turns with the same lookups elsewhere.

Systems: ``table`` is a table of the process behind one lock, without a server, and ``stripes`` the same table with
locks of its stripes. ``in_process`` is a server of the process, which the asking thread calls, and ``thread`` one that
is a thread of the process. ``shm`` and ``tcp`` are a server in another process. ``raw_tcp`` moves the same bytes over a
loopback socket and looks nothing up. With ``--redis`` a Redis server has the rows, too, and is asked over a Unix socket
by MGET and MSET. The program ``bench_parameter_server`` has details.

Lookups of each system are measured alone, and while another thread updates rows; then updates alone. An update is a
step, with a lookup and gradients. Redis has no optimizers, so there the asker reads rows and writes them back. The
ratio is the speed over that of the system in ``_LIMITS`` under the same conditions; ``raw_tcp`` has no rows
to update.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
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
_LIMITS = {
    "stripes": "table",
    "in_process": "table",
    "thread": "in_process",
    "shm": "in_process",
    "tcp": "raw_tcp",
    "redis": "shm",
}
_REDIS_START_S = 20


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
    parser.add_argument("--systems", default="", metavar="A,B", help="measure these only (default: all)")
    parser.add_argument("--redis", action="store_true", help="measure a Redis server, too; needs redis-server")
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
    if options.systems:
        command += ["--systems", options.systems]
    limit_s = 120 + options.rows / 50_000 + options.rounds * options.milliseconds / 30
    with contextlib.ExitStack() as stack:
        if options.redis:
            command += ["--redis", stack.enter_context(_redis_server())]
        command += ["--time-limit", str(round(limit_s))]
        ended = run_process_tree(command, timeout_s=limit_s, environment=os.environ)
    if ended.returncode != 0:
        raise BenchmarkError(ended.stderr.strip().splitlines()[-1] if ended.stderr.strip() else "the program failed")
    points = [parse_point(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    times = {
        (point.system, point.params["operation"], point.params["updates"]): point.median_s or 0.0 for point in points
    }

    def ratio_of(point: Point) -> float | None:
        limit, operation, updates = _LIMITS.get(point.system), point.params["operation"], point.params["updates"]
        limit_s = None if limit is None else times.get((limit, operation, updates), times.get((limit, operation, 0)))
        return None if limit_s is None else limit_s / times[point.system, operation, updates]

    order = ["table", "stripes", "in_process", "thread", "shm", "tcp", "raw_tcp", "redis"]
    points.sort(key=lambda each: (each.params["operation"], each.params["updates"], order.index(each.system)))
    return [replace(point, ratio=ratio_of(point)) for point in points]


@contextlib.contextmanager
def _redis_server() -> Iterator[str]:
    """Runs a Redis server that keeps nothing on disk; returns its Unix socket.

    Raises:
        BenchmarkError: it is missing, or does not start.
    """
    program = shutil.which("redis-server")
    if program is None:
        raise BenchmarkError("--redis needs redis-server: apt install redis-server")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "redis"
        command = [program, "--port", "0", "--unixsocket", str(path), "--save", "", "--appendonly", "no"]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, cwd=folder)
        try:
            end = time.monotonic() + _REDIS_START_S
            while not path.exists():
                if server.poll() is not None or time.monotonic() > end:
                    raise BenchmarkError(f"redis-server did not start (status {server.poll()})")
                time.sleep(0.05)
            yield str(path)
        finally:
            server.terminate()
            server.wait(_REDIS_START_S)


def format_points(points: Sequence[Point]) -> str:
    """Formats the table: one row for each system, alone and with updates."""
    rows = [
        (
            point.system,
            point.params["operation"],
            f"{point.extra['update_rate']:.0f}/s" if point.params["updates"] else "",
            format_time(point.median_s),
            f"{(point.rate or 0) / 1e6:.2f}",
            "" if point.ratio is None else f"{point.ratio:.2f} of {_LIMITS[point.system]}",
        )
        for point in points
    ]
    return format_table(("system", "operation", "updates beside", "time", "million rows/s", "speed"), rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
