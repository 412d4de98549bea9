# SPDX-License-Identifier: Apache-2.0
"""Embeddings of ids without a row in evaluation mode."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from headway.embedding import HashTableCollection, Sgd, TableConfig
from rank_processes import run_ranks
from table_cases import make_batch, make_tables, train

KNOWN, UNKNOWN = torch.tensor([7, 8]), torch.tensor([1 << 60, -5, 1 << 60])


def look_up(tables: HashTableCollection, ids: torch.Tensor, lengths: list[int]) -> dict[str, torch.Tensor]:
    batch = {name: (ids, torch.tensor(lengths)) for name in ("item", "tags", "city")}
    return tables({**batch, "user": (ids, torch.tensor(lengths), torch.full((len(ids),), 3.0))})


def evaluate(rank: int, dedup: str) -> None:
    tables = make_tables(Sgd(lr=0.5), {"unknown": "zeros"}, process_group=dist.group.WORLD, dedup=dedup)
    in_training = look_up(tables, KNOWN, [1, 1])
    tables.eval()
    known = look_up(tables, KNOWN, [1, 1])
    for name, embeddings in known.items():
        assert torch.equal(embeddings, in_training[name]) and embeddings.ne(0).all()
    mixed = look_up(tables, torch.cat([UNKNOWN, KNOWN]), [3, 2])
    for name, embeddings in mixed.items():
        expected = known[name] if name == "item" else known[name].sum(0) / (2 if name == "tags" else 1)
        assert embeddings[: 3 if name == "item" else 1].eq(0).all()
        torch.testing.assert_close(embeddings[3:] if name == "item" else embeddings[1], expected)
    assert all(len(tables.rows(name)[0]) <= 2 for name in ("users", "items", "cities")), "nothing is inserted"
    tables.train()
    assert all(embeddings.ne(0).any() for embeddings in look_up(tables, UNKNOWN, [1, 2]).values())
    train(tables, range(1), rank)


@pytest.mark.parametrize(("size", "dedup"), [(1, "both"), (1, "second"), (1, "none"), (2, "both"), (2, "first")])
def test_ids_without_a_row_add_nothing_in_an_evaluation(size: int, dedup: str) -> None:
    run_ranks(evaluate, size, dedup)


def test_per_sample_weights_of_unknown_ids_get_no_gradient() -> None:
    tables = make_tables(Sgd(lr=0.5), {"unknown": "zeros"}).eval()
    weights = torch.ones(3, requires_grad=True)
    batch = {name: (UNKNOWN, torch.tensor([3])) for name in ("item", "tags", "city")}
    tables({**batch, "user": (UNKNOWN, torch.tensor([3]), weights)})["user"].sum().backward()
    assert weights.grad is not None and weights.grad.eq(0).all()


def test_unknown_ids_have_their_initial_vector_by_default() -> None:
    tables = make_tables().eval()
    batch = make_batch(3)
    evaluated = tables(batch)
    tables.train()
    for name, embeddings in tables(batch).items():
        assert torch.equal(embeddings, evaluated[name])


def test_another_default_is_refused() -> None:
    with pytest.raises(ValueError, match="table t: unknown must be initial or zeros, not 'ones'"):
        TableConfig("t", dim=2, unknown="ones")  # type: ignore[arg-type]
