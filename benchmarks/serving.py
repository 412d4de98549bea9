# SPDX-License-Identifier: Apache-2.0
"""Serving: the highest rate of requests that ranks answer in time, by the way in which rows come from other ranks.

Each rank is a process of ``headway_serve`` with the exported DLRM. ``headway_load`` sends requests at random times;
their latency counts from when they were due. A rate is held if the 99% quantile of the latency is below ``--p99``, and
99% of the requests are answered. The highest one is searched by bisection, from what waiting clients reach.

Settings delay the keys of each batch by a random time, as if a service had to be asked for features: none
(``balanced``), 0 to 10 ms (``random``), 0 to 10 ms more on a rank for each place of it (``heterogeneous``), or 10 ms in
the mean on the last rank alone (``straggler``). Systems are ``ring K``, all-to-alls with a lag of K, and ``pairwise``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import socket
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from headway.cli.built_programs import program_path
from headway.serving import Bucket

from benchmarks.harness.arguments import make_parser
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.points import Point
from benchmarks.harness.report import measure_and_report
from dlrm_examples.dlrm_inference.model import DlrmConfig
from dlrm_examples.dlrm_inference.serving import export_dlrm
from dlrm_examples.support.command_line import at_least as whole_number
from dlrm_examples.support.data.criteo import KAGGLE_CARDINALITIES
from dlrm_examples.support.text_table import format_ratio, format_table

DESCRIPTION = "serving: highest rate that holds a p99, over a ring with lag and pairwise"

_SETTINGS = ("balanced", "random", "heterogeneous", "straggler")
_SYSTEMS = ("ring 0", "ring 1", "ring 2", "ring 4", "pairwise")
_START_S, _STOP_S = 120, 60
_LEAST_ANSWERED = 0.99
_STEPS = 5  #: Halvings of the range of rates.


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = make_parser("serving", DESCRIPTION, ranks=(2,), rounds=3)
    parser.add_argument("--package", type=Path, help="of an exported DLRM (default: one is made)")
    parser.add_argument("--systems", nargs="+", choices=_SYSTEMS, default=list(_SYSTEMS), metavar="SYSTEM")
    parser.add_argument("--settings", nargs="+", choices=_SETTINGS, default=["random"], metavar="SETTING")
    parser.add_argument("--cores-of-load", default="", metavar="LIST", help="of the load generator, as for taskset")
    for name, default, text in (
        ("--divide-rows", 1, "tables have one Nth of the rows of Criteo Kaggle"),
        ("--rows", 64, "items of a request"),
        ("--max-rows", 512, "most items of a batch"),
        ("--batch-delay", 1000, "microseconds that a request waits for others"),
        ("--p99", 60, "milliseconds that 99%% of the answers may take"),
        ("--seconds", 5, "of each trial"),
    ):
        parser.add_argument(name, type=whole_number(0), default=default, help=f"{text} (default: {default})")
    return measure_and_report("serving", parser, parser.parse_args(argv), measure=measure, format_points=format_points)


class Trial(NamedTuple):
    """One run of the load generator; its line of results, and the rate that was offered (0: a closed loop)."""

    offered: float
    result: dict[str, Any]

    def holds(self, p99_ms: float) -> bool:
        statuses = self.result["statuses"]
        answered = statuses.get("OK", 0) / max(1, sum(statuses.values()))
        return bool(answered >= _LEAST_ANSWERED and self.result["p99_ms"] <= p99_ms)


def measure(options: argparse.Namespace) -> list[Point]:
    """Measures a point for each number of ranks, setting and system. Rounds let the systems take turns.

    Raises:
        BenchmarkError: the programs are not built, or a rank does not start.
    """
    if not program_path("headway_serve").exists():
        raise BenchmarkError("headway_serve is not built, as gRPC was not found")
    points = []
    with tempfile.TemporaryDirectory() as folder_name:
        package = options.package
        if package is None:
            package = Path(folder_name) / "package"
            sizes = tuple(max(1, rows // options.divide_rows) for rows in KAGGLE_CARDINALITIES)
            export_dlrm(package, DlrmConfig(table_rows=sizes), buckets=[Bucket(options.max_rows)])
        for num_ranks in options.ranks:
            for setting in options.settings:
                trials: dict[str, list[Trial]] = {system: [] for system in options.systems}
                for round_number in range(options.rounds):
                    for system in options.systems if round_number % 2 == 0 else reversed(options.systems):
                        with _serve(options, package, num_ranks, setting, system) as addresses:
                            best = _highest_rate(options, package, addresses)
                        trials[system].append(best)
                        print(
                            f"{num_ranks} ranks, {setting}, {system}: {best.offered:.0f} requests a second", flush=True
                        )
                points += [_make_point(options, num_ranks, setting, system, trials) for system in options.systems]
    return points


def delay_us(setting: str, rank: int, num_ranks: int) -> int:
    """Mean of the random time before the keys of a batch of a rank, in microseconds."""
    if setting == "random":
        return 5000
    if setting == "heterogeneous":
        return 5000 * rank // max(1, num_ranks - 1)
    return 10_000 if setting == "straggler" and rank == num_ranks - 1 else 0


@contextlib.contextmanager
def _serve(
    options: argparse.Namespace, package: Path, num_ranks: int, setting: str, system: str
) -> Iterator[list[str]]:
    """Starts all ranks. Yields their addresses."""
    kind, _, lag = system.partition(" ")
    ports = _free_ports(num_ranks)
    with tempfile.TemporaryDirectory() as store, contextlib.ExitStack() as stack:
        ranks = []
        for rank, port in enumerate(ports):
            command = [str(program_path("headway_serve")), "--package", str(package), "--store", store]
            command += ["--rank", str(rank), "--size", str(num_ranks), "--address", f"127.0.0.1:{port}"]
            command += ["--max-rows", str(options.max_rows), "--batch-delay", str(options.batch_delay)]
            command += ["--key-delay", str(delay_us(setting, rank, num_ranks)), "--fetch", kind]
            command += ["--max-lag", lag] if lag else []
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            stack.callback(_stop, process)
            ranks.append(process)
        for process in ranks:
            assert process.stdout is not None
            if " serves version " not in process.stdout.readline():
                raise BenchmarkError(f"a rank did not start: {process.args!r}")
        try:
            yield [f"127.0.0.1:{port}" for port in ports]
        finally:
            for process in ranks:  # All at once: a rank that drains waits for the others.
                process.send_signal(signal.SIGTERM)


def _stop(process: subprocess.Popen[str]) -> None:
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _highest_rate(options: argparse.Namespace, package: Path, addresses: Sequence[str]) -> Trial:
    """Searches the highest rate that is held. Returns its trial, or that of the lowest rate if none is."""
    closed = _load(options, package, addresses, "--clients", str(8 * len(addresses)))
    low, high = 0.0, 1.3 * closed.result["answered_per_s"]
    best: Trial | None = None
    for _ in range(_STEPS):
        rate = (low + high) / 2
        trial = _load(options, package, addresses, "--rate", f"{rate:.1f}")
        if trial.holds(options.p99):
            low, best = rate, trial
        else:
            high = rate
    return best or Trial(0.0, trial.result)


def _load(options: argparse.Namespace, package: Path, addresses: Sequence[str], *words: str) -> Trial:
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "result.json"
        command = ["taskset", "-c", options.cores_of_load] if options.cores_of_load else []
        command += [str(program_path("headway_load")), "--package", str(package), "--address", ",".join(addresses)]
        command += ["--rows", str(options.rows), "--seconds", str(options.seconds), "--json", str(results)]
        command += ["--ids", str(max(KAGGLE_CARDINALITIES) // max(1, options.divide_rows)), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=options.seconds + 120)
        if done.returncode != 0:
            raise BenchmarkError(done.stderr.strip() or f"headway_load ended with {done.returncode}")
        result = json.loads(results.read_text())
        return Trial(float(result["offered_per_s"]), result)


def _make_point(
    options: argparse.Namespace, num_ranks: int, setting: str, system: str, trials: dict[str, list[Trial]]
) -> Point:
    own = trials[system]
    rates = sorted(trial.offered for trial in own)
    firsts = trials[options.systems[0]]
    ratios = [mine.offered / first.offered for mine, first in zip(own, firsts, strict=True) if first.offered > 0]
    return Point(
        name="serving",
        params={"ranks": num_ranks, "setting": setting, "rows": options.rows, "max_rows": options.max_rows,
                "batch_delay_us": options.batch_delay, "p99_ms": options.p99, "divide_rows": options.divide_rows},
        system=system,
        samples=len(own),
        rate=statistics.median(rates),
        unit="requests/s that hold the p99",
        ratio=statistics.median(ratios) if ratios else None,
        extra={
            "lowest_rate": rates[0],
            "highest_rate": rates[-1],
            "p50_ms": statistics.median(trial.result["p50_ms"] for trial in own),
            "p99_ms": statistics.median(trial.result["p99_ms"] for trial in own),
            "sent_late_p99_ms": max(trial.result["sent_late_p99_ms"] for trial in own),
        },
    )  # fmt: skip


def format_points(points: Sequence[Point]) -> str:
    """Returns the table."""
    header = ["ranks", "setting", "system", "requests/s", "lowest to highest", "p50", "p99", "over the first"]
    rows = [
        [
            str(point.params["ranks"]),
            point.params["setting"],
            point.system,
            f"{point.rate:,.0f}",
            f"{point.extra['lowest_rate']:,.0f} to {point.extra['highest_rate']:,.0f}",
            f"{point.extra['p50_ms']:.1f} ms",
            f"{point.extra['p99_ms']:.1f} ms",
            format_ratio(point.ratio),
        ]
        for point in points
    ]
    return format_table(header, rows)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
