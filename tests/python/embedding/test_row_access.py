# SPDX-License-Identifier: Apache-2.0
"""Rows of a table by id: listed, inserted, erased, and carried over to another table."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from headway.embedding import Adam, HashTableCollection, NoRoomError
from rank_processes import run_ranks
from table_cases import make_tables, train

IDS = torch.tensor([5, -9, 2**62, 77])
VECTORS = torch.arange(32, dtype=torch.float32).view(4, 8)


def found(tables: HashTableCollection, ids: torch.Tensor) -> torch.Tensor:
    """Looks up the embeddings of the table ``items`` without inserting. All ranks must call it."""
    batch = {name: (ids, torch.ones_like(ids)) for name in ("user", "item", "tags", "city")}
    tables.eval()
    embeddings = tables(batch)["item"].detach()
    tables.train()
    return embeddings


def access(rank: int) -> tuple[list[int], int]:
    tables = make_tables(Adam(lr=0.1), {"min_count": 3}, process_group=dist.group.WORLD)
    initial = found(tables, IDS)
    taken = tables.insert_rows("items", IDS, VECTORS)
    assert torch.equal(found(tables, IDS), VECTORS)
    ids, embeddings = tables.rows("items")
    assert len(ids) == taken
    for id, vector in zip(ids.tolist(), embeddings, strict=True):
        assert torch.equal(vector, VECTORS[IDS.tolist().index(id)])
    assert len(tables.rows("users")[0]) == len(tables.rows("cities")[0]) == 0, "merged tables are apart"
    tables.insert_rows("items", IDS[:1], VECTORS[1:2])
    assert torch.equal(found(tables, IDS[:1]), VECTORS[1:2])
    train(tables, range(2), rank)
    tables.erase_rows("items", torch.cat([IDS[:2], IDS[:1], torch.tensor([123456])]))
    assert torch.equal(found(tables, IDS[:2]), initial[:2]) and torch.equal(found(tables, IDS[2:]), VECTORS[2:])
    train(tables, range(2, 4), rank)
    return ids.tolist(), taken


@pytest.mark.parametrize("size", [1, 2])
def test_each_rank_has_and_takes_the_rows_that_it_owns(size: int) -> None:
    results = run_ranks(access, size)
    assert sorted(id for ids, _ in results for id in ids) == sorted(IDS.tolist())
    assert sum(taken for _, taken in results) == len(IDS)


def test_a_table_may_begin_with_the_rows_of_another_one() -> None:
    old, new = make_tables(Adam(lr=0.1)), make_tables(seed=5)
    train(old, range(3))
    ids, embeddings = old.rows("users")
    assert len(ids) > 10
    new.insert_rows("items", ids, embeddings)
    assert torch.equal(found(new, ids), embeddings)
    train(new, range(3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("itmes", IDS, VECTORS), "there is no table itmes; there are: users, items, cities"),
        (("cities", IDS, VECTORS), r"embeddings of 4 ids must be \(4, 4\) float32, not \(4, 8\)"),
        (("items", IDS, VECTORS.double()), "float32, not .* torch.float64"),
        (("items", IDS.int(), VECTORS), r"ids must be \(K,\) int64"),
        (("items", IDS[[0, 1, 2, 0]], VECTORS), "an id is there twice"),
    ],
)
def test_rows_that_do_not_fit_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    tables = make_tables()
    with pytest.raises(ValueError, match=message):
        tables.insert_rows(*arguments)
    assert all(len(tables.rows(name)[0]) == 0 for name in ("users", "items", "cities"))


def test_rows_without_room_are_told() -> None:
    tables = make_tables(table={"max_rows": 1})
    with pytest.raises(NoRoomError, match="ids got no row: table items is full"):
        tables.insert_rows("items", IDS, VECTORS)


def test_rows_are_listed_after_training() -> None:
    tables = make_tables()
    train(tables, range(3))
    ids, embeddings = tables.rows("items")
    assert torch.equal(found(tables, ids), embeddings) and len(ids) == len(ids.unique()) > 10


def test_old_names_of_embeddings_work_for_one_release_and_warn() -> None:
    tables = make_tables(Adam(lr=0.1))
    with pytest.warns(DeprecationWarning, match=r"insert_rows\(vectors_KD=\) is deprecated.*use embeddings_KD="):
        assert tables.insert_rows("items", IDS, vectors_KD=VECTORS) == len(IDS)  # type: ignore[call-arg]
    records = tables.state_dict()["items.records"].read()
    with pytest.warns(DeprecationWarning, match="vectors_KD is deprecated.*use embeddings_KD"):
        assert records.vectors_KD is records.embeddings_KD
