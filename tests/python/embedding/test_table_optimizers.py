# SPDX-License-Identifier: Apache-2.0
"""Rows are updated by the formulas of torch.optim."""

from __future__ import annotations

import pytest
import torch
from headway.embedding import (
    Adagrad,
    Adam,
    FeatureConfig,
    HashTableCollection,
    Optimizer,
    RowWiseAdagrad,
    RowWiseAdam,
    Sgd,
    TableConfig,
    Uniform,
)

IDS = torch.tensor([7, -3, 1 << 62, 0, 12, 5])
DIM = 6


def make_tables(optimizer: Optimizer) -> HashTableCollection:
    return HashTableCollection(
        tables=[TableConfig("t", dim=DIM, optimizer=optimizer, initializer=Uniform(-1, 1))],
        features=[FeatureConfig("f", table="t", pooling=None)],
        seed=5,
    )


def look_up(tables: HashTableCollection, ids: torch.Tensor = IDS) -> torch.Tensor:
    return tables({"f": (ids, torch.tensor([len(ids)]))})["f"]


def loss_of(embeddings: torch.Tensor, step: int) -> torch.Tensor:
    """Returns a loss whose gradients differ by row, column and step."""
    target = torch.sin(torch.arange(embeddings.numel()).view_as(embeddings) + step)
    return ((embeddings - target) ** 2 * (1 + torch.arange(embeddings.size(1)))).sum()


TORCH_OPTIMIZERS = {
    "sgd": (Sgd(lr=0.01), lambda p: torch.optim.SGD(p, lr=0.01)),
    "sgd_decay": (Sgd(lr=0.01, weight_decay=0.1), lambda p: torch.optim.SGD(p, lr=0.01, weight_decay=0.1)),
    "adagrad": (Adagrad(lr=0.05), lambda p: torch.optim.Adagrad(p, lr=0.05)),
    "adagrad_decay": (
        Adagrad(lr=0.05, weight_decay=0.1, eps=1e-6, initial_accumulator_value=0.3),
        lambda p: torch.optim.Adagrad(p, lr=0.05, weight_decay=0.1, eps=1e-6, initial_accumulator_value=0.3),
    ),
    "adam": (Adam(lr=0.02), lambda p: torch.optim.Adam(p, lr=0.02)),
    "adam_decay": (
        Adam(lr=0.02, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1),
        lambda p: torch.optim.Adam(p, lr=0.02, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1),
    ),
    "adamw": (
        Adam(lr=0.02, weight_decay=0.1, decoupled_weight_decay=True),
        lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0.1),
    ),
}


@pytest.mark.parametrize("name", TORCH_OPTIMIZERS)
def test_rows_that_are_always_used_are_those_of_torch(name: str) -> None:
    ours, make_theirs = TORCH_OPTIMIZERS[name]
    tables = make_tables(ours)
    weight = torch.nn.Parameter(look_up(tables).detach().clone())
    theirs = make_theirs([weight])
    schedulers = [torch.optim.lr_scheduler.StepLR(each, step_size=7, gamma=0.5) for each in (tables.optimizer, theirs)]
    for step in range(20):
        loss_of(look_up(tables), step).backward()
        tables.optimizer.step()
        theirs.zero_grad()
        loss_of(weight, step).backward()
        theirs.step()
        for scheduler in schedulers:
            scheduler.step()
    torch.testing.assert_close(look_up(tables), weight.detach(), rtol=2e-5, atol=2e-6)


def row_wise_reference(optimizer: Adagrad | Adam, weight: torch.Tensor, steps: int) -> torch.Tensor:
    """Computes the row-wise formulas in double precision."""
    weight = weight.double()
    first, second = torch.zeros_like(weight), torch.zeros(len(weight), 1, dtype=torch.float64)
    for step in range(steps):
        leaf = weight.clone().requires_grad_()
        loss_of(leaf, step).backward()
        assert leaf.grad is not None
        gradient = leaf.grad + optimizer.weight_decay * weight
        squares = gradient.square().mean(1, keepdim=True)
        if isinstance(optimizer, Adagrad):
            second = second + squares
            weight = weight - optimizer.lr * gradient / (second.sqrt() + optimizer.eps)
        else:
            beta1, beta2 = optimizer.betas
            first = beta1 * first + (1 - beta1) * gradient
            second = beta2 * second + (1 - beta2) * squares
            corrected = (second / (1 - beta2 ** (step + 1))).sqrt() + optimizer.eps
            weight = weight - optimizer.lr * first / (1 - beta1 ** (step + 1)) / corrected
    return weight.float()


@pytest.mark.parametrize("optimizer", [RowWiseAdagrad(lr=0.05), RowWiseAdam(lr=0.02, weight_decay=0.1)])
def test_row_wise_optimizers_have_one_second_moment_a_row(optimizer: Adagrad | Adam) -> None:
    tables = make_tables(optimizer)
    begin = look_up(tables).detach().clone()
    for step in range(12):
        loss_of(look_up(tables), step).backward()
        tables.optimizer.step()
    torch.testing.assert_close(look_up(tables), row_wise_reference(optimizer, begin, 12), rtol=2e-5, atol=2e-6)


def test_rows_without_a_gradient_are_those_of_a_sparse_optimizer() -> None:
    # SparseAdam adds epsilon at another place than Adam. With an epsilon of 0 the formulas are equal, but
    # SparseAdam refuses 0, so it gets 1e-30.
    tables = make_tables(Adam(lr=0.02, eps=0))
    embedding = torch.nn.Embedding(len(IDS), DIM, sparse=True)
    with torch.no_grad():
        embedding.weight.copy_(look_up(tables))
    sparse = torch.optim.SparseAdam(embedding.parameters(), lr=0.02, eps=1e-30)
    for step in range(12):
        chosen = torch.tensor([step % 6, (step * step + 1) % 6, step % 6])
        loss_of(look_up(tables, IDS[chosen]), step).backward()
        tables.optimizer.step()
        sparse.zero_grad()
        loss_of(embedding(chosen), step).backward()
        sparse.step()
    torch.testing.assert_close(look_up(tables), embedding.weight.detach(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sgd(lr=float("nan")), "lr must be finite"),
        (lambda: Adam(lr=1, betas=(0.9, 1.0)), "beta2"),
        (lambda: Adagrad(lr=1, eps=-1), "epsilon"),
        (lambda: RowWiseAdam(lr=1, weight_decay=-1), "weight_decay"),
    ],
)
def test_values_out_of_range_are_named(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]
