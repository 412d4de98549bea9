"""Trains a system on its number of ranks, one run per seed, including a restart on other ranks."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch.distributed as dist

from dlrm_examples.dynamic_ctr import checkpoint
from dlrm_examples.dynamic_ctr.dynamic_tables import DynamicTables
from dlrm_examples.dynamic_ctr.evaluation import Quality, evaluate
from dlrm_examples.dynamic_ctr.experiment import Experiment, System
from dlrm_examples.dynamic_ctr.log import Log
from dlrm_examples.dynamic_ctr.rank_launch import run_ranks
from dlrm_examples.dynamic_ctr.read_log import read_log
from dlrm_examples.dynamic_ctr.static_tables import StaticTables
from dlrm_examples.dynamic_ctr.tables import Tables, TableSettings, TableUse
from dlrm_examples.dynamic_ctr.trainer import Trainer

NUM_LOOKS = 10
"""How often the rows are counted on the way."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Part of a training that one set of ranks runs: from a checkpoint or the start, to a checkpoint or the end."""

    end: float = 1.0  # share of the training after this part
    load_from: Path | None = None  # folder with one checkpoint per seed
    save_to: Path | None = None


@dataclass(frozen=True, kw_only=True)
class PartResult:
    """Result of a part, over all ranks.

    Attributes:
        rows: rows of the tables, after each ``NUM_LOOKS``-th of the training that lies in this part.
        use: contents of the tables at the end; evictions and refusals of this part only.
        train_s: duration in seconds.
        quality: quality by label; None unless the part ends the training.
    """

    rows: tuple[int, ...]
    use: TableUse
    train_s: float
    quality: dict[str, Quality] | None


def train_system(
    log: Log, experiment: Experiment, system: System, *, group: dist.ProcessGroup | None, say: Callable[[str], None]
) -> list[PartResult]:
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
        return train_part(group, log, experiment, system, Part())
    if system.restart is None:
        return _on_ranks(experiment, system, Part(), num_ranks=system.num_ranks)
    with tempfile.TemporaryDirectory() as folder:
        stop = Part(end=system.restart.at, save_to=Path(folder))
        before = _on_ranks(experiment, system, stop, num_ranks=system.num_ranks)
        go_on = Part(load_from=Path(folder))
        after = _on_ranks(experiment, system, go_on, num_ranks=system.restart.num_ranks)
    say(
        f"{system.name}: {system.num_ranks} ranks saved {before[0].use.rows} rows after "
        f"{experiment.examples_after(system.restart.at)} examples and ended; {system.restart.num_ranks} others loaded "
        "them and went on"
    )
    return [_joined(*parts) for parts in zip(before, after, strict=True)]


def train_part(
    group: dist.ProcessGroup | None, log: Log, experiment: Experiment, system: System, part: Part
) -> list[PartResult]:
    """Runs one part for all seeds; returns one result per seed, equal on all ranks. Collective."""
    return [_train_seed(group, log, experiment, system, part, seed) for seed in experiment.seeds]


def _on_ranks(experiment: Experiment, system: System, part: Part, *, num_ranks: int) -> list[PartResult]:
    work = partial(_read_and_train, experiment=experiment, system=system, part=part)
    return run_ranks(work, num_ranks=num_ranks, timeout_s=experiment.timeout_s)


def _read_and_train(
    group: dist.ProcessGroup, *, experiment: Experiment, system: System, part: Part
) -> list[PartResult]:
    log = read_log(experiment.data, max_history=experiment.history)
    return train_part(group, log, experiment, system, part)


def _train_seed(
    group: dist.ProcessGroup | None, log: Log, experiment: Experiment, system: System, part: Part, seed: int
) -> PartResult:
    settings = replace(experiment.settings, tables=replace(experiment.settings.tables, seed=seed))
    start = time.perf_counter()
    tables = make_tables(log, system, settings.tables, group)
    trainer = Trainer(log, tables, settings, num_train=experiment.num_train, group=group)
    if part.load_from is not None:
        checkpoint.load(_of_seed(part.load_from, seed), trainer, _restartable(tables))
    rows = _train_and_look(trainer, tables, experiment, part)
    if part.save_to is not None:
        checkpoint.save(_of_seed(part.save_to, seed), trainer, _restartable(tables), group)
    train_s = time.perf_counter() - start
    quality = None if part.end < 1.0 else evaluate(log, trainer.predict(experiment.num_train, log.num_examples))
    return PartResult(rows=tuple(rows), use=tables.use(), train_s=train_s, quality=quality)


def make_tables(log: Log, system: System, settings: TableSettings, group: dist.ProcessGroup | None) -> Tables:
    """Creates the tables of a system for the features of the log, shared by the ranks of the group."""
    if system.kind == "static":
        return StaticTables(log.features, log.table_ids(), settings)
    return DynamicTables(log.features, settings, limits=system.limits, group=group)


def _train_and_look(trainer: Trainer, tables: Tables, experiment: Experiment, part: Part) -> list[int]:
    """Trains to the end of the part; returns the number of rows after each ``NUM_LOOKS``-th in it."""
    begin = -1 if part.load_from is None else trainer.num_seen
    end = experiment.examples_after(part.end)
    rows = []
    for stop in (experiment.examples_after(look / NUM_LOOKS) for look in range(1, NUM_LOOKS + 1)):
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


def _joined(before: PartResult, after: PartResult) -> PartResult:
    """Joins the results of two consecutive parts. Tables restart their count of evictions and refusals at a restart."""
    use = replace(
        after.use, evicted=before.use.evicted + after.use.evicted, refused=before.use.refused + after.use.refused
    )
    return PartResult(
        rows=before.rows + after.rows, use=use, train_s=before.train_s + after.train_s, quality=after.quality
    )
