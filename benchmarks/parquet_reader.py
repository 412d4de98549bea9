# SPDX-License-Identifier: Apache-2.0
"""Reading of Parquet folders as jagged batches, against pyarrow that only decodes the same columns.

Samples have lognormal lengths with a mean of 600, two features and a time per event, actions, and 8 targets. The reader
checks the values, takes samples in turn from its virtual streams (disjoint parts of the rows), and joins them to
batches; pyarrow stops after decoding. Both read all files, in turns, in a process that keeps freed memory, as those of
``headway train`` do. Rates count the bytes of the decoded columns.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from headway.cli.process_memory import keep_freed_memory

keep_freed_memory()  # Before pyarrow is loaded.

import pyarrow.parquet as pq  # noqa: E402
from headway.data import BatchReader, ParquetFolder, SampleSchema  # noqa: E402

from benchmarks.grm_training import Lengths, write_samples  # noqa: E402
from benchmarks.harness.arguments import make_parser, whole_number  # noqa: E402
from benchmarks.harness.pairing import median_interval  # noqa: E402
from benchmarks.harness.points import Point  # noqa: E402
from benchmarks.harness.report import measure_and_report  # noqa: E402
from dlrm_examples.support.text_table import format_ratio, format_table, format_time  # noqa: E402

DESCRIPTION = "jagged batches from Parquet files, against pyarrow that decodes the same columns"

_SCHEMA = SampleSchema(events=("item", "shop"), actions=("action",), labels=("click", "buy"))


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = make_parser("parquet_reader", DESCRIPTION, ranks=(1,), rounds=7)
    for name, default, text in (
        ("--samples", 8192, "in all files"),
        ("--batch", 512, "samples of a step"),
        ("--streams", 16, "virtual streams of the reader"),
        ("--chunk-rows", 64, "rows that a stream decodes at a time"),
        ("--ids", 50_000_000, "that may come"),
        ("--longest", 3000, "longest sample"),
    ):
        parser.add_argument(name, type=whole_number(1), default=default, help=f"{text} (default: %(default)s)")
    parser.add_argument("--mean", type=float, default=600, help="mean length (default: %(default)s)")
    return measure_and_report(
        "parquet_reader", parser, parser.parse_args(argv), measure=measure, format_points=format_points
    )


def measure(options: argparse.Namespace) -> list[Point]:
    """Measures a point for the reader and one for pyarrow."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lengths = Lengths(options.longest, mean=options.mean)
        write_samples(folder, num_samples=options.samples, lengths=lengths, ids=options.ids)
        num_bytes = _decode(folder)
        systems: dict[str, Callable[[], int]] = {
            "headway": lambda: _read(folder, options),
            "pyarrow": lambda: _decode(folder),
        }
        seconds: dict[str, list[float]] = {system: [] for system in systems}
        for _ in range(options.rounds):
            for system, run in systems.items():
                begin = time.perf_counter()
                run()
                seconds[system].append(time.perf_counter() - begin)
    ratios = [theirs / ours for ours, theirs in zip(seconds["headway"], seconds["pyarrow"], strict=True)]
    interval = median_interval(ratios)
    params = {name: getattr(options, name) for name in ("samples", "batch", "streams", "chunk_rows", "mean", "longest")}
    return [
        Point(
            name="parquet_reader", params=params, system=system, median_s=statistics.median(each), p5_s=min(each),
            p95_s=max(each), samples=len(each), rate=num_bytes / statistics.median(each) / 1e9, unit="GB/s",
            ratio=interval.median if system == "headway" else None,
            extra={"ratio_low": interval.low, "ratio_high": interval.high} if system == "headway" else {},
        )
        for system, each in seconds.items()
    ]  # fmt: skip


def _read(folder: Path, options: argparse.Namespace) -> int:
    """Reads all batches; returns the number of samples."""
    reader = BatchReader(
        ParquetFolder(folder, _SCHEMA),
        global_batch=options.batch,
        num_streams=options.streams,
        chunk_rows=options.chunk_rows,
    )
    return sum(batch.num_samples for step in reader for batch in step.batches)


def _decode(folder: Path) -> int:
    """Decodes all columns row group by row group; returns their bytes."""
    num_bytes = 0
    for path in sorted(folder.glob("*.parquet")):
        with pq.ParquetFile(path) as file:
            for index in range(file.num_row_groups):
                num_bytes += file.read_row_group(index, columns=list(_SCHEMA.columns)).nbytes
    return num_bytes


def format_points(points: Sequence[Point]) -> str:
    """Formats the table: one row for each system."""
    rows = [
        (
            point.system,
            format_time(point.median_s),
            f"{point.rate or 0:.2f}",
            format_ratio(point.ratio, point.extra.get("ratio_low"), point.extra.get("ratio_high")),
        )
        for point in points
    ]
    return format_table(("system", "all files", "GB/s", "speed of pyarrow (95%)"), rows)
