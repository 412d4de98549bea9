# SPDX-License-Identifier: Apache-2.0
"""Clipping by the norm of all gradients: those of parameters and those of tables."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from headway.embedding import Constant, FeatureConfig, HashTableCollection, Sgd, TableConfig, clip_grad_norm_
from headway.embedding.process_groups import gather_scalars
from rank_processes import run_ranks

IDS = torch.tensor([3, -7, 3, 2**40, 8, -7])
LENGTHS = torch.tensor([2, 3, 1])


class Model(torch.nn.Module):
    """Two tables that are not merged, and a linear layer."""

    def __init__(self, group: dist.ProcessGroup | None = None, **more: Any) -> None:
        super().__init__()
        optimizer, initializer = Sgd(lr=1.0), Constant(0.5)
        self.tables = HashTableCollection(
            tables=[
                TableConfig(name, dim=dim, optimizer=optimizer, initializer=initializer)
                for name, dim in (("a", 2), ("b", 3))
            ],
            features=[FeatureConfig("a", table="a"), FeatureConfig("b", table="b", pooling=None)],
            process_group=group,
            **more,
        )
        self.dense = torch.nn.Linear(2, 1)
        for weight in self.dense.parameters():
            torch.nn.init.constant_(weight, 0.3)

    def loss(self, scale: float = 1.0) -> torch.Tensor:
        found = self.tables(dict.fromkeys(("a", "b"), (IDS, LENGTHS)))
        return scale * (self.dense(found["a"]).square().sum() + found["b"].square().sum())

    def embeddings(self) -> torch.Tensor:
        self.tables.eval()
        ids = IDS.unique()
        found = self.tables(dict.fromkeys(("a", "b"), (ids, torch.ones_like(ids))))
        self.tables.train()
        return torch.cat([value.detach().flatten() for value in found.values()])


def gradients(model: Model, *, passes: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the gradients of tables and of parameters without clipping.

    Those of tables are measured by a step, since Sgd with lr 1 subtracts the gradient itself.
    """
    with torch.no_grad():  # Inserts the rows.
        model.loss()
    before = model.embeddings()
    for _ in range(passes):
        model.loss().backward()
    model.tables.optimizer.step()
    weights = list(model.dense.parameters())
    return before - model.embeddings(), torch.cat([each.grad.flatten() for each in weights if each.grad is not None])


def clip(group: dist.ProcessGroup | None, max_norm: float, passes: int, **more: Any) -> None:
    of_tables, of_weights = gradients(Model(group, **more), passes=passes)
    norm = math.hypot(float(of_tables.norm()), float(of_weights.norm()))
    model = Model(group, **more)
    with torch.no_grad():  # Inserts the rows.
        model.loss()
    before = model.embeddings()
    for _ in range(passes):
        model.loss().backward()
    found = clip_grad_norm_(model.dense.parameters(), max_norm, tables=[model.tables])
    assert float(found) == pytest.approx(norm, rel=1e-5)
    factor = min(1.0, max_norm / norm)
    clipped = torch.cat([each.grad.flatten() for each in model.dense.parameters() if each.grad is not None])
    torch.testing.assert_close(clipped, of_weights * factor)
    model.tables.optimizer.step()
    torch.testing.assert_close(before - model.embeddings(), of_tables * factor, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_tables_and_parameters_are_clipped_by_one_norm(max_norm: float, passes: int) -> None:
    clip(None, max_norm, passes)


def clip_on_ranks(rank: int) -> None:
    clip(dist.group.WORLD, 0.5, 2)
    clip(dist.group.WORLD, 0.5, 1, dedup="first", gradient_reduction="sum")


def test_ranks_clip_by_the_norm_of_all_of_them() -> None:
    run_ranks(clip_on_ranks, 2)


def test_what_a_grad_scaler_has_unscaled_is_clipped() -> None:
    plain, scaled = Model(), Model()
    for model in (plain, scaled):
        with torch.no_grad():
            model.loss()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    weights = torch.optim.SGD(scaled.dense.parameters(), lr=0.0)
    plain.loss().backward()
    scaler.scale(scaled.loss()).backward()
    for optimizer in (scaled.tables.optimizer, weights):
        scaler.unscale_(optimizer)
    norms = [clip_grad_norm_(each.dense.parameters(), 0.5, tables=[each.tables]) for each in (plain, scaled)]
    torch.testing.assert_close(*norms)
    plain.tables.optimizer.step()
    scaler.step(scaled.tables.optimizer)
    torch.testing.assert_close(plain.embeddings(), scaled.embeddings())


def test_gradients_that_are_not_finite_are_told() -> None:
    model = Model()
    model.loss(float("inf")).backward()
    with pytest.raises(RuntimeError, match=r"the norm of the gradients is (inf|nan)"):
        clip_grad_norm_(model.dense.parameters(), 1.0, tables=[model.tables], error_if_nonfinite=True)


def test_without_gradients_the_norm_is_zero() -> None:
    model = Model()
    assert float(clip_grad_norm_(model.dense.parameters(), 1.0, tables=[model.tables])) == 0


def gather_with_errors(rank: int) -> list[float]:
    """Makes warnings errors: PyTorch 2.14 and later warn of the former name of the function that gathers."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return gather_scalars(torch.tensor(rank + 0.5), dist.group.WORLD).tolist()


def test_scalars_of_all_ranks_are_gathered_without_a_warning() -> None:
    assert run_ranks(gather_with_errors, 2) == [[0.5, 1.5]] * 2
