# SPDX-License-Identifier: Apache-2.0
"""Trials of ``headway serve``: right bits, lost ranks, changes of version, overload, idle ranks, and hours under load.

All of them serve the exported DLRM and compare each reply with the prediction of ``Predictor``, bit by bit.

* ``bits``: clients that wait send requests to 1 to 8 ranks, by each way to fetch rows.
* ``kills``: ranks are killed in turn under load; rank 0 gets the requests.
* ``versions``: the package changes under load between two versions, again and again.
* ``overload``: twice the rate that ranks sustain.
* ``idle``: processor time of ranks without requests.
* ``soak``: load for a long time, with a new version every few minutes.

The rate that ranks *sustain* is 0.9 of what waiting clients reach. Load generator and ranks share the cores, unless
``--cores-of-load`` and a ``taskset`` around the command keep them apart.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from headway.serving import Bucket, Request

from benchmarks.harness.arguments import make_parser
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.points import Point
from benchmarks.harness.report import measure_and_report
from benchmarks.harness.serve_command import Load, LoadRun, expected_replies, headway_serve, write_log
from benchmarks.harness.served_dlrm import are_free, expect_programs, free_ports
from benchmarks.serving import dlrm_config
from dlrm_examples.dlrm_inference.model import DlrmConfig
from dlrm_examples.dlrm_inference.serving import DENSE, export_dlrm, table_name
from dlrm_examples.support.command_line import at_least as whole_number

DESCRIPTION = "serving trials: bits, lost ranks, versions, overload, idle ranks, long runs"

_SYSTEMS = (*(f"ring {lag}" for lag in range(5)), "pairwise")
_SUSTAINED = 0.9  #: Multiplies the rate of waiting clients.
_CLIENTS_PER_RANK = 16
_KILL_PAUSE_S = 0.5  #: Between the return of service and the next kill.
_KILL_LOAD, _SOAK_LOAD = 0.5, 0.8  #: Multiply the sustained rate.
_VERSION_LOAD = 0.7  #: Multiplies the rate of waiting clients.
_DEADLINE_MS, _OVERLOAD_DEADLINE_MS, _SOAK_DEADLINE_MS = 3000, 100, 10_000
_IDLE_S = 60
_SMALL_BUCKETS = (64, 128, 256)
_ENDLESS_S = 1_000_000  #: Until ``Load.stop()``.


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = make_parser("serving_trials", DESCRIPTION, ranks=(2,))
    parser.add_argument("--trials", nargs="+", choices=tuple(_TRIALS), default=list(_TRIALS), metavar="TRIAL",
                        help=f"{', '.join(_TRIALS)} (default: all)")  # fmt: skip
    parser.add_argument("--cores-of-load", default="", metavar="LIST", help="of the load generator, as for taskset")
    for name, default, text in (
        ("--divide-rows", 20, "tables have one Nth of the rows of Criteo Kaggle"),
        ("--max-rows", 512, "most items of a batch"),
        ("--requests", 500, "different requests, of 1 to 127 items"),
        ("--seconds", 10, "of each run of bits and versions"),
        ("--overload-seconds", 300, "of overload"),
        ("--kills", 100, "ranks that are killed"),
        ("--changes", 50, "changes of version"),
        ("--soak-seconds", 3600, "of soak"),
        ("--change-seconds", 300, "between two versions of soak"),
    ):
        parser.add_argument(name, type=whole_number(1), default=default, help=f"{text} (default: {default})")
    return measure_and_report(
        "serving_trials", parser, parser.parse_args(argv), measure=measure, format_points=format_points
    )


class _Prepared:
    """Two versions of a model, and requests with their replies."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options = options
        config = dlrm_config(options)
        requests = _draw_requests(config, options.requests)
        self.packages = [folder / "v0", folder / "v1"]
        self.expected: dict[str, list[int]] = {}
        for number, package in enumerate(self.packages):
            export_dlrm(package, replace(config, seed=number), buckets=_buckets(options.max_rows), version=f"v{number}")
            self.expected.update(expected_replies(package, requests))
        self.log = folder / "requests.jsonl"
        write_log(self.log, requests)
        self.link = folder / "current"
        self.point_to(0)

    def point_to(self, version: int) -> None:
        """Lets the link that is served point to a version, at once."""
        new = self.link.with_suffix(".new")
        new.symlink_to(self.packages[version])
        new.rename(self.link)

    def start(self, addresses: Sequence[str], *words: str, seconds: int) -> Load:
        return Load(
            self.packages[0], addresses, *words, log=self.log, expected=self.expected, seconds=seconds,
            cores=self.options.cores_of_load,
        )  # fmt: skip

    def closed_loop(self, addresses: Sequence[str], seconds: int) -> LoadRun:
        """Clients that wait for their replies."""
        return self.start(addresses, "--clients", str(_CLIENTS_PER_RANK * len(addresses)), seconds=seconds).finish()

    def sustained(self, addresses: Sequence[str]) -> float:
        """Requests a second that the ranks sustain.

        Raises:
            BenchmarkError: they answer none.
        """
        run = self.closed_loop(addresses, 5)
        if run.answered_per_s == 0:
            raise BenchmarkError(f"no request was answered in 5 s: {run.result['statuses']}")
        return _SUSTAINED * run.answered_per_s


