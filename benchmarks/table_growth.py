# SPDX-License-Identifier: Apache-2.0
"""A table that gets new ids at every step: step times while it grows, its memory, and its checkpoint.

Ids come from a stream whose universe grows. Some ids of each batch are new and some repeat the batch before. The others
follow a power law over age, so popularity decays. A step is a trainer's work on the keys of one rank: deduplicate, find
or insert, gather, sum gradients, and update.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from headway.embedding import FeatureConfig, HashTableCollection, RowWiseAdagrad, TableConfig, Uniform

from benchmarks.harness.arguments import make_parser, whole_number
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.plots import Panel
from benchmarks.harness.points import Point
from benchmarks.harness.report import measure_and_report
from dlrm_examples.support.data.zipf import draw_zipf
from dlrm_examples.support.text_table import format_bytes, format_table, format_time

DESCRIPTION = "step times, memory and checkpoint of a table that grows"

_BYTES_OF_KEY = 12  #: A key is an id (8 bytes) with its table's number (4 bytes).
_ID_MULTIPLIER = 0x1E3779B97F4A7C15  #: Odd multiplier: maps consecutive numbers to ids that differ and look random.


class IdStream:
    """Draws batches of ids; each batch is newer on average than the one before.

    Args:
        num_first: ids that exist at the start.
        keys: ids in a batch.
        new: fraction of a batch that was never seen.
        repeated: fraction of a batch that is drawn from the batch before.
        exponent: exponent of the power law of popularity over age.
    """

    def __init__(self, *, num_first: int, keys: int, new: float, repeated: float, exponent: float) -> None:
        if not (new >= 0 and repeated >= 0 and new + repeated <= 1 + 1e-9):
            raise ValueError(f"parts of a batch must be from 0, and at most 1 together, not {new} and {repeated}")
        self.num_ids = num_first
        self._sizes = (round(keys * new), round(keys * repeated))  # Numbers of new and of repeated ids in a batch.
        if self._sizes[0] < 1:
            raise ValueError(
                f"a batch of {keys} ids of which {new} are new has no new one, so the table would not grow"
            )
        self._keys, self._exponent = keys, exponent
        self._random = np.random.default_rng(3)
        self._last = np.arange(max(1, num_first))

    def draw(self) -> torch.Tensor:
        """Draws the ids of a step: (keys,) int64."""
        num_new, num_repeated = self._sizes
        new = np.arange(self.num_ids, self.num_ids + num_new)
        self.num_ids += num_new
        repeated = self._random.choice(self._last, num_repeated)
        num_old = self._keys - num_new - num_repeated
        ages = draw_zipf(self._random, num_values=max(1, self.num_ids), exponent=self._exponent, size=num_old)
        ids = np.concatenate((new, repeated, self.num_ids - 1 - ages))
        self._random.shuffle(ids)
        self._last = ids
        return torch.from_numpy(ids) * _ID_MULTIPLIER


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = make_parser("table_growth", DESCRIPTION, ranks=(1,))
    for name, default, text in (
        ("--first", 1_000_000, "rows at the start"),
        ("--rows", 8_000_000, "rows at the end"),
        ("--keys", 100_000, "of a step"),
        ("--dim", 64, "values of a vector"),
        ("--threads", os.cpu_count() or 1, "of the table"),
    ):
        parser.add_argument(name, type=whole_number(1), default=default, help=f"{text} (default: %(default)s)")
    parser.add_argument("--new", type=float, default=0.4, help="part of a step's ids (default: %(default)s)")
    parser.add_argument("--repeated", type=float, default=0.3, help="part of the step before (default: %(default)s)")
    parser.add_argument("--exponent", type=float, default=1.1, help="of popularity over age (default: %(default)s)")
    parser.add_argument(
        "--checkpoint", action="store_true", help="save and load it at the end, beside a copy of the file"
    )
    return measure_and_report(
        "table_growth", parser, parser.parse_args(argv), measure=measure, format_points=format_points, panels=_panels
    )


def measure(options: argparse.Namespace) -> list[Point]:
    """Measures one point for the steps, with memory; ``--checkpoint`` adds one each for save, load and a plain copy.

    Raises:
        BenchmarkError: the table does not hold the rows that it was given.
    """
    if options.rows <= options.first:
        raise BenchmarkError(f"--rows {options.rows} must be above --first {options.first}: there would be no step")
    tables = _make(options)
    stream = IdStream(
        num_first=options.first, keys=options.keys, new=options.new, repeated=options.repeated,
        exponent=options.exponent,
    )  # fmt: skip
    _insert(tables, options.first)
    seconds = []
    while stream.num_ids < options.rows:
        ids = stream.draw()
        started = time.perf_counter()
        _step(tables, ids)
        seconds.append(time.perf_counter() - started)
    statistics = tables.statistics()["tables"]["items"]
    if statistics["rows"] != stream.num_ids:
        raise BenchmarkError(f"the table has {statistics['rows']} rows for {stream.num_ids} ids")
    params = {
        name: getattr(options, name)
        for name in ("first", "rows", "keys", "dim", "new", "repeated", "exponent", "threads")
    }
    points = [_growth_point(params, seconds, statistics)]
    return points + (_checkpoint_points(tables, params, options) if options.checkpoint else [])


def _make(options: argparse.Namespace) -> HashTableCollection:
    return HashTableCollection(
        tables=[
            TableConfig("items", dim=options.dim, optimizer=RowWiseAdagrad(lr=0.05), initializer=Uniform(-0.05, 0.05))
        ],
        features=[FeatureConfig("items", table="items", pooling=None)],
        num_threads=options.threads,
    )


def _insert(tables: HashTableCollection, count: int) -> None:
    """Looks up the first ids of the stream in large batches. A lookup inserts the ids that the table lacks."""
    with torch.no_grad():
        for first in range(0, count, 1 << 18):
            ids = torch.arange(first, min(first + (1 << 18), count)) * _ID_MULTIPLIER
            tables({"items": (ids, torch.tensor([len(ids)]))})


def _step(tables: HashTableCollection, ids: torch.Tensor) -> None:
    embeddings = tables({"items": (ids, torch.tensor([len(ids)]))})["items"]
    embeddings.sum().backward()  # type: ignore[no-untyped-call]
    tables.optimizer.step()


def _growth_point(params: dict[str, object], seconds: Sequence[float], statistics: dict[str, int]) -> Point:
    p5_s, median_s, p95_s, p99_s = np.quantile(seconds, (0.05, 0.5, 0.95, 0.99)).tolist()
    rows, dim = statistics["rows"], int(str(params["dim"]))
    used = rows * (_BYTES_OF_KEY + 4 * dim + 4)  # Key, float32 embedding, and one float of optimizer state.
    return Point(
        name="table_growth", params=dict(params), system="headway", median_s=median_s, p5_s=p5_s, p95_s=p95_s,
        samples=len(seconds), rate=int(str(params["keys"])) / median_s, unit="ids/s",
        extra={
            "p99_s": p99_s, "longest_s": max(seconds), "key_bytes": statistics["key_bytes"],
            "row_bytes": statistics["row_bytes"], "resident_bytes": _resident_bytes(),
            "overhead": (statistics["key_bytes"] + statistics["row_bytes"]) / used - 1,
        },
    )  # fmt: skip


def _resident_bytes() -> int:
    """Largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _checkpoint_points(
    tables: HashTableCollection, params: dict[str, object], options: argparse.Namespace
) -> list[Point]:
    with tempfile.TemporaryDirectory(dir=options.out.parent if options.out.parent.is_dir() else None) as name:
        folder = Path(name)
        seconds = {"save": _time(lambda: tables.save(folder))}
        num_bytes = sum(path.stat().st_size for path in folder.glob("*.bin"))
        seconds["copy"] = _time(lambda: _copy(folder))
        seconds["load"] = _time(lambda: tables.load(folder))
    return [
        Point(
            name=f"table_checkpoint_{what}", params=dict(params), system="headway" if what != "copy" else "copy",
            median_s=time_s, p5_s=None, p95_s=None, samples=1, rate=num_bytes / time_s, unit="bytes/s",
            extra={"num_bytes": num_bytes},
        )
        for what, time_s in seconds.items()
    ]  # fmt: skip


