# SPDX-License-Identifier: Apache-2.0
"""MLPerf's LoadGen beside ``headway load``, with the scenarios of DLRM-v2, at ranks that serve the exported DLRM.

Server: both clients drive the same rate at the same ranks. Requests are due at times of a Poisson process, and have 100
to 700 rows by DLRM-v2's distribution. The clients run at once, each with half of the rate, so that both meet the same
queues and the same other programs; with ``--turns`` they run one after the other. LoadGen's point has its latencies and
its rate over those of ``headway load``: both measure well if the ratios are near 1. It also has LoadGen's verdict on a
p99 of 60 ms.

Offline: LoadGen issues all requests at once. The rows that ranks answer in a second are compared with the closed loop
of ``dlrm_inference``, in Python with a lag over Headway, with as many ranks and rows of a batch. A closed loop of
``headway load`` with as many requests in flight tells what the client in Python costs.

Rates are shares of what a closed loop of ``headway load`` reaches, or those of ``--rates``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headway.serving import Bucket

from benchmarks.harness.arguments import make_parser
from benchmarks.harness.dlrm_requests import DLRM_V2, row_law
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.points import Point
from benchmarks.harness.report import measure_and_report
from benchmarks.harness.served_dlrm import expect_programs, serve_package
from benchmarks.harness.torch_ranks import run_torch_ranks
from benchmarks.serving import dlrm_config, load_at, num_ids
from benchmarks.serving_peers.loadgen_client import (
    LoadGenSettings,
    Scenario,
    expect_loadgen,
    run_loadgen,
)
from dlrm_examples.dlrm_inference.serving import export_dlrm
from dlrm_examples.support.command_line import at_least as whole_number
from dlrm_examples.support.text_table import format_ratio, format_table

DESCRIPTION = "serving: MLPerf's LoadGen beside headway load, Server and Offline of DLRM-v2"

Result = dict[str, Any]
_SCENARIOS: tuple[Scenario, ...] = ("Server", "Offline")
_LOADGEN, _OWN, _LOOP = "loadgen", "headway load", "dlrm_inference"
_COMPARED = ("answered_per_s", "mean_ms", "p50_ms", "p90_ms", "p99_ms")
_LOOP_LIMIT_S = 300
_WARM_UP_S = 2  #: Time of ``headway load`` before it measures.
_OFFLINE_TIMEOUT_MS = 20_000


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = make_parser("serving_mlperf", DESCRIPTION, ranks=(2,), rounds=5)
    parser.add_argument("--package", type=Path, help="of an exported DLRM (default: one is made)")
    parser.add_argument("--scenarios", nargs="+", choices=_SCENARIOS, default=list(_SCENARIOS), metavar="SCENARIO")
    parser.add_argument("--rows", type=row_law, default=row_law(DLRM_V2), metavar="ROWS",
                        help="items of a request: a number, several that are equally likely (100,200,200), or dlrm-v2 "
                        "(default: dlrm-v2)")  # fmt: skip
    parser.add_argument("--rates", type=float, nargs="+", default=[], metavar="R",
                        help="requests a second of Server (default: 0.25 and 0.5 of a closed loop)")  # fmt: skip
    parser.add_argument("--buckets", type=whole_number(1), nargs="+", default=[128, 256, 512, 768, 1024],
                        metavar="N",
                        help="of the package; the largest one bounds a batch (default: %(default)s)")  # fmt: skip
    parser.add_argument("--turns", action="store_true", help="run the clients of Server one after the other")
    parser.add_argument("--cores-of-ranks", default="", metavar="LIST", help="of all ranks in Server, as for taskset")
    parser.add_argument("--cores-of-load", default="", metavar="LIST", help="of the clients, as for taskset")
    for name, default, text in (
        ("--divide-rows", 1, "tables have one Nth of the rows of Criteo Kaggle"),
        ("--batch-delay", 1000, "microseconds that a request waits for others"),
        ("--seconds", 10, "of each run"),
        ("--in-flight", 32, "requests that wait for each rank in Offline"),
        ("--loop-lag", 2, "bound of the closed loop of dlrm_inference"),
    ):
        parser.add_argument(name, type=whole_number(0), default=default, help=f"{text} (default: {default})")
    options = parser.parse_args(argv)
    return measure_and_report("serving_mlperf", parser, options, measure=measure, format_points=format_points)


def measure(options: argparse.Namespace) -> list[Point]:
    """Measures the points of each scenario.

    Raises:
        BenchmarkError: LoadGen or the programs are missing, or a run has failed.
    """
    expect_programs()
    expect_loadgen()
    options.max_rows = max(options.buckets)
    if max(options.rows.sizes) > options.max_rows:
        raise BenchmarkError(f"--rows has requests of more than {options.max_rows} rows, the largest of --buckets")
    points: list[Point] = []
    with tempfile.TemporaryDirectory() as folder:
        package = options.package
        if package is None:
            package = Path(folder) / "package"
            export_dlrm(package, dlrm_config(options), buckets=[Bucket(size) for size in sorted(options.buckets)])
        for num_ranks in options.ranks:
            if "Server" in options.scenarios:
                points += _measure_server(options, package, num_ranks)
            if "Offline" in options.scenarios:
                points += _measure_offline(options, package, num_ranks)
    return points


def _measure_server(options: argparse.Namespace, package: Path, num_ranks: int) -> list[Point]:
    words = ["--max-rows", str(options.max_rows), "--batch-delay", str(options.batch_delay)]
    points = []
    with serve_package(package, num_ranks, [words] * num_ranks, cores=options.cores_of_ranks) as addresses:
        rates = options.rates
        if not rates:
            closed = load_at(options, package, addresses, "--clients", str(8 * num_ranks)).result
            rates = [share * closed["answered_per_s"] for share in (0.25, 0.5)]
        for rate in rates:
            title = f"Server, {num_ranks} ranks, {rate:.0f} requests/s"
            if options.turns:
                rounds = _take_turns(_server_runs(options, package, addresses, rate), options.rounds, title=title)
            else:
                rounds = [
                    _run_at_once(options, package, addresses, rate / 2, index + 1, title=title)
                    for index in range(options.rounds)
                ]
            params = _params(options, num_ranks) | {"scenario": "Server", "rate": round(rate, 2)}
            params |= {"at_once": not options.turns, "cores_of_ranks": options.cores_of_ranks}
            points += server_points(params | {"cores_of_load": options.cores_of_load}, rounds)
    return points


def _server_runs(
    options: argparse.Namespace, package: Path, addresses: list[str], rate: float
) -> dict[str, Callable[[int], Result]]:
    return {
        _OWN: lambda seed: load_at(options, package, addresses, "--rate", f"{rate:.2f}", "--seed", str(seed)).result,
        _LOADGEN: lambda seed: run_loadgen(
            _loadgen_settings(options, "Server", addresses, rate=rate, seed=seed), cores=options.cores_of_load
        ),
    }


def _run_at_once(
    options: argparse.Namespace, package: Path, addresses: list[str], rate: float, seed: int, *, title: str
) -> dict[str, Result]:
    """Results of both clients, which run at the same time, each with ``rate``."""
    settings = _loadgen_settings(options, "Server", addresses, rate=rate, seed=seed)
    own = _server_runs(options, package, addresses, rate)[_OWN]
    results: dict[str, Result] = {}
    results[_LOADGEN] = run_loadgen(
        replace(settings, seconds=options.seconds + _WARM_UP_S),
        cores=options.cores_of_load,
        meanwhile=lambda: results.update({_OWN: own(seed)}),
    )
    if _OWN not in results:
        raise BenchmarkError("LoadGen did not begin")
    shown = ", ".join(f"{system} {_describe(found)}" for system, found in results.items())
    print(f"{title}, round {seed}: {shown}", flush=True)
    return results


def _measure_offline(options: argparse.Namespace, package: Path, num_ranks: int) -> list[Point]:
    in_flight = options.in_flight * num_ranks
    words = ["--max-rows", str(options.max_rows), "--batch-delay", str(options.batch_delay)]

    def served(run: Callable[[list[str]], Result]) -> Result:
        with serve_package(package, num_ranks, [words] * num_ranks) as addresses:
            return run(addresses)

    def run_own(seed: int) -> Result:
        return served(lambda addresses: load_at(
            options, package, addresses, "--clients", str(in_flight), "--timeout", str(_OFFLINE_TIMEOUT_MS)
        ).result)  # fmt: skip

    expected = run_own(0)["answered_per_s"]
    runs: dict[str, Callable[[int], Result]] = {
        _LOOP: lambda seed: {"answered_rows_per_s": _run_loop(options, num_ranks)},
        _LOADGEN: lambda seed: served(
            lambda addresses: run_loadgen(
                _loadgen_settings(options, "Offline", addresses, rate=expected, seed=seed), cores=options.cores_of_load
            )
        ),
        _OWN: run_own,
    }
    rounds = _take_turns(runs, options.rounds, title=f"Offline, {num_ranks} ranks")
    params = _params(options, num_ranks) | {
        "scenario": "Offline",
        "in_flight": in_flight,
        "loop_lag": options.loop_lag,
    }
    return offline_points(params, rounds)


def _take_turns(runs: dict[str, Callable[[int], Result]], num_rounds: int, *, title: str) -> list[dict[str, Result]]:
    """Results of each round by system. ``run(seed)`` measures a system once; the seed is the number of the round."""
    rounds = []
    for index in range(num_rounds):
        found = {}
        for system in runs if index % 2 == 0 else reversed(runs):
            found[system] = runs[system](index + 1)
        rounds.append(found)
        shown = ", ".join(f"{system} {_describe(found[system])}" for system in runs)
        print(f"{title}, round {index + 1}: {shown}", flush=True)
    return rounds


def _describe(result: Result) -> str:
    if "p50_ms" not in result:
        return f"{result['answered_rows_per_s']:,.0f} rows/s"
    return (
        f"{result['answered_rows_per_s']:,.0f} rows/s {result['answered_per_s']:.1f}/s "
        f"p50 {result['p50_ms']:.2f} ms p99 {result['p99_ms']:.2f} ms"
    )


def server_points(params: dict[str, Any], rounds: Sequence[dict[str, Result]]) -> list[Point]:
    """A point of each client: medians over rounds, and LoadGen's over those of ``headway load``, paired by round."""
    points = []
    for system in (_OWN, _LOADGEN):
        own = [each[system] for each in rounds]
        extra: dict[str, Any] = {name: _median(own, name) for name in (*_COMPARED, "p999_ms", "answered_rows_per_s")}
        extra["not_answered"] = sum(_not_answered(each) for each in own)
        if system == _LOADGEN:
            extra |= {"valid_runs": sum(each["is_valid"] for each in own)}
            extra |= {name: own[0][name] for name in ("limit_ms", "version")}
            for name in _COMPARED:
                ratios = [each[_LOADGEN][name] / each[_OWN][name] for each in rounds if each[_OWN].get(name)]
                if ratios:
                    label = name.removesuffix("_ms")
                    extra |= {f"{label}_ratio": statistics.median(ratios), f"{label}_ratio_low": min(ratios),
                              f"{label}_ratio_high": max(ratios)}  # fmt: skip
        points.append(
            Point(
                name="serving_mlperf",
                params=params,
                system=system,
                samples=len(own),
                rate=extra["answered_per_s"],
                unit="requests/s",
                extra={name: value for name, value in extra.items() if value is not None},
            )
        )
    return points