def measure(options: argparse.Namespace) -> list[Point]:
    """Runs the trials.

    Raises:
        BenchmarkError: the programs are not built, or a rank does not start.
    """
    expect_programs()
    points = []
    with tempfile.TemporaryDirectory() as folder:
        prepared = _Prepared(options, Path(folder))
        for trial in options.trials:
            for ranks in options.ranks:
                for system in _SYSTEMS if trial == "bits" else ("pairwise",):
                    prepared.point_to(0)
                    found = _TRIALS[trial](prepared, ranks, system)
                    print(f"{trial}, {ranks} ranks, {system}: {found}", flush=True)
                    points.append(
                        Point(
                            name="serving_trials", params={"trial": trial, "ranks": ranks}, system=system, extra=found
                        )
                    )
    return points


def _buckets(max_rows: int) -> list[Bucket]:
    """A batch computes its whole bucket, so there are some small ones."""
    return [*(Bucket(rows) for rows in _SMALL_BUCKETS if rows < max_rows), Bucket(max_rows)]


def _draw_requests(config: DlrmConfig, count: int) -> list[Request]:
    generator = torch.Generator().manual_seed(1)
    requests = []
    for _ in range(count):
        rows = int(torch.randint(1, 128, (1,), generator=generator))
        ones = torch.ones(rows, dtype=torch.int64)
        features = {
            table_name(table): (torch.randint(0, size, (rows,), generator=generator), ones)
            for table, size in enumerate(config.table_rows)
        }
        requests.append(
            Request(features=features, dense={DENSE: torch.rand(rows, config.num_dense, generator=generator)})
        )
    return requests


def _bits(prepared: _Prepared, ranks: int, system: str) -> dict[str, Any]:
    kind, _, lag = system.partition(" ")
    words = ["--fetch", kind, *(["--max-lag", lag] if lag else [])]
    with headway_serve(prepared.link, *words, ranks=ranks, port=_first_port(ranks)) as served:
        run = prepared.closed_loop(served.addresses, prepared.options.seconds)
    return {"right": run.num_right, "wrong": run.num_wrong, "per_s": round(run.answered_per_s)}


def _kills(prepared: _Prepared, ranks: int, system: str) -> dict[str, Any]:
    if ranks == 1:
        raise BenchmarkError("kills needs --ranks of at least 2: rank 0 gets the requests, and others are killed")
    kills = prepared.options.kills
    up_s, returned_ms = [], []
    with headway_serve(prepared.link, ranks=ranks, port=_first_port(ranks)) as served:
        rate = max(1, round(_KILL_LOAD * prepared.sustained(served.addresses)))
        load = prepared.start(
            served.addresses[:1], "--rate", str(rate), "--timeout", str(_DEADLINE_MS), seconds=_ENDLESS_S
        )
        for number in range(kills):
            time.sleep(_KILL_PAUSE_S)
            began = time.monotonic()
            os.kill(served.pids()[1 + number % (ranks - 1)], signal.SIGKILL)
            served.wait_for(" serves version ", ranks + number + 1)
            is_up = time.monotonic()
            served.wait_for("requests are taken again", (number + 1) * (ranks - 1))
            up_s.append(is_up - began)
            returned_ms.append(1e3 * (time.monotonic() - is_up))
        run = load.stop()
    errors = run.result["errors"]
    return {
        "kills": kills, "offered_per_s": rate, "right": run.num_right, "wrong": run.num_wrong,
        "statuses": dict(run.statuses), "refused_without_rank": sum(
            count for text, count in errors.items() if not any(f"rank {rank}" in text for rank in range(1, ranks))
        ),
        "replaced_s": round(statistics.median(up_s), 2), "returned_ms": round(statistics.median(returned_ms), 1),
        "returned_ms_max": round(max(returned_ms), 1), "p99_ms": run.result["p99_ms"],
        "refused_p99_ms": run.result["refused_p99_ms"],
    }  # fmt: skip


