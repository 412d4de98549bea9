# SPDX-License-Identifier: Apache-2.0
"""Trains a system on its number of ranks, one run per seed, including a restart on other ranks.

A phase is the part of a training that one set of ranks runs: up to the restart, or after it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch.distributed as dist
from headway.comm.rank_processes import run_ranks

from dlrm_examples.streaming_ctr import checkpoint
from dlrm_examples.streaming_ctr.data.read_log import read_log
from dlrm_examples.streaming_ctr.dynamic_tables import DynamicTables
from dlrm_examples.streaming_ctr.evaluation import Quality, evaluate
from dlrm_examples.streaming_ctr.experiment import Experiment, System
from dlrm_examples.streaming_ctr.group import all_ranks
from dlrm_examples.streaming_ctr.hybrid_tables import ServedTables, local_servers
from dlrm_examples.streaming_ctr.static_tables import StaticTables
from dlrm_examples.streaming_ctr.tables import Tables, TableSettings, TableUse
from dlrm_examples.streaming_ctr.trainer import DenseModel, Trainer
from dlrm_examples.support.data.log import Log

NUM_ROW_COUNTS = 10
"""Number of times that the rows of the tables are counted during a training, at equal distances."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Phase of a training, run by one set of ranks: from a checkpoint or the start, to a checkpoint or the end."""

    end: float = 1.0  # share of the training after this phase
    load_from: Path | None = None  # folder with one checkpoint per seed
    save_to: Path | None = None


@dataclass(frozen=True, kw_only=True)
class PhaseResult:
    """Result of a phase, over all ranks.

    Attributes:
        rows: number of table rows after each tenth (``1 / NUM_ROW_COUNTS``) of the training that ends in this phase.
        use: contents of the tables at the end; evictions and refusals of this phase only.
        train_s: duration in seconds.
        quality: quality by label; None unless the phase ends the training.
    """

    rows: tuple[int, ...]
    use: TableUse
    train_s: float
    quality: dict[str, Quality] | None


def train_system(
    log: Log, experiment: Experiment, system: System, *, group: dist.ProcessGroup | None, say: Callable[[str], None]
) -> list[PhaseResult]:
    """Runs the whole training of a system; returns one result per seed.

    Args:
        log: contents of ``experiment.data``, for training in this process; ranks started here read the file again.
        experiment, system: settings of the training.
        group: group of ranks that a launcher started; the call is then collective. None: start ranks as needed.
        say: called with one line per restart.
    Raises:
        RankFailedError: a rank failed, died or ran out of time.
        ValueError: a setting is out of range.
    """
    if group is not None or (system.num_ranks == 1 and system.restart is None):
        return train_phase(group, log, experiment, system, Phase())
    if system.restart is None:
        return _on_ranks(experiment, system, Phase(), num_ranks=system.num_ranks)
    with tempfile.TemporaryDirectory() as folder:
        stop = Phase(end=system.restart.at, save_to=Path(folder))
        before = _on_ranks(experiment, system, stop, num_ranks=system.num_ranks)
        go_on = Phase(load_from=Path(folder))
        after = _on_ranks(experiment, system, go_on, num_ranks=system.restart.num_ranks)
    say(
        f"{system.name}: {system.num_ranks} ranks saved {before[0].use.rows} rows after "
        f"{experiment.examples_after(system.restart.at)} examples and ended; {system.restart.num_ranks} others loaded "
        "them and went on"
    )
    return [_merged_result(*parts) for parts in zip(before, after, strict=True)]


def train_phase(
    group: dist.ProcessGroup | None, log: Log, experiment: Experiment, system: System, phase: Phase
) -> list[PhaseResult]:
    """Runs one phase for all seeds; returns one result per seed, equal on all ranks. Collective."""
    return [_train_seed(group, log, experiment, system, phase, seed) for seed in experiment.seeds]