def offline_points(params: dict[str, Any], rounds: Sequence[dict[str, Result]]) -> list[Point]:
    """A point of each system: rows that all ranks answered in a second, and over the closed loop, paired by round."""
    points = []
    for system in rounds[0]:
        rates = [each[system]["answered_rows_per_s"] for each in rounds]
        ratios = [rate / each[_LOOP]["answered_rows_per_s"] for rate, each in zip(rates, rounds, strict=True)]
        extra: dict[str, Any] = {"lowest_rate": min(rates), "highest_rate": max(rates)}
        extra |= {"ratio_low": min(ratios), "ratio_high": max(ratios)}
        if system != _LOOP:
            extra["not_answered"] = sum(_not_answered(each[system]) for each in rounds)
        if system == _LOADGEN:
            extra["version"] = rounds[0][system]["version"]
        points.append(
            Point(
                name="serving_mlperf",
                params=params,
                system=system,
                samples=len(rates),
                rate=statistics.median(rates),
                unit="rows/s",
                ratio=statistics.median(ratios),
                extra=extra,
            )
        )
    return points


def _median(results: Sequence[Result], name: str) -> float | None:
    """The median, or None: this version of a client does not report it."""
    values = [each[name] for each in results if name in each]
    return statistics.median(values) if values else None


