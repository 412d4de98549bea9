# SPDX-License-Identifier: Apache-2.0
"""Activation checkpointing repeats a lookup in the backward pass. It gives the same embeddings and counts nothing."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist
from headway.embedding import Adam, Eviction, HashTableCollection, Sgd
from rank_processes import run_ranks
from table_cases import Batch, integer_loss, make_batch, make_tables, records_of
from torch.utils.checkpoint import checkpoint

#: Settings under which counting a lookup twice changes the tables.
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "admission": {"min_count": 3},
    "hot rows": {"hot_count": 3},
    "full": {"max_rows": 12},
    "eviction": {"max_rows": 20, "eviction": Eviction(policy="lfu")},
}


def loss_of(tables: HashTableCollection, batch: Batch, kind: str, scale: torch.Tensor) -> torch.Tensor:
    """Computes the loss directly (``none``), or inside a checkpoint with or without the start of the lookup."""
    if kind == "none":
        return integer_loss(tables(batch), batch) * scale
    if kind == "begun":
        begun = tables.begin(batch)
        return checkpoint(lambda s: integer_loss(tables(begun), batch) * s, scale, use_reentrant=False)
    return checkpoint(lambda s: integer_loss(tables(batch), batch) * s, scale, use_reentrant=kind == "reentrant")


def train(settings: str, kind: str, **more: Any) -> tuple[Any, Any]:
    tables = make_tables(Sgd(lr=2**-6), SETTINGS[settings], **more)
    rank = tables.rank
    for step in range(4):
        scale = torch.ones((), requires_grad=True)
        loss_of(tables, make_batch(10 * step + rank), kind, scale).backward()
        tables.optimizer.step()
    statistics = tables.statistics()["tables"]
    return records_of(tables), {name: statistics[name] for name in statistics}


def expect_equal(ours: list[Any], theirs: list[Any]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        for column, expected in zip(one, other, strict=True):
            assert numpy.array_equal(column, expected)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", ["not reentrant", "reentrant", "begun"])
def test_tables_are_those_without_checkpointing(settings: str, kind: str) -> None:
    records, statistics = train(settings, kind)
    expected, expected_statistics = train(settings, "none")
    expect_equal(records, expected)
    assert statistics == expected_statistics


def train_on_ranks(rank: int, kind: str) -> Any:
    return train("admission", kind, process_group=dist.group.WORLD)


def test_ranks_have_the_tables_without_checkpointing() -> None:
    ours, theirs = run_ranks(train_on_ranks, 2, "not reentrant"), run_ranks(train_on_ranks, 2, "none")
    for (records, statistics), (expected, expected_statistics) in zip(ours, theirs, strict=True):
        expect_equal(records, expected)
        assert statistics == expected_statistics


def test_the_next_lookup_is_counted_again() -> None:
    tables = make_tables(Adam(lr=0.1))
    batch = make_batch(1)
    for _ in range(3):
        scale = torch.ones((), requires_grad=True)
        loss_of(tables, batch, "not reentrant", scale).backward()
        tables.optimizer.step()
    once = make_tables(Adam(lr=0.1))
    once(batch)
    for found, first in zip(records_of(tables), records_of(once), strict=True):  # Column 2: lookup counts.
        assert numpy.array_equal(found[2], 3 * first[2])