def _on_ranks(experiment: Experiment, system: System, phase: Phase, *, num_ranks: int) -> list[PhaseResult]:
    work = partial(_read_and_train, experiment=experiment, system=system, phase=phase)
    return run_ranks(work, num_ranks=num_ranks, timeout_s=experiment.timeout_s, backend="headway")


def _read_and_train(
    rank: int, send: object, *, experiment: Experiment, system: System, phase: Phase
) -> list[PhaseResult]:
    log = read_log(experiment.data, max_history=experiment.history)
    return train_phase(all_ranks(), log, experiment, system, phase)


def _train_seed(
    group: dist.ProcessGroup | None, log: Log, experiment: Experiment, system: System, phase: Phase, seed: int
) -> PhaseResult:
    settings = replace(experiment.settings, tables=replace(experiment.settings.tables, seed=seed))
    start = time.perf_counter()
    is_async = system.servers is not None and system.servers.mode == "async"
    dense = DenseModel.of(log, settings) if is_async else None
    with open_tables(log, system, settings.tables, group, dense) as tables:
        trainer = Trainer(log, tables, settings, num_train=experiment.num_train, group=group, dense=dense)
        if phase.load_from is not None:
            checkpoint.load(_of_seed(phase.load_from, seed), trainer, _restartable(tables))
        rows = _train_and_count_rows(trainer, tables, experiment, phase)
        if phase.save_to is not None:
            checkpoint.save(_of_seed(phase.save_to, seed), trainer, _restartable(tables), group)
        train_s = time.perf_counter() - start
        quality = None if phase.end < 1.0 else evaluate(log, trainer.predict(experiment.num_train, log.num_examples))
        return PhaseResult(rows=tuple(rows), use=tables.use(), train_s=train_s, quality=quality)


@contextmanager
def open_tables(
    log: Log,
    system: System,
    settings: TableSettings,
    group: dist.ProcessGroup | None,
    dense: DenseModel | None = None,
) -> Iterator[Tables]:
    """Yields the tables of a system. Parameter servers, if it has any, end afterwards. Collective."""
    if system.servers is None:
        yield make_tables(log, system, settings, group)
        return
    with local_servers(system.servers.count, group) as addresses:
        yield ServedTables(
            log.features,
            settings,
            system.servers,
            addresses,
            limits=system.limits,
            group=group,
            dense=None if dense is None else dense.optimizer,
        )


def make_tables(log: Log, system: System, settings: TableSettings, group: dist.ProcessGroup | None) -> Tables:
    """Creates the tables of a system for the features of the log, shared by the ranks of the group."""
    if system.kind == "static":
        return StaticTables(log.features, log.table_ids(), settings)
    return DynamicTables(log.features, settings, limits=system.limits, group=group)


def _train_and_count_rows(trainer: Trainer, tables: Tables, experiment: Experiment, phase: Phase) -> list[int]:
    """Trains to the end of the phase; returns the number of table rows at each count that lies in it."""
    # In a short training a count may be due at 0 examples: it belongs to the first phase.
    begin = -1 if phase.load_from is None else trainer.num_seen
    end = experiment.examples_after(phase.end)
    rows = []
    for stop in (experiment.examples_after(count / NUM_ROW_COUNTS) for count in range(1, NUM_ROW_COUNTS + 1)):
        if begin < stop <= end:
            trainer.train_until(stop)
            rows.append(tables.use().rows)
    trainer.train_until(end)
    return rows


def _restartable(tables: Tables) -> DynamicTables:
    assert isinstance(tables, DynamicTables), "a system with static tables has no restart"
    return tables


def _of_seed(folder: Path, seed: int) -> Path:
    return folder / f"seed_{seed}"


def _merged_result(before: PhaseResult, after: PhaseResult) -> PhaseResult:
    """Joins the results of two consecutive phases. Tables count evictions and refusals anew after a restart."""
    use = replace(
        after.use, evicted=before.use.evicted + after.use.evicted, refused=before.use.refused + after.use.refused
    )
    return PhaseResult(
        rows=before.rows + after.rows, use=use, train_s=before.train_s + after.train_s, quality=after.quality
    )