def _copy(folder: Path) -> None:
    """Copies the files of a checkpoint: the disk's limit. Reads hit the page cache; writes are synced as in a save."""
    for path in list(folder.glob("*.bin")):
        with path.open("rb") as source, (folder / "copy").open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 22)
            target.flush()
            os.fsync(target.fileno())
        (folder / "copy").unlink()


def _time(call: object) -> float:
    started = time.perf_counter()
    call()  # type: ignore[operator]
    return time.perf_counter() - started


def format_points(points: Sequence[Point]) -> str:
    """Formats the table of step times and memory, and the table of checkpoints.

    The columns "keys" and the second "rows" are memory of the key index and of the rows. The last column is their
    excess over the bytes of keys, embeddings and optimizer state.
    """
    growth = points[0]
    extra = growth.extra
    lines = [
        format_table(
            ("rows", "step", "99%", "longest", "longest / median", "keys", "rows", "beyond keys, rows, state"),
            [
                (
                    f"{growth.params['first']:,} to {growth.params['rows']:,}",
                    format_time(growth.median_s),
                    format_time(extra["p99_s"]),
                    format_time(extra["longest_s"]),
                    f"{extra['longest_s'] / (growth.median_s or 1):.2f}",
                    format_bytes(extra["key_bytes"]),
                    format_bytes(extra["row_bytes"]),
                    f"{extra['overhead']:.1%}",
                )
            ],
        )
    ]
    if len(points) > 1:
        rows = [
            (
                point.name.rpartition("_")[2],
                format_bytes(point.extra["num_bytes"]),
                format_time(point.median_s),
                f"{format_bytes(point.rate or 0)}/s",
            )
            for point in points[1:]
        ]
        lines.append(format_table(("checkpoint", "bytes", "time", "rate"), rows))
    return "\n".join(lines)


def _panels(points: Sequence[Point]) -> list[Panel]:
    return [
        Panel(title="steps of a growing table", points=points[:1], x=lambda point: point.params["rows"], x_label="rows")
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
