# SPDX-License-Identifier: Apache-2.0
"""One run of the demo or the grid: prepares data, runs the ranks, writes results and report."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from headway.comm.rank_processes import RankFailedError, run_ranks
from tqdm import tqdm

from dlrm_examples.dlrm_inference.generate import write_ali_ccp_log, write_criteo_log
from dlrm_examples.dlrm_inference.measurement import GroupStats, Measurement, Message
from dlrm_examples.dlrm_inference.plan import RANDOM_DATASET, Plan, Workload, make_points
from dlrm_examples.dlrm_inference.rank_process import measure_plan
from dlrm_examples.dlrm_inference.reporting.headline import headline
from dlrm_examples.dlrm_inference.reporting.html_report import write_report
from dlrm_examples.dlrm_inference.reporting.result_table import HEADINGS, table_cells
from dlrm_examples.dlrm_inference.reporting.results import ResultRow, json_row, make_rows
from dlrm_examples.dlrm_inference.settings import SETTINGS
from dlrm_examples.dlrm_inference.systems import systems_on
from dlrm_examples.support.data.columnar_store import ColumnarLog, open_or_convert
from dlrm_examples.support.data.criteo import KAGGLE_CARDINALITIES, NUM_INTEGERS
from dlrm_examples.support.data.log_format import DataError, LogFormat
from dlrm_examples.support.data.log_formats import detect_format, format_named
from dlrm_examples.support.foreign_load import ForeignLoadError, foreign_load
from dlrm_examples.support.host_load import HostLoad, load_between, read_processor_time
from dlrm_examples.support.provenance import write_json_lines
from dlrm_examples.support.text_table import format_table


class SetupError(RuntimeError):
    """The comparison cannot start; the message is one line."""


class Comparison:
    """Prepares workloads (plan.py defines them), then runs all of them with one set of processes.

    Attributes:
        notes: remarks on the data for the report, such as malformed lines.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._began = time.monotonic()
        self.notes: list[str] = []
        self._logs: dict[Path, ColumnarLog] = {}  # Logs converted to columns, by the path of the original.
        _make_directory(options.out)
        self._systems = _choose_systems(options)
        if options.trace is not None:
            if "bls-headway" not in self._systems:  # Bounded-lag synchronous DLRM over Headway.
                raise SetupError("--trace records exchanges over Headway: add bls-headway to --systems")
            _make_directory(options.trace.parent)

    def load_log(self, path: Path, log_format: LogFormat) -> ColumnarLog:
        """Opens or converts a log at its first use, and prints how many rows it has and what was left out."""
        if path not in self._logs:
            self._logs[path] = self._load_log(path, log_format)
        return self._logs[path]

    def _load_log(self, path: Path, log_format: LogFormat) -> ColumnarLog:
        options = self._options
        log = open_or_convert(
            path,
            log_format,
            store_root=options.store,
            num_rows=options.ranks * options.mini_batch * options.steps,
            strict=options.strict,
        )
        needed = options.ranks * options.mini_batch * options.steps
        print(f"data: {path}, {log.manifest.num_rows} rows ready, {needed} used per run")
        if log.manifest.num_rows < needed:
            self._note(f"{path} has only {log.manifest.num_rows} rows; they are used repeatedly")
        if log.manifest.malformed_count:
            self._note(f"{log.manifest.malformed_count} malformed lines were left out, the first:")
            for report in log.manifest.malformed_reports[:5]:
                self._note(f"  {report}")
        for note in log.manifest.passed_over[:5]:  # Files without a usable row.
            self._note(f"passed over {note}")
        return log

    def generated_log(self, format_name: str) -> Path:
        """Path of a synthetic log that is large enough for a run. Written at its first use, next to the results."""
        options = self._options
        rows = options.ranks * options.mini_batch * options.steps
        directory = options.out / "data"
        if format_name == "criteo":
            path: Path = directory / f"criteo_{rows}_{options.seed}.tsv"
            if not path.exists():
                print(f"data: writing {rows} synthetic rows to {path}")
                write_criteo_log(path, num_rows=rows, seed=options.seed)
            return path
        path = directory / f"ali_ccp_{rows}_{options.seed}"
        if not path.exists():
            print(f"data: writing {rows} synthetic rows to {path}")
            write_ali_ccp_log(path, num_rows=rows, seed=options.seed)
        return path

    def workload(self, setting: str, log: ColumnarLog | None) -> Workload:
        """Creates the workload of a setting on a log; without a log, on random requests with Criteo's table sizes."""
        largest = self._options.max_rows_per_table
        table_rows = KAGGLE_CARDINALITIES if log is None else log.format.table_rows
        if log is not None and table_rows is None:
            table_rows = tuple(max_id + 1 for max_id in log.manifest.max_ids)
        assert table_rows is not None
        return Workload(
            setting=setting,
            dataset=RANDOM_DATASET if log is None else log.format.name,
            log=log,
            table_rows=tuple(min(rows, largest) for rows in table_rows),
            num_dense=NUM_INTEGERS if log is None else len(log.format.dense_names),
        )

    def run(self, workloads: Sequence[Workload], *, command: str, json_path: Path | None = None) -> int:
        """Measures all workloads, prints tables and writes the report.

        Args:
            workloads: settings with their data.
            command: command line for the report.
            json_path: second file for the results, beside ``results.jsonl``.
        Returns:
            the exit status: 1 if predictions differ between systems or bounds, else 0.
        """
        options = self._options
        json_paths = {options.out / "results.jsonl", json_path or options.out / "results.jsonl"}
        for path in json_paths:
            _make_directory(path.parent)
        plan = Plan(
            num_ranks=options.ranks,
            workloads=tuple(workloads),
            points=make_points(self._systems, sorted(set(options.lag))),
            num_runs=options.runs,
            num_steps=options.steps,
            mini_batch=options.mini_batch,
            seed=options.seed,
            device=options.device,
            trace_path=None if options.trace is None else options.trace.resolve(),
            foreign_load=" ".join(map(str, options.foreign_load)),
        )
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # Handle it like Ctrl-C: keep the results so far.
        recorded = Recorded([], [])
        load = None
        try:
            with foreign_load(options.foreign_load):
                before = read_processor_time()
                measure(plan, recorded, timeout_s=options.timeout)
                load = load_between(before, read_processor_time())
        finally:  # Keep complete workloads, even if the rest fails or is interrupted.
            rows = make_rows(plan, recorded.measurements, recorded.stats)
            devices = f", {plan.num_ranks} x {torch.cuda.get_device_name(0)}" if plan.device == "cuda" else ""
            for path in json_paths if rows else ():
                write_json_lines(path, (json_row(plan, row) for row in rows), devices=devices)
        # A host that is busy because the user wants it is no reason to doubt the comparison.
        doubt = None if plan.foreign_load else load
        write_report(plan, rows, options.out, load=doubt, notes=self.notes, command=command)
        _print_tables(plan, rows, doubt)
        print(f"report: {options.out / 'report.html'}, results: {options.out / 'results.jsonl'}")
        print(f"took {time.monotonic() - self._began:.0f} s")
        if not all(row.identical for row in rows):
            print("predictions differ between systems or bounds: see the report", file=sys.stderr)
            return 1
        return 0

    def _note(self, text: str) -> None:
        self.notes.append(text)
        print(f"note: {text}", file=sys.stderr)