def _not_answered(result: Result) -> int:
    return sum(count for status, count in result["statuses"].items() if status != "OK")


def _loadgen_settings(
    options: argparse.Namespace, scenario: Scenario, addresses: list[str], *, rate: float, seed: int
) -> LoadGenSettings:
    config = dlrm_config(options)
    return LoadGenSettings(
        scenario=scenario,
        addresses=addresses,
        rate=rate,
        seconds=options.seconds,
        in_flight=options.in_flight * len(addresses),
        timeout_ms=1000 if scenario == "Server" else _OFFLINE_TIMEOUT_MS,
        rows=list(options.rows.sizes),
        num_ids=num_ids(options),
        table_rows=list(config.table_rows),
        # In Offline each id has a row, as in the closed loop; in Server ids are those of headway load.
        is_modulo=scenario == "Offline",
        num_dense=config.num_dense,
        seed=seed,
    )


def _run_loop(options: argparse.Namespace, num_ranks: int) -> float:
    settings = {
        "mini_batch": options.max_rows,
        "max_lag": options.loop_lag,
        "seconds": options.seconds,
        "table_rows": list(dlrm_config(options).table_rows),
        "num_ids": num_ids(options),
        "timeout_s": _LOOP_LIMIT_S,
    }
    return float(
        run_torch_ranks(
            "benchmarks.torch_ranks.dlrm_loop_rank", settings, num_ranks=num_ranks, time_limit_s=_LOOP_LIMIT_S
        )
    )