def _versions(prepared: _Prepared, ranks: int, system: str) -> dict[str, Any]:
    changes = prepared.options.changes
    with headway_serve(prepared.link, ranks=ranks, port=_first_port(ranks)) as served:
        rate = _VERSION_LOAD / _SUSTAINED * prepared.sustained(served.addresses)
        words = ("--rate", f"{rate:.0f}", "--timeout", str(_DEADLINE_MS))
        calm = prepared.start(served.addresses, *words, seconds=3 * prepared.options.seconds).finish()
        load = prepared.start(served.addresses, *words, seconds=_ENDLESS_S)
        for number in range(1, changes + 1):
            time.sleep(1)
            prepared.point_to(number % 2)
            served.wait_for(" is served", number * ranks)
        time.sleep(1)
        run = load.stop()
    return {
        "changes": changes, "offered_per_s": round(rate), "right": run.num_right, "wrong": run.num_wrong,
        "statuses": dict(run.statuses), "versions": run.result["versions"], "seconds": round(run.result["seconds"], 1),
        "calm_p50_ms": calm.result["p50_ms"], "calm_p99_ms": calm.result["p99_ms"], "p50_ms": run.result["p50_ms"],
        "p99_ms": run.result["p99_ms"], "p99_ratio": round(run.result["p99_ms"] / calm.result["p99_ms"], 2),
    }  # fmt: skip


def _overload(prepared: _Prepared, ranks: int, system: str) -> dict[str, Any]:
    with headway_serve(prepared.link, ranks=ranks, port=_first_port(ranks)) as served:
        sustained = prepared.sustained(served.addresses)
        before = served.memory_mib()
        words = ("--rate", f"{2 * sustained:.0f}", "--timeout", str(_OVERLOAD_DEADLINE_MS))
        run = prepared.start(served.addresses, *words, seconds=prepared.options.overload_seconds).finish()
        after = served.memory_mib()
    return {
        "sustained_per_s": round(sustained), "answered_per_s": round(run.answered_per_s),
        "share": round(run.answered_per_s / sustained, 3), "right": run.num_right, "wrong": run.num_wrong,
        "statuses": dict(run.statuses), "refused_p99_ms": run.result["refused_p99_ms"], "p99_ms": run.result["p99_ms"],
        "sent_late_p99_ms": run.result["sent_late_p99_ms"], "memory_mib": [round(sum(before)), round(sum(after))],
    }  # fmt: skip


def _idle(prepared: _Prepared, ranks: int, system: str) -> dict[str, Any]:
    with headway_serve(prepared.link, ranks=ranks, port=_first_port(ranks)) as served:
        prepared.closed_loop(served.addresses, 1)
        time.sleep(2)
        before = served.cpu_seconds()
        time.sleep(_IDLE_S)
        shares = [100 * (now - then) / _IDLE_S for now, then in zip(served.cpu_seconds(), before, strict=True)]
    return {"seconds": _IDLE_S, "percent_of_core": round(statistics.mean(shares), 2), "most": round(max(shares), 2)}


def _soak(prepared: _Prepared, ranks: int, system: str) -> dict[str, Any]:
    options = prepared.options
    memory: list[float] = []
    with headway_serve(prepared.link, ranks=ranks, port=_first_port(ranks)) as served:
        rate = _SOAK_LOAD * prepared.sustained(served.addresses)
        words = ("--rate", f"{rate:.0f}", "--timeout", str(_SOAK_DEADLINE_MS))
        load = prepared.start(served.addresses, *words, seconds=_ENDLESS_S)
        changes = 0
        for _ in range(max(2, options.soak_seconds // options.change_seconds)):
            time.sleep(options.change_seconds)
            changes += 1
            prepared.point_to(changes % 2)
            served.wait_for(" is served", changes * ranks)
            time.sleep(5)  # The old version is freed.
            memory.append(sum(served.memory_mib()))
        run = load.stop()
    return {
        "seconds": round(run.result["seconds"]), "offered_per_s": round(rate), "changes": changes,
        "right": run.num_right, "wrong": run.num_wrong, "statuses": dict(run.statuses),
        "p99_ms": run.result["p99_ms"], "memory_mib": [round(each) for each in memory],
    }  # fmt: skip


def _first_port(ranks: int) -> int:
    """First of several ports that nobody listens at."""
    while True:
        [first] = free_ports(1)
        if are_free(range(first, first + ranks)):
            return first


_TRIALS: dict[str, Callable[[_Prepared, int, str], dict[str, Any]]] = {
    "bits": _bits,
    "kills": _kills,
    "versions": _versions,
    "overload": _overload,
    "idle": _idle,
    "soak": _soak,
}


def format_points(points: Sequence[Point]) -> str:
    """A paragraph for each trial."""
    paragraphs = []
    for point in points:
        lines = [f"{point.params['trial']}: {point.params['ranks']} ranks, {point.system}"]
        lines += [f"  {name}: {value}" for name, value in point.extra.items()]
        paragraphs.append("\n".join(lines))
    return "\n".join(paragraphs)
