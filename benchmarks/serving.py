# SPDX-License-Identifier: Apache-2.0
"""Serving: the highest rate of requests that ranks answer in time, by the way in which rows come from other ranks.

Each rank is a process of ``headway_serve`` with the exported DLRM. ``headway_load`` sends requests at random times;
their latency counts from when they were due. A rate is held if the 99% quantile of the latency is below ``--p99``, and
99% of the requests are answered. The highest one is searched from what waiting clients reach: rates 1.5 times apart
until one is held and the next is not, then bisection until they are 3% apart.

Settings delay the keys of each batch by a random time, as if a service had to be asked for features: none
(``balanced``), 0 to 10 ms (``random``), 0 to 10 ms more on a rank for each place of it (``heterogeneous``), or 10 ms in
the mean on the last rank alone (``straggler``). Systems are ``ring K``, all-to-alls with a lag of K, and ``pairwise``.

``kserve whole`` and ``kserve sharded`` are a server in Python, as a user would write it: KServe's, with the model in
eager mode and batches of an asyncio queue (``serving_peers/kserve_dlrm.py``). It needs ``kserve``, and has no delays.

With ``--details`` the ranks are started once more after each search: for the latency at a fifth of the rate that the
first system holds, and for the time by stage at half of the own rate (``harness/serving_stages.py``).
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.serving import Bucket

from benchmarks.harness.arguments import make_parser
from benchmarks.harness.dlrm_requests import row_law
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.points import Point
from benchmarks.harness.report import measure_and_report
from benchmarks.harness.served_dlrm import Trial, expect_programs, run_load, serve_package
from benchmarks.harness.serving_stages import STAGES, stage_columns, stage_times
from benchmarks.serving_peers.kserve_ranks import TABLES, kserve_versions, serve_with_kserve
from dlrm_examples.dlrm_inference.model import DlrmConfig
from dlrm_examples.dlrm_inference.serving import export_dlrm
from dlrm_examples.support.command_line import at_least as whole_number
from dlrm_examples.support.data.criteo import KAGGLE_CARDINALITIES
from dlrm_examples.support.text_table import format_ratio, format_table

DESCRIPTION = "serving: highest rate that holds a p99, over a ring with lag and pairwise"

_SETTINGS = ("balanced", "random", "heterogeneous", "straggler")
_SYSTEMS = ("ring 0", "ring 1", "ring 2", "ring 4", "pairwise")
_KSERVE = tuple(f"kserve {tables}" for tables in TABLES)
_LOW_LOAD, _STAGES_LOAD = 0.2, 0.5  #: Multiply the highest rate: of the first system, and of the own.
_FACTOR = 1.5  #: Between rates, until one is held and the next is not.
_RESOLUTION = 1.03  #: The search ends when the rates are this factor apart.
_MOST_TRIALS = 20  #: Limit of a search.
_EIGHTHS = (1, 2, 3, 4, 6, 8)  #: Buckets of the package, in eighths of --max-rows. A batch computes a whole bucket.


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = make_parser("serving", DESCRIPTION, ranks=(2,), rounds=3)
    parser.add_argument("--package", type=Path, help="of an exported DLRM (default: one is made)")
    parser.add_argument("--systems", nargs="+", choices=(*_SYSTEMS, *_KSERVE), default=list(_SYSTEMS), metavar="SYSTEM",
                        help=f"{', '.join((*_SYSTEMS, *_KSERVE))} (default: those of Headway)")  # fmt: skip
    parser.add_argument("--settings", nargs="+", choices=_SETTINGS, default=["random"], metavar="SETTING")
    parser.add_argument("--kserve-python", type=Path, default=Path(sys.executable), metavar="PYTHON",
                        help="interpreter with kserve and torch (default: this one)")  # fmt: skip
    parser.add_argument("--rows", type=row_law, default=row_law("64"), metavar="ROWS",
                        help="items of a request: a number, several that are equally likely (100,200,200), or dlrm-v2, "
                        "the sizes of MLPerf's queries (default: 64)")  # fmt: skip
    parser.add_argument("--details", action="store_true", help="latency at low load, and time by stage at half load")
    parser.add_argument("--cores-of-load", default="", metavar="LIST", help="of the load generator, as for taskset")
    for name, default, text in (
        ("--divide-rows", 1, "tables have one Nth of the rows of Criteo Kaggle"),
        ("--max-rows", 512, "most items of a batch"),
        ("--batch-delay", 1000, "microseconds that a request waits for others"),
        ("--p99", 60, "milliseconds that 99%% of the answers may take"),
        ("--seconds", 5, "of each trial"),
    ):
        parser.add_argument(name, type=whole_number(0), default=default, help=f"{text} (default: {default})")
    return measure_and_report("serving", parser, parser.parse_args(argv), measure=measure, format_points=format_points)


def measure(options: argparse.Namespace) -> list[Point]:
    """Measures a point for each number of ranks, setting and system. Rounds let the systems take turns.

    Raises:
        BenchmarkError: the programs are not built, kserve is missing, or a rank does not start.
    """
    expect_programs()
    has_kserve = not set(_KSERVE).isdisjoint(options.systems)
    options.kserve_versions = kserve_versions(options.kserve_python) if has_kserve else ""
    if has_kserve and options.settings != ["balanced"]:
        raise BenchmarkError("kserve is compared in the setting balanced alone")
    if max(options.rows.sizes) > options.max_rows:
        raise BenchmarkError(f"--rows has requests of more than --max-rows {options.max_rows}")
    config = dlrm_config(options)
    points = []
    with tempfile.TemporaryDirectory() as folder_name:
        package = options.package
        if package is None:
            package = Path(folder_name) / "package"
            sizes = sorted({max(1, options.max_rows * part // 8) for part in _EIGHTHS})
            export_dlrm(package, config, buckets=[Bucket(size) for size in sizes])
        for num_ranks in options.ranks:
            for setting in options.settings:
                rounds = []
                for round_number in range(options.rounds):
                    order = options.systems if round_number % 2 == 0 else options.systems[::-1]
                    found = {}
                    for system in order:
                        with _serve(options, package, num_ranks, setting, system) as addresses:
                            found[system] = _Found(_highest_rate(options, package, addresses))
                        rate = found[system].best.offered
                        print(f"{num_ranks} ranks, {setting}, {system}: {rate:.0f} requests a second", flush=True)
                    if options.details:
                        low_rate = max(1.0, _LOW_LOAD * found[options.systems[0]].best.offered)
                        for system in order:
                            _add_details(options, package, num_ranks, setting, system, low_rate, found[system])
                    rounds.append(found)
                points += [_make_point(options, num_ranks, setting, system, rounds) for system in options.systems]
    return points


@dataclass
class _Found:
    """Results of a system in a round.

    Attributes:
        best: trial with the highest rate that is held.
        low: trial at a fifth of the first system's rate; None without ``--details``.
        stages: times at half of the own rate, as fields of a point; None of a system without stages.
    """

    best: Trial
    low: Trial | None = None
    stages: dict[str, float] | None = None


def _add_details(
    options: argparse.Namespace,
    package: Path,
    num_ranks: int,
    setting: str,
    system: str,
    low_rate: float,
    found: _Found,
) -> None:
    with tempfile.TemporaryDirectory() as name:
        trace = Path(name) / "trace.json"
        with _serve(options, package, num_ranks, setting, system, trace) as addresses:
            found.low = load_at(options, package, addresses, "--rate", f"{low_rate:.1f}")
            rate = max(1.0, _STAGES_LOAD * found.best.offered)
            begin_s = time.time() + 1  # The load generator warms up first.
            load_at(options, package, addresses, "--rate", f"{rate:.1f}")
            end_s = time.time()
        if system not in _KSERVE:
            files = sorted(Path(name).glob("trace.rank*.json"))
            found.stages = stage_columns(stage_times(files, begin_s=begin_s, end_s=end_s))


def delay_us(setting: str, rank: int, num_ranks: int) -> int:
    """Mean of the random time before the keys of a batch of a rank, in microseconds."""
    if setting == "random":
        return 5000
    if setting == "heterogeneous":
        return 5000 * rank // max(1, num_ranks - 1)
    return 10_000 if setting == "straggler" and rank == num_ranks - 1 else 0


def dlrm_config(options: argparse.Namespace) -> DlrmConfig:
    """Sizes of the model, by ``--divide-rows``."""
    return DlrmConfig(table_rows=tuple(max(1, rows // max(1, options.divide_rows)) for rows in KAGGLE_CARDINALITIES))


def num_ids(options: argparse.Namespace) -> int:
    """The ids of all features are below it: the rows of the largest table."""
    return max(dlrm_config(options).table_rows)


def _serve(
    options: argparse.Namespace, package: Path, num_ranks: int, setting: str, system: str, trace: Path | None = None
) -> contextlib.AbstractContextManager[list[str]]:
    """Starts all ranks. The context has their addresses; at its end they write traces."""
    kind, _, detail = system.partition(" ")
    if system in _KSERVE:
        return serve_with_kserve(
            options.kserve_python,
            dlrm_config(options),
            num_ranks=num_ranks,
            tables="whole" if detail == "whole" else "sharded",
            max_rows=options.max_rows,
            batch_delay_us=options.batch_delay,
            num_ids=num_ids(options),
        )
    words = ["--max-rows", str(options.max_rows), "--batch-delay", str(options.batch_delay), "--fetch", kind]
    words += ["--max-lag", detail] if detail else []
    words += [] if trace is None else ["--trace", str(trace)]
    delays = [delay_us(setting, rank, num_ranks) for rank in range(num_ranks)]
    return serve_package(package, num_ranks, [[*words, "--key-delay", str(delay)] for delay in delays])


def _highest_rate(options: argparse.Namespace, package: Path, addresses: Sequence[str]) -> Trial:
    """Searches the highest rate that is held. Returns its trial, or that of the lowest rate if none is."""
    closed = load_at(options, package, addresses, "--clients", str(8 * len(addresses)))
    rate = float(closed.result["answered_per_s"])
    low, high = 0.0, math.inf
    best: Trial | None = None
    for _ in range(_MOST_TRIALS):
        trial = load_at(options, package, addresses, "--rate", f"{rate:.1f}")
        if trial.holds(options.p99):
            low, best = rate, trial
        else:
            high = rate
        if high <= _RESOLUTION * low or high < 1:
            break
        rate = low * _FACTOR if math.isinf(high) else high / _FACTOR if low == 0 else math.sqrt(low * high)
    return best or Trial(0.0, trial.result)


def load_at(options: argparse.Namespace, package: Path, addresses: Sequence[str], *words: str) -> Trial:
    """Runs ``headway load`` with the requests of the options; ``words`` are a rate or a number of clients."""
    return run_load(
        package,
        addresses,
        words,
        rows=options.rows.argument,
        num_ids=num_ids(options),
        seconds=options.seconds,
        cores=options.cores_of_load,
    )


def _make_point(
    options: argparse.Namespace, num_ranks: int, setting: str, system: str, rounds: Sequence[dict[str, _Found]]
) -> Point:
    own = [found[system].best for found in rounds]
    rates = sorted(trial.offered for trial in own)
    firsts = [found[options.systems[0]].best for found in rounds]
    ratios = [mine.offered / first.offered for mine, first in zip(own, firsts, strict=True) if first.offered > 0]
    return Point(
        name="serving",
        params={"ranks": num_ranks, "setting": setting, "rows": options.rows.label, "max_rows": options.max_rows,
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
            **({"ratio_low": min(ratios), "ratio_high": max(ratios)} if ratios else {}),
            **({"versions": options.kserve_versions} if system in _KSERVE else {}),
            **_details([found[system] for found in rounds], [found[options.systems[0]] for found in rounds]),
        },
    )  # fmt: skip


def _details(own: Sequence[_Found], firsts: Sequence[_Found]) -> dict[str, float]:
    """Medians over rounds: the latency at low load, over that of the first system in each round, and the stages."""
    details = {}
    lows = [(mine.low.result, first.low.result) for mine, first in zip(own, firsts, strict=True)
            if mine.low is not None and first.low is not None]  # fmt: skip
    for name in ("p50_ms", "p99_ms") if lows else ():
        details[f"low_load_{name}"] = statistics.median(mine[name] for mine, _ in lows)
        details[f"low_load_{name.removesuffix('_ms')}_ratio"] = statistics.median(
            mine[name] / first[name] for mine, first in lows
        )
    stages = [found.stages for found in own if found.stages is not None]
    for name in stages[0] if stages else ():
        details[name] = statistics.median(found[name] for found in stages)
    return details


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
    tables = [format_table(header, rows)]
    detailed = [point for point in points if "low_load_p50_ms" in point.extra]
    if detailed:
        header = ["ranks", "setting", "system", "p50 at low load", "p99", *(f"{stage}, us" for stage in STAGES)]
        rows = []
        for point in detailed:
            extra = point.extra
            latency = [
                f"{extra[f'low_load_{name}_ms']:.2f} ms {format_ratio(extra[f'low_load_{name}_ratio'])}"
                for name in ("p50", "p99")
            ]
            names = [stage.replace(" ", "_") for stage in STAGES]
            stages = [
                f"{extra[f'{name}_p50_us']:.0f} / {extra[f'{name}_p99_us']:.0f}" if f"{name}_p50_us" in extra else ""
                for name in names
            ]
            rows.append([str(point.params["ranks"]), point.params["setting"], point.system, *latency, *stages])
        tables.append(format_table(header, rows))
    return "\n\n".join(tables)
