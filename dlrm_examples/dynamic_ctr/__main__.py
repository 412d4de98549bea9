"""Trains on all but the last part of a log and compares the model with smoothed rates on that part."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from headway.one_line_parser import OneLineParser

from dlrm_examples.bls_dlrm.command_line import at_least, program_name
from dlrm_examples.bls_dlrm.log_format import DataError
from dlrm_examples.bls_dlrm.text_table import format_table
from dlrm_examples.dynamic_ctr.evaluation import Quality, evaluate
from dlrm_examples.dynamic_ctr.log import Log
from dlrm_examples.dynamic_ctr.read_log import read_log
from dlrm_examples.dynamic_ctr.smoothed_rates import smoothed_rates
from dlrm_examples.dynamic_ctr.static_tables import StaticTables
from dlrm_examples.dynamic_ctr.tables import Tables, TableSettings
from dlrm_examples.dynamic_ctr.trainer import Trainer, TrainerSettings

KINDS = ("static", "dynamic")
_MODULE = "dlrm_examples.dynamic_ctr"


@dataclass(frozen=True, kw_only=True)
class Result:
    """One way to predict, trained once."""

    system: str  # a kind of tables, or "smoothed rates"
    seed: int | None  # None where nothing is random
    quality: dict[str, Quality]
    train_s: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        log = read_log(options.data, max_history=options.history)
        num_train = log.num_train if options.train_examples is None else options.train_examples
        if not 1 <= num_train < log.num_examples:
            raise DataError(f"{num_train} of {log.num_examples} examples to train on leave nothing to learn or to test")
        print("; ".join(filter(None, (f"{log.num_examples} examples, the first {num_train} to train on", log.remark))))
        results = [_rate(log, num_train)]
        for kind in dict.fromkeys(options.tables):
            results += [_train(log, num_train, kind, seed, options) for seed in range(options.seeds)]
        print(_table(log, results))
        if options.out is not None:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text("".join(f"{_json_line(result, log, num_train, options)}\n" for result in results))
    except (DataError, ValueError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    return 0


def make_tables(kind: str, log: Log, settings: TableSettings) -> Tables:
    """Tables of a kind out of ``KINDS`` for the features of the log.

    Raises:
        DataError: this build of headway has no dynamic tables.
    """
    if kind == "static":
        return StaticTables(log.features, log.table_ids(), settings)
    try:
        from dlrm_examples.dynamic_ctr.dynamic_tables import DynamicTables
    except ImportError as error:
        raise DataError(f"--tables dynamic needs headway.embedding: {error}") from error
    return DynamicTables(log.features, settings)


def _rate(log: Log, num_train: int) -> Result:
    start = time.perf_counter()
    scores = smoothed_rates(log, num_train=num_train)
    return Result(
        system="smoothed rates", seed=None, quality=evaluate(log, scores), train_s=time.perf_counter() - start
    )


def _train(log: Log, num_train: int, kind: str, seed: int, options: argparse.Namespace) -> Result:
    settings = TrainerSettings(
        tables=TableSettings(dim=options.dim, lr=options.table_lr, seed=seed),
        batch_size=options.batch_size,
        dense_lr=options.dense_lr,
    )
    start = time.perf_counter()
    trainer = Trainer(log, make_tables(kind, log, settings.tables), settings, num_train=num_train)
    trainer.train_until(options.epochs * num_train)
    train_s = time.perf_counter() - start
    quality = evaluate(log, trainer.predict(num_train, log.num_examples))
    return Result(system=kind, seed=seed, quality=quality, train_s=train_s)


def _table(log: Log, results: Sequence[Result]) -> str:
    """One line for each system: mean and standard deviation over its seeds."""
    metrics = [(label, metric) for label in log.label_names for metric in Quality._fields]
    lines = []
    for system in dict.fromkeys(result.system for result in results):
        runs = [result for result in results if result.system == system]
        values = [[getattr(run.quality[label], metric) for run in runs] for label, metric in metrics]
        seconds = statistics.mean(run.train_s for run in runs)
        lines.append((system, str(len(runs)), *map(_spread, values), f"{seconds:.1f}"))
    return format_table(("system", "runs", *(f"{label} {metric}" for label, metric in metrics), "train s"), lines)


def _spread(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "no users"
    deviation = f" ± {statistics.stdev(known):.4f}" if len(known) > 1 else ""
    return f"{statistics.mean(known):.4f}{deviation}"


def _json_line(result: Result, log: Log, num_train: int, options: argparse.Namespace) -> str:
    params = {
        name: value for name, value in vars(options).items() if name not in ("data", "out", "tables", "seeds")
    } | {"train_examples": num_train, "test_examples": log.num_examples - num_train}
    quality = {label: quality._asdict() for label, quality in result.quality.items()}
    return json.dumps(asdict(result) | {"quality": quality, "params": params})


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog=program_name(_MODULE), description=__doc__)
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        metavar="PATH",
        help="a directory of KuaiRand, MovieLens' ratings.csv, or a file or directory in Criteo's format; .gz, too",
    )
    parser.add_argument(
        "--tables",
        nargs="+",
        choices=KINDS,
        default=["static"],
        help="static: a row for every id of the log from the start; dynamic: headway.embedding (default: static)",
    )
    parser.add_argument("--seeds", type=at_least(1), default=1, help="runs of each kind (default: %(default)s)")
    parser.add_argument("--epochs", type=at_least(1), default=1, help="passes (default: %(default)s)")
    parser.add_argument(
        "--train-examples",
        type=at_least(1),
        metavar="N",
        help="train on the first N (default: all but the last day of KuaiRand, or the last fifth of other logs)",
    )
    parser.add_argument(
        "--history",
        type=at_least(1),
        default=50,
        metavar="N",
        help="longest list of recent items; Criteo's logs have none (default: %(default)s)",
    )
    parser.add_argument("--dim", type=at_least(1), default=16, help="columns of a vector (default: %(default)s)")
    parser.add_argument(
        "--batch-size", type=at_least(1), default=256, metavar="N", help="examples of a step (default: %(default)s)"
    )
    parser.add_argument("--table-lr", type=float, default=0.05, metavar="RATE", help="(default: %(default)s)")
    parser.add_argument("--dense-lr", type=float, default=0.002, metavar="RATE", help="(default: %(default)s)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="gets one JSON line a run")
    return parser


if __name__ == "__main__":
    torch.set_num_threads(1)  # the tensors of a batch are too small to share, and the figures are the same everywhere
    sys.exit(main())