class Recorded(NamedTuple):
    """Reports of the ranks so far."""

    measurements: list[Measurement]
    stats: list[GroupStats]


def measure(plan: Plan, recorded: Recorded, *, timeout_s: float) -> None:
    """Runs the plan with a progress bar; adds reports to ``recorded`` as they arrive."""
    with tqdm(total=plan.num_measurements, unit="run", desc="starting", leave=False) as progress:

        def on_message(message: Message) -> None:
            if isinstance(message, Measurement):
                recorded.measurements.append(message)
                if message.rank == 0:
                    progress.set_description(f"{message.point.system} k={message.point.max_lag}", refresh=False)
                    progress.update()
            else:
                recorded.stats.append(message)

        run_ranks(
            partial(measure_plan, plan=plan),
            num_ranks=plan.num_ranks,
            timeout_s=timeout_s,
            backend="gloo",
            on_message=on_message,
        )


def chosen_format(options: argparse.Namespace) -> LogFormat:
    """Log format of ``--data``."""
    return detect_format(options.data) if options.format == "auto" else format_named(options.format)


EXPECTED_ERRORS = (DataError, ForeignLoadError, SetupError, RankFailedError)
"""Errors of which a command line prints only the message, without a traceback."""


def _choose_systems(options: argparse.Namespace) -> list[str]:
    """Names of the requested systems; by default all that run on the device.

    Raises:
        SetupError: a system does not run on the device, or there are fewer GPUs than ranks.
    """
    num_gpus = torch.cuda.device_count() if options.device == "cuda" else 0
    if options.device == "cuda" and num_gpus < options.ranks:
        raise SetupError(f"--device cuda needs a GPU for each of {options.ranks} ranks, and this host has {num_gpus}")
    possible = systems_on(options.device)
    for name in options.systems or ():
        if name not in possible:
            raise SetupError(f"{name} does not run on {options.device}: choose from {', '.join(possible)}")
    return list(dict.fromkeys(options.systems or possible))


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(f"{path}: cannot make this directory: {error.strerror}") from error


def _print_tables(plan: Plan, rows: Sequence[ResultRow], load: HostLoad | None) -> None:
    for index, workload in enumerate(plan.workloads):
        of_workload = [row for row in rows if row.workload == index]
        beside = f" (beside {plan.foreign_load})" if plan.foreign_load else ""
        print(f"\n{workload.setting}, {workload.dataset}: {SETTINGS[workload.setting].description}{beside}")
        print(format_table(HEADINGS, table_cells(of_workload)))
        print(headline(of_workload, load))
    if all(row.identical for row in rows):
        print("All predictions are bit-identical over systems and bounds.")