def _params(options: argparse.Namespace, num_ranks: int) -> dict[str, Any]:
    return {
        "ranks": num_ranks,
        "rows": options.rows.label,
        "max_rows": options.max_rows,
        "batch_delay_us": options.batch_delay,
        "divide_rows": options.divide_rows,
        "seconds": options.seconds,
    }


def format_points(points: Sequence[Point]) -> str:
    """Returns a table of each scenario."""
    tables = []
    server = [point for point in points if point.params["scenario"] == "Server"]
    if server:
        header = ["offered", "client", "answered", "mean", "p50", "p99", *(f"{name} ratio" for name in _LABELS)]
        tables.append(format_table(header, [_server_row(point) for point in server]))
    offline = [point for point in points if point.params["scenario"] == "Offline"]
    if offline:
        rows = [
            [
                point.system,
                f"{point.rate:,.0f}",
                f"{point.extra['lowest_rate']:,.0f} to {point.extra['highest_rate']:,.0f}",
                format_ratio(point.ratio, point.extra["ratio_low"], point.extra["ratio_high"]),
            ]
            for point in offline
        ]
        tables.append(format_table(["Offline", "rows/s", "lowest to highest", f"over {_LOOP}"], rows))
    return "\n\n".join(tables)


_LABELS = ("answered_per_s", "mean", "p50", "p99")


def _server_row(point: Point) -> list[str]:
    cells = [f"{point.params['rate']:,.1f}/s", point.system, f"{point.rate:,.1f}/s"]
    for name in ("mean_ms", "p50_ms", "p99_ms"):
        cells.append(f"{point.extra[name]:.2f} ms" if name in point.extra else "-")
    for label in _LABELS:
        found = [point.extra.get(f"{label}_ratio{end}") for end in ("", "_low", "_high")]
        cells.append(format_ratio(*found))
    return cells


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
