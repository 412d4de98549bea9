# SPDX-License-Identifier: Apache-2.0
"""Learning rates of single tables within merged ones."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from headway.embedding import Adam, Sgd
from rank_processes import run_ranks
from table_cases import make_batch, make_tables, real_loss

NAMES = ("users", "items", "cities")


def learn(rank: int, dedup: str, num_lookups: int) -> None:
    group = dist.group.WORLD
    optimizer = Adam(lr=0.25)
    ours = make_tables(optimizer, process_group=group, dedup=dedup)
    ours.optimizer.set_lr_factor("items", 0.5)
    theirs = [make_tables(optimizer, process_group=group, dedup=dedup) for _ in range(2)]
    for each in theirs[1].optimizer.param_groups:
        each["lr"] = 0.125
    for tables in (ours, *theirs):
        # One step: Adam's first step does not depend on what other tables have learned.
        batch = make_batch(rank)
        for _ in range(num_lookups):
            real_loss(tables(batch)).backward()
        tables.optimizer.step()
    for name in NAMES:
        expected = theirs[1 if name == "items" else 0]
        ids, embeddings = ours.rows(name)
        other_ids, other_vectors = expected.rows(name)
        assert torch.equal(ids, other_ids) and len(ids) > 3
        torch.testing.assert_close(embeddings, other_vectors)
    assert sum(each.statistics()["dropped_gradients"] for each in ours.tables) == 0


@pytest.mark.parametrize(("size", "dedup", "num_lookups"), [(1, "both", 1), (1, "none", 1), (2, "both", 2)])
def test_a_merged_table_learns_with_its_own_rate(size: int, dedup: str, num_lookups: int) -> None:
    run_ranks(learn, size, dedup, num_lookups)


def test_factors_are_in_the_state_by_the_names_of_tables() -> None:
    tables, others = make_tables(Sgd(lr=0.5)), make_tables(Sgd(lr=1.0))
    tables.optimizer.set_lr_factor("items", 0.25)
    others.optimizer.set_lr_factor("users", 3.0)
    state = copy.deepcopy(tables.optimizer.state_dict())
    others.optimizer.load_state_dict(state)
    assert others.optimizer.param_groups[0]["lr"] == 0.5
    assert others.optimizer.param_groups[0]["lr_factors"] == {"users": 1.0, "items": 0.25}
    for group in state["param_groups"]:
        del group["lr_factors"]  # Older states have none.
    others.optimizer.load_state_dict(state)
    assert others.optimizer.param_groups[0]["lr_factors"] == {"users": 1.0, "items": 1.0}


@pytest.mark.parametrize(("table", "factor"), [("itmes", 1.0), ("items", -1.0), ("items", float("nan"))])
def test_factors_that_do_not_fit_are_refused(table: str, factor: float) -> None:
    with pytest.raises(
        ValueError, match=r"no table itmes; there are: users|the factor of the learning rate of table items"
    ):
        make_tables().optimizer.set_lr_factor(table, factor)
