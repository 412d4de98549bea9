# SPDX-License-Identifier: Apache-2.0
"""Trains on all but the last part of a log and compares the models with smoothed rates on that part."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from headway.comm.rank_processes import COLLECTIVE_TIMEOUT, RankFailedError
from headway.embedding import CheckpointError
from headway.training import LossError

from dlrm_examples.streaming_ctr.command_line import make_parser, systems_of
from dlrm_examples.streaming_ctr.data.read_log import read_log
from dlrm_examples.streaming_ctr.evaluation import evaluate
from dlrm_examples.streaming_ctr.experiment import Experiment, System
from dlrm_examples.streaming_ctr.group import all_ranks, rank_of
from dlrm_examples.streaming_ctr.report import report
from dlrm_examples.streaming_ctr.results import Run, json_row
from dlrm_examples.streaming_ctr.smoothed_rates import smoothed_rates
from dlrm_examples.streaming_ctr.tables import TableSettings
from dlrm_examples.streaming_ctr.trainer import TrainerSettings
from dlrm_examples.streaming_ctr.training_run import train_system
from dlrm_examples.support.data.log import Log
from dlrm_examples.support.data.log_format import DataError
from dlrm_examples.support.provenance import write_json_lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = make_parser(__doc__)
    options = parser.parse_args(arguments)
    try:
        with _started_ranks() as group:
            _run(options, group)
    except (CheckpointError, DataError, LossError, RankFailedError, ValueError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted", file=sys.stderr)
        return 130
    return 0


@contextmanager
def _started_ranks() -> Iterator[dist.ProcessGroup | None]:
    """Yields the group of the ranks that torchrun has started; None without torchrun."""
    if not dist.is_torchelastic_launched():
        yield None
        return
    dist.init_process_group("headway", timeout=COLLECTIVE_TIMEOUT)
    try:
        yield all_ranks()
    finally:
        dist.destroy_process_group()


def _run(options: argparse.Namespace, group: dist.ProcessGroup | None) -> None:
    """Reads the log, trains every system, and reports. Under torchrun only rank 0 reports."""
    say = _say if rank_of(group) == 0 else _say_nothing
    log = read_log(options.data, max_history=options.history)
    experiment = _experiment_of(options, log)
    systems = systems_of(options, log, started_ranks=None if group is None else group.size())
    num_train = experiment.num_train
    say("; ".join(filter(None, (f"{log.num_examples} examples, the first {num_train} to train on", log.remark))))
    runs = [_rate(log, num_train)]
    for system in systems:
        runs += _train(log, experiment, system, group, say)
    say(report(runs))
    if options.out is not None and rank_of(group) == 0:
        num_test = log.num_examples - num_train
        write_json_lines(options.out, (json_row(experiment, run, num_test) for run in runs))


def _experiment_of(options: argparse.Namespace, log: Log) -> Experiment:
    num_train = log.num_train if options.train_examples is None else options.train_examples
    if not 1 <= num_train < log.num_examples:
        raise DataError(f"{num_train} of {log.num_examples} examples to train on leave nothing to learn or to test")
    return Experiment(
        data=options.data,
        history=options.history,
        num_train=num_train,
        epochs=options.epochs,
        settings=TrainerSettings(
            tables=TableSettings(dim=options.dim, lr=options.table_lr),
            batch_size=options.batch_size,
            dense_lr=options.dense_lr,
        ),
        seeds=tuple(range(options.seeds)),
        timeout_s=options.timeout,
    )


def _rate(log: Log, num_train: int) -> Run:
    """Evaluates the baseline without a model: click rates of single ids, smoothed by the common rate."""
    start = time.perf_counter()
    scores = smoothed_rates(log, num_train=num_train)
    return Run(system=None, seed=None, quality=evaluate(log, scores), train_s=time.perf_counter() - start)


def _train(
    log: Log, experiment: Experiment, system: System, group: dist.ProcessGroup | None, say: Callable[[str], None]
) -> list[Run]:
    results = train_system(log, experiment, system, group=group, say=say)
    runs = []
    for seed, result in zip(experiment.seeds, results, strict=True):
        assert result.quality is not None, "the training is at its end"
        runs.append(
            Run(
                system=system,
                seed=seed,
                quality=result.quality,
                train_s=result.train_s,
                rows=result.rows,
                use=result.use,
            )
        )
    return runs


def _say(line: str) -> None:
    print(line, flush=True)


def _say_nothing(line: str) -> None:
    """Used on all ranks but the reporting one."""


if __name__ == "__main__":
    torch.set_num_threads(1)  # small tensors; and equal results on any number of cores
    sys.exit(main())
