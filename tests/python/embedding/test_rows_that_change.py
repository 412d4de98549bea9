# SPDX-License-Identifier: Apache-2.0
"""Rows that are evicted, moved or replaced between a lookup and the use of its embeddings or gradients.

The rows of the last step are not evicted (``lookahead`` is 1 by default). A row is cold (bfloat16) until its lookups
reach ``hot_count``, and is then promoted to float32.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from headway.embedding import Eviction, HashTableCollection
from table_cases import look_up, make_one, vectors_of


def test_rows_of_the_step_before_are_not_evicted() -> None:
    tables = make_one(max_rows=4, eviction=Eviction(policy="lru"))
    look_up(tables, 1, 2, 3)
    tables.optimizer.step()
    look_up(tables, 4, 5, 6)  # Two of the three ids get no row.
    assert tables.statistics()["tables"]["t"]["refused"] == 2
    tables.optimizer.step()
    look_up(tables, 7, 8)
    assert tables.statistics()["tables"]["t"]["refused"] == 2
    assert tables.statistics()["tables"]["t"]["evicted"] > 0


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_gradients_of_rows_that_others_have_by_now_are_counted_and_not_applied(mode: str) -> None:
    tables = make_one(max_rows=4, eviction=Eviction(policy="lru"))
    look_up(tables, 1, 2)
    held = look_up(tables.train(mode == "train"), 1, 2)
    tables.train()
    for step in range(4):
        look_up(tables, *range(10 * step + 10, 10 * step + 14))
        tables.optimizer.step()
    held.sum().backward()
    tables.optimizer.step()
    assert set(vectors_of(tables).values()) == {0.0}
    assert tables.statistics()["tables"]["t"]["dropped_gradients"] == 2


def test_rows_that_became_hot_meanwhile_get_their_gradients() -> None:
    tables = make_one(hot_count=2)
    held = look_up(tables, 1)
    tables.optimizer.step()
    look_up(tables, 1)  # Moves the row from bfloat16 to float32 storage.
    assert tables.statistics()["tables"]["t"]["promoted"] == 1
    held.sum().backward()
    tables.optimizer.step()
    assert vectors_of(tables) == {1: -1.0}


def test_gradients_of_a_lookup_before_load_find_their_keys(tmp_path: Path) -> None:
    tables = make_one()
    look_up(tables, 5, 6, 7).sum().backward()
    tables.optimizer.step()
    tables.save(tmp_path)
    other = make_one()
    held = look_up(other, 100, 7)
    other.load(tmp_path)
    held.sum().backward()
    other.optimizer.step()
    assert vectors_of(other) == {5: -1.0, 6: -1.0, 7: -2.0}
    assert other.step == 2


def promote(tables: HashTableCollection, folder: Path) -> None:
    tables.optimizer.step()
    look_up(tables, 1)
    assert tables.statistics()["tables"]["t"]["promoted"] == 1


def evict(tables: HashTableCollection, folder: Path) -> None:
    tables.optimizer.step()
    tables.optimizer.step()
    assert tables.tables[0].evict(0) == 1  # Keeps 0 rows, so the only one is removed.
    look_up(tables, 5)  # Takes the row of the evicted id.


def load(tables: HashTableCollection, folder: Path) -> None:
    tables.save(folder)
    tables.load(folder)


@pytest.mark.parametrize("change", [promote, evict, load])
def test_embeddings_stay_those_of_their_lookup_when_rows_change(
    tmp_path: Path, change: Callable[[HashTableCollection, Path], None]
) -> None:
    tables = make_one(hot_count=2, max_rows=4, eviction=Eviction(policy="lru"))
    ids = {"f": (torch.tensor([1]), torch.tensor([1]))}
    batch = tables.begin(ids)
    first = tables(batch)["f"]
    change(tables, tmp_path)
    assert first.tolist() == [[0.0, 0.0]]
    assert torch.equal(tables(batch)["f"], tables(ids)["f"]), "the batch again is a lookup in the rows of now"


def test_a_batch_that_began_before_load_is_looked_up_in_the_tables_that_were_loaded(tmp_path: Path) -> None:
    tables = make_one()
    look_up(tables, 7).sum().backward()
    tables.optimizer.step()
    tables.save(tmp_path)
    other = make_one()
    pending = other.begin({"f": (torch.tensor([7, 8]), torch.tensor([1, 1]))})
    other.load(tmp_path)
    found = other(pending)["f"]
    assert found[:, 0].tolist() == [-1.0, 0.0]
    found.sum().backward()
    other.optimizer.step()
    assert vectors_of(other) == {7: -2.0, 8: -1.0}
