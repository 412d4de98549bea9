# SPDX-License-Identifier: Apache-2.0
"""The bytes that the benchmark computes from the ids of a batch are those that ranks really send.

``DEDUPS``: no deduplication, ``first`` (before the exchange of ids), ``second`` (after it, at the owner of a row), or
``both``. ``count_traffic`` returns means over ranks.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from headway.embedding import FeatureConfig, HashTableCollection, Sgd, TableConfig
from rank_processes import run_ranks

from benchmarks.dedup_traffic import DEDUPS, count_traffic, draw_batches

DIM, RANKS = 8, 3


def make_batches() -> list[torch.Tensor]:
    # Each rank draws 500 ids of 2,000, some of them several times.
    return draw_batches(num_ranks=RANKS, keys=500, num_ids=2_000, exponent=1.05, seed=4)


def send(rank: int) -> dict[str, Any]:
    ids = make_batches()[rank]
    result = {}
    for dedup in DEDUPS:
        tables = HashTableCollection(
            tables=[TableConfig("a", dim=DIM, optimizer=Sgd(lr=1))],
            features=[FeatureConfig("f", table="a", pooling=None)],
            process_group=dist.group.WORLD,
            dedup=dedup,
        )
        tables({"f": (ids, torch.tensor([len(ids)]))})["f"].sum().backward()
        result[dedup] = tables.statistics()["traffic"]
    return result


def test_the_counts_are_those_of_ranks() -> None:
    by_rank = run_ranks(send, RANKS)
    for dedup in DEDUPS:
        counted = count_traffic(make_batches(), dim=DIM, dedup=dedup, table="a")
        for name, value in [
            ("id_bytes", counted.id_bytes),
            ("vector_bytes", counted.vector_bytes),
            ("gradient_bytes", counted.vector_bytes),
            ("keys_found", counted.lookups),
        ]:
            assert sum(rank[dedup][name] for rank in by_rank) == pytest.approx(value * RANKS), (dedup, name)


def test_duplicates_make_the_difference() -> None:
    none, first, second, both = (count_traffic(make_batches(), dim=DIM, dedup=dedup) for dedup in DEDUPS)
    assert none.id_bytes == second.id_bytes > first.id_bytes == both.id_bytes
    assert none.lookups > first.lookups > second.lookups == both.lookups
    with pytest.raises(ValueError, match="dedup must be one of"):
        count_traffic(make_batches(), dim=DIM, dedup="twice")
