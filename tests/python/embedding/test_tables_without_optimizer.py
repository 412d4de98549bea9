# SPDX-License-Identifier: Apache-2.0
"""Tables without an optimizer load only the embeddings of a checkpoint, which may have any optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from headway.embedding import (
    Adam,
    CheckpointError,
    HashTableCollection,
    NoOptimizer,
    Optimizer,
    RowWiseAdagrad,
    Sgd,
    TableConfig,
)
from rank_processes import run_ranks
from table_cases import integer_loss, make_batch, make_tables, records_of, train


def outputs(tables: HashTableCollection) -> dict[str, torch.Tensor]:
    tables.eval()
    return {name: value.detach() for name, value in tables(make_batch(1)).items()}


def expect_same(ours: HashTableCollection, theirs: HashTableCollection) -> None:
    torch.testing.assert_close(outputs(ours), outputs(theirs), rtol=0, atol=0)
    assert all(len(ours.rows(name)[0]) == len(theirs.rows(name)[0]) > 0 for name in ("users", "items", "cities"))


def serve(rank: int, folder: str) -> None:
    group = dist.group.WORLD
    trained = make_tables(Adam(lr=0.1), {"hot_count": 2}, process_group=group)
    train(trained, range(3), rank)
    trained.save(f"{folder}/own")
    dcp.save(trained.state_dict(), checkpoint_id=f"{folder}/dcp")
    served: list[Any] = [make_tables(NoOptimizer(), {"hot_count": 2}, process_group=group) for _ in range(3)]
    served[0].load(f"{folder}/own")
    state = served[1].state_dict()
    dcp.load(state, checkpoint_id=f"{folder}/dcp")
    served[1].load_state_dict(state)
    served[2].load_state_dict(trained.state_dict())
    for tables in served:
        expect_same(tables, trained)


@pytest.mark.parametrize("size", [1, 2])
def test_embeddings_are_loaded_without_the_state_of_their_optimizer(size: int, tmp_path: Path) -> None:
    run_ranks(serve, size, str(tmp_path))


def test_no_optimizer_is_the_default_and_cannot_learn() -> None:
    assert TableConfig("t", dim=2).optimizer == NoOptimizer()
    tables = make_tables(NoOptimizer())
    batch = make_batch(0)
    integer_loss(tables(batch), batch).backward()
    with pytest.raises(RuntimeError, match=r"table users\+items has gradients but no optimizer"):
        tables.optimizer.step()
    assert tables.step == 0


def test_a_table_that_learns_does_not_begin_without_the_state_of_its_optimizer(tmp_path: Path) -> None:
    train_and_save = make_tables(Adam(lr=0.1))
    train(train_and_save, range(2))
    served = make_tables(NoOptimizer())
    served.load_state_dict(train_and_save.state_dict())
    served.save(tmp_path)
    with pytest.raises(CheckpointError, match="has optimizer NoOptimizer, not RowWiseAdagrad"):
        make_tables(RowWiseAdagrad(lr=0.1)).load(tmp_path)


@pytest.mark.parametrize(
    "optimizer", [Sgd(lr=0.1), RowWiseAdagrad(lr=0.1, initial_accumulator_value=0.5), Adam(lr=0.1)]
)
def test_a_table_that_learns_takes_the_embeddings_alone_if_asked_to(optimizer: Optimizer, tmp_path: Path) -> None:
    trained = make_tables(Adam(lr=0.1))
    train(trained, range(2))
    trained.save(tmp_path)
    tables = make_tables(optimizer)
    tables.load(tmp_path, embeddings_only=True)
    expect_same(tables, trained)
    assert tables.step == trained.step
    initial = 0.5 if isinstance(optimizer, RowWiseAdagrad) else 0.0
    for own, theirs in zip(records_of(tables), records_of(trained), strict=True):
        assert all((a == b).all() for a, b in zip(own[:5], theirs[:5], strict=True))
        assert (own[5] == initial).all()
    train(tables.train(), range(2, 4))


def test_the_refusal_of_another_optimizer_names_the_way_out(tmp_path: Path) -> None:
    make_tables(Adam(lr=0.1)).save(tmp_path)
    with pytest.raises(CheckpointError, match="optimizer Adam, not Sgd: load with embeddings_only=True"):
        make_tables(Sgd(lr=0.1)).load(tmp_path)
