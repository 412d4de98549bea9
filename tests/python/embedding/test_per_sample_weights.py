# SPDX-License-Identifier: Apache-2.0
"""Per-id weights get the gradients that torch.nn.functional.embedding_bag computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from headway.embedding import LOCAL, HashTableCollection
from headway.embedding.merging import table_ids_of
from rank_processes import BACKENDS, run_ranks
from table_cases import POOLING, TABLE_OF, Batch, make_batch, make_tables, real_loss, records_of, same

#: Duplicates are removed before the exchange (first), at the owner rank (second), at both or nowhere.
DEDUPS = ["none", "first", "second", "both"]
WEIGHTED = ["user", "item", "tags"]


def weighted_batch(seed: int, dtype: torch.dtype = torch.float32) -> Batch:
    """Makes a batch in which features of all poolings have weights that require gradients, and one has no weights."""
    batch = make_batch(seed)
    generator = torch.Generator().manual_seed(seed)
    for name in WEIGHTED:
        ids, lengths, *_ = batch[name]
        batch[name] = (ids, lengths, torch.randn(len(ids), generator=generator).to(dtype).requires_grad_())
    return batch


def gradients_of(tables: HashTableCollection, batch: Batch) -> list[torch.Tensor]:
    """Returns the gradients of the weights, and drops those of the tables."""
    result = torch.autograd.grad(real_loss(tables(batch)), [batch[name][2] for name in WEIGHTED])
    tables.optimizer.zero_grad()
    return list(result)


def expected_gradients(tables: HashTableCollection, batch: Batch) -> list[torch.Tensor]:
    """Computes the gradients by embedding_bag over the embeddings in the tables."""
    ids, table_ids, _, _, embeddings, _ = records_of(tables)[0]  # The tables of all weighted features are merged.
    outputs = {}
    for name in WEIGHTED:
        mine = table_ids == table_ids_of([TABLE_OF[name]]).item()
        row_of = {int(each): row for row, each in enumerate(ids[mine])}
        rows = torch.tensor([row_of[int(each)] for each in batch[name][0]])
        lengths = torch.ones_like(rows) if POOLING[name] is None else batch[name][1]
        bags = torch.nn.functional.embedding_bag(
            rows,
            torch.from_numpy(embeddings[mine]),
            lengths.cumsum(0) - lengths,
            mode="sum",
            per_sample_weights=batch[name][2],
        )
        outputs[name] = bags / lengths.clamp(min=1).unsqueeze(1) if POOLING[name] == "mean" else bags
    return list(torch.autograd.grad(real_loss(outputs), [batch[name][2] for name in WEIGHTED]))


@pytest.mark.parametrize("dedup", DEDUPS)
def test_gradients_are_those_of_embedding_bag(dedup: str) -> None:
    tables = make_tables(dedup=dedup)
    for seed in range(3):
        batch = weighted_batch(seed)
        found = gradients_of(tables, batch)
        torch.testing.assert_close(found, expected_gradients(tables, batch), rtol=1e-5, atol=1e-5)
        real_loss(tables(batch)).backward()
        tables.optimizer.step()


def test_gradients_are_the_slope_of_the_loss() -> None:
    tables, batch = make_tables().eval(), weighted_batch(7)
    for name, gradient in zip(WEIGHTED, gradients_of(tables, batch), strict=True):
        direction = torch.randn(len(gradient), generator=torch.Generator().manual_seed(1))
        losses = []
        for step in (-0.01, 0.01):
            ids, lengths, weights = batch[name]
            moved = {**batch, name: (ids, lengths, (weights + step * direction).detach())}
            losses.append(real_loss(tables(moved)).item())
        # The loss is quadratic in the weights, so the central difference is exact.
        assert (losses[1] - losses[0]) / 0.02 == pytest.approx(float(gradient @ direction), rel=5e-3)


def differ_from_one_rank(rank: int) -> list[float]:
    """Returns the largest difference between the gradients of several ranks and of one, for each ``dedup``."""
    batch = weighted_batch(rank)
    alone = gradients_of(make_tables(process_group=LOCAL), batch)
    result = []
    for dedup in DEDUPS:
        found = gradients_of(make_tables(dedup=dedup, process_group=dist.group.WORLD), batch)
        result.append(max(float((one - other).abs().max()) for one, other in zip(found, alone, strict=True)))
    return result


@pytest.mark.parametrize("backend", BACKENDS)
def test_ranks_have_the_gradients_of_one_rank(backend: str) -> None:
    for differences in run_ranks(differ_from_one_rank, 3, backend=backend):
        assert max(differences) < 1e-5


def learn_from_one_rank_alone(rank: int) -> Any:
    """Trains with weights that require gradients on rank 0 only."""
    tables, batch = make_tables(process_group=dist.group.WORLD), weighted_batch(rank)
    if rank == 1:
        batch = {name: tuple(column.detach() for column in columns) for name, columns in batch.items()}
    real_loss(tables(batch)).backward()
    return None if rank == 1 else float(batch["user"][2].grad.abs().max())


def test_ranks_need_not_agree_on_whose_weights_want_gradients() -> None:
    assert run_ranks(learn_from_one_rank_alone, 2)[0] > 0


def test_rows_that_have_learned_since_do_not_matter() -> None:
    tables, batch = make_tables(), weighted_batch(3)
    expected = gradients_of(tables, batch)
    held = tables(batch)
    real_loss(tables(batch)).backward()
    tables.optimizer.step()
    found = torch.autograd.grad(real_loss(held), [batch[name][2] for name in WEIGHTED])
    torch.testing.assert_close(list(found), expected, rtol=0, atol=0)


def test_tables_learn_the_same_whether_weights_do_or_not() -> None:
    ours, theirs = make_tables(), make_tables()
    for seed in range(3):
        batch = weighted_batch(seed)
        plain = {name: tuple(column.detach() for column in columns) for name, columns in batch.items()}
        for tables, each in ((ours, batch), (theirs, plain)):
            real_loss(tables(each)).backward()
            tables.optimizer.step()
    assert same(records_of(ours), records_of(theirs))


def test_losses_may_depend_on_some_features_alone() -> None:
    tables, batch = make_tables(), weighted_batch(2)
    tables(batch)["tags"].sum().backward()
    assert batch["user"][2].grad is None
    assert batch["tags"][2].grad.abs().max() > 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_gradients_have_the_type_of_the_weights(dtype: torch.dtype) -> None:
    tables, batch = make_tables(), weighted_batch(4, dtype)
    assert {gradient.dtype for gradient in gradients_of(tables, batch)} == {dtype}


def test_weights_may_be_computed_and_shared() -> None:
    """One weight per position in a list, shared by two features."""
    tables, batch = make_tables(), weighted_batch(5)
    of_position = torch.linspace(1, 2, 5, requires_grad=True)
    for name in ("user", "item"):
        ids, lengths, _ = batch[name]
        positions = torch.cat([torch.arange(int(length)) for length in lengths])
        batch[name] = (ids, lengths, of_position[positions])
    real_loss(tables(batch)).backward()
    expected = torch.zeros(5)
    for name, gradient in zip(WEIGHTED[:2], expected_gradients(tables, batch), strict=False):
        positions = torch.cat([torch.arange(int(length)) for length in batch[name][1]])
        expected.index_add_(0, positions, gradient)
    torch.testing.assert_close(of_position.grad, expected, rtol=1e-5, atol=1e-5)


def test_weights_of_a_keyed_jagged_tensor_get_theirs() -> None:
    jagged_tensor = pytest.importorskip("torchrec.sparse.jagged_tensor")
    tables, batch = make_tables(), weighted_batch(6)
    batch["city"] = (*batch["city"], torch.ones(len(batch["city"][0])))
    weights = torch.cat([batch[name][2].detach() for name in POOLING]).requires_grad_()
    keyed = jagged_tensor.KeyedJaggedTensor(
        keys=list(POOLING),
        values=torch.cat([batch[name][0] for name in POOLING]),
        lengths=torch.cat([batch[name][1] for name in POOLING]),
        weights=weights,
    )
    (found,) = torch.autograd.grad(real_loss(tables(keyed)), [weights])
    expected = dict(zip(WEIGHTED, gradients_of(tables, batch), strict=True))
    for name, gradient in zip(POOLING, found.split([len(batch[name][0]) for name in POOLING]), strict=True):
        if name in expected:
            torch.testing.assert_close(gradient, expected[name], rtol=0, atol=0)


def test_second_derivatives_are_an_error() -> None:
    tables, batch = make_tables(), weighted_batch(6)
    weights = batch["tags"][2]
    (first,) = torch.autograd.grad(real_loss(tables(batch)).square(), [weights], create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        first.sum().backward()
