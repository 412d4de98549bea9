# SPDX-License-Identifier: Apache-2.0
"""Ranks that share batches and tables train like one rank, also after a restart with another number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.distributed as dist
from headway.embedding import CheckpointError
from rank_processes import run_ranks

from dlrm_examples.streaming_ctr import checkpoint
from dlrm_examples.streaming_ctr.data.read_log import read_log
from dlrm_examples.streaming_ctr.dynamic_tables import DynamicTables
from dlrm_examples.streaming_ctr.evaluation import evaluate
from dlrm_examples.streaming_ctr.group import slice_of
from dlrm_examples.streaming_ctr.tables import TableLimits, TableSettings, TableUse
from dlrm_examples.streaming_ctr.trainer import Trainer, TrainerSettings
from dlrm_examples.support.data.log import Log
from dlrm_examples.support.data.log_format import DataError

NUM_TRAIN, HALF, NUM_TEST = 1000, 500, 120  # Examples.
LIMITS = TableLimits(min_count=2)  # Some ids wait for a row, even over a restart.
ALL_BUCKETS = (0, 1 << 14)  # All virtual buckets: ranges of key hashes, by which keys are divided among ranks.


class Learned(NamedTuple):
    logits: npt.NDArray[np.float32]  # Logits of the last NUM_TEST examples.
    records: list[npt.NDArray[np.generic]]  # Rows of this rank: ids, tables, counts, steps, embeddings, states.
    use: TableUse  # Use over all ranks.


@pytest.fixture(scope="module")
def log(kuairand_directory: Path) -> Log:
    return read_log(kuairand_directory, max_history=5)


def begin(log: Log, group: dist.ProcessGroup | None, *, batch_size: int = 50) -> tuple[Trainer, DynamicTables]:
    settings = TrainerSettings(tables=TableSettings(dim=4, seed=1), batch_size=batch_size, hidden=(8,))
    tables = DynamicTables(log.features, settings.tables, limits=LIMITS, group=group)
    return Trainer(log, tables, settings, num_train=NUM_TRAIN, group=group), tables


def what_was_learned(log: Log, trainer: Trainer, tables: DynamicTables) -> Learned:
    (table,) = tables.collection.tables
    keys = table.list(*ALL_BUCKETS)
    assert keys.tables is not None
    records = [column.numpy().copy() for column in (keys.ids, keys.tables, *table.export_records(keys))]
    return Learned(trainer.predict(log.num_examples - NUM_TEST, log.num_examples).numpy(), records, tables.use())


def train(rank: int, log: Log, num_seen: int, batch_size: int) -> Learned:
    trainer, tables = begin(log, dist.group.WORLD, batch_size=batch_size)
    trainer.train_until(num_seen)
    return what_was_learned(log, trainer, tables)


def train_and_save(rank: int, log: Log, folder: Path) -> None:
    trainer, tables = begin(log, dist.group.WORLD)
    trainer.train_until(HALF)
    checkpoint.save(folder, trainer, tables, dist.group.WORLD)


def load_and_go_on(rank: int, log: Log, folder: Path) -> Learned:
    trainer, tables = begin(log, dist.group.WORLD)
    checkpoint.load(folder, trainer, tables)
    assert trainer.num_seen == HALF
    trainer.train_until(NUM_TRAIN)
    return what_was_learned(log, trainer, tables)


def expect_what_one_rank_learns(log: Log, by_rank: Sequence[Learned], *, num_seen: int, batch_size: int = 50) -> None:
    trainer, tables = begin(log, None, batch_size=batch_size)
    trainer.train_until(num_seen)
    one = what_was_learned(log, trainer, tables)
    joined = [np.concatenate(columns) for columns in zip(*(rank.records for rank in by_rank), strict=True)]
    # Ids, tables, counts and steps are equal; embeddings and states may differ by rounding.
    for ours, theirs in zip(joined[:4], one.records[:4], strict=True):
        assert np.array_equal(ours, theirs)
    for ours, theirs in zip(joined[4:], one.records[4:], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)
    for learned in by_rank:
        assert np.array_equal(learned.logits, by_rank[0].logits)
        assert (learned.use.rows, learned.use.pending) == (one.use.rows, one.use.pending)
    np.testing.assert_allclose(by_rank[0].logits, one.logits, rtol=1e-3, atol=1e-4)
    ours_by_label, theirs_by_label = (evaluate(log, torch.from_numpy(each.logits)) for each in (by_rank[0], one))
    for label in log.label_names:
        assert ours_by_label[label].auc == pytest.approx(theirs_by_label[label].auc, abs=1e-3)


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_ranks_learn_what_one_rank_learns(log: Log, num_ranks: int) -> None:
    by_rank = run_ranks(train, num_ranks, log, NUM_TRAIN, 50)
    expect_what_one_rank_learns(log, by_rank, num_seen=NUM_TRAIN)


def test_a_rank_whose_slice_is_empty_takes_part(log: Log) -> None:
    by_rank = run_ranks(train, 3, log, 20, 2)
    expect_what_one_rank_learns(log, by_rank, num_seen=20, batch_size=2)


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1)])
def test_other_ranks_go_on_where_these_stopped(log: Log, tmp_path: Path, before: int, after: int) -> None:
    run_ranks(train_and_save, before, log, tmp_path)
    by_rank = run_ranks(load_and_go_on, after, log, tmp_path)
    expect_what_one_rank_learns(log, by_rank, num_seen=NUM_TRAIN)


def test_slices_are_a_partition() -> None:
    class Group:
        def __init__(self, rank: int) -> None:
            self.rank, self.size = (lambda: rank), (lambda: 3)

    slices = [slice_of(10, 18, Group(rank)) for rank in range(3)]  # type: ignore[arg-type]
    assert slices == [(10, 12), (12, 15), (15, 18)]
    assert slice_of(10, 18, None) == (10, 18)


def damage_dense(folder: Path) -> None:
    path = folder / "dense.pt"
    path.write_bytes(path.read_bytes()[:100])


def make_dense_older(folder: Path) -> None:
    state = torch.load(folder / "dense.pt", weights_only=True)
    torch.save({**state, "table_step": state["table_step"] - 1}, folder / "dense.pt")


@pytest.mark.parametrize(
    ("damage", "error", "reason"),
    [
        (lambda folder: (folder / "dense.pt").unlink(), DataError, "dense.pt"),
        (damage_dense, DataError, "dense.pt"),
        (make_dense_older, DataError, "is of step 9, the tables beside it of step 10"),
        (lambda folder: (folder / "tables" / "manifest.json").unlink(), CheckpointError, "manifest"),
    ],
)
def test_a_checkpoint_that_is_not_whole_is_an_error_in_one_line(
    log: Log, tmp_path: Path, damage: object, error: type[Exception], reason: str
) -> None:
    trainer, tables = begin(log, None)
    trainer.train_until(HALF)
    checkpoint.save(tmp_path, trainer, tables, None)
    assert callable(damage)
    damage(tmp_path)
    with pytest.raises(error, match=reason) as raised:
        checkpoint.load(tmp_path, *begin(log, None))
    assert "\n" not in str(raised.value)
