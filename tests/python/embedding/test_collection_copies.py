# SPDX-License-Identifier: Apache-2.0
"""Deep copies of collections, such as for an average of weights or a teacher."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from headway.embedding import Adam, Eviction, HashTableCollection
from rank_processes import run_ranks
from table_cases import make_batch, make_tables, records_of, train


def expect_same_records(ours: HashTableCollection, theirs: HashTableCollection) -> None:
    for own, other in zip(records_of(ours), records_of(theirs), strict=True):
        for column, expected in zip(own, other, strict=True):
            assert (column == expected).all()


def copy_and_train(rank: int, limits: dict[str, Any]) -> None:
    tables = make_tables(Adam(lr=0.1), limits, process_group=dist.group.WORLD)
    train(tables, range(4), rank)
    tables.optimizer.param_groups[0]["lr"] = 0.05
    model = torch.nn.Sequential(tables, torch.nn.Linear(2, 2)).eval()
    twin = copy.deepcopy(model)[0]
    assert isinstance(twin, HashTableCollection) and not twin.training and twin.step == tables.step
    assert twin.process_group is tables.process_group
    assert [group["lr"] for group in twin.optimizer.param_groups] == [
        group["lr"] for group in tables.optimizer.param_groups
    ]
    expect_same_records(twin, tables)
    assert [each.size()["pending"] for each in twin.tables] == [each.size()["pending"] for each in tables.tables]
    before = records_of(twin)
    train(tables.train(), range(4, 7), rank)
    for own, expected in zip(records_of(twin), before, strict=True):
        assert all((a == b).all() for a, b in zip(own, expected, strict=True)), "the copy is its own"
    train(twin.train(), range(4, 7), rank)
    expect_same_records(twin, tables)


@pytest.mark.parametrize(
    ("size", "limits"),
    [
        (1, {"hot_count": 4, "min_count": 2}),
        (2, {"max_rows": 60, "eviction": Eviction(policy="lfu"), "min_count": 2}),
    ],
)
def test_a_copy_has_all_that_the_collection_has_and_learns_as_it_would(size: int, limits: dict[str, Any]) -> None:
    run_ranks(copy_and_train, size, limits)


def test_a_copy_has_no_gradients_that_wait_for_a_step() -> None:
    tables = make_tables(Adam(lr=0.1))
    sum(embeddings.sum() for embeddings in tables(make_batch(1)).values()).backward()
    twin = copy.deepcopy(tables)
    before = records_of(twin)
    twin.optimizer.step()
    for own, expected in zip(records_of(twin), before, strict=True):  # Column 4: embeddings.
        assert (own[4] == expected[4]).all()
    tables.optimizer.step()
    assert any((a[4] != b[4]).any() for a, b in zip(records_of(tables), before, strict=True))
