# SPDX-License-Identifier: Apache-2.0
"""float16: small gradients survive, steps that overflow are skipped by all ranks, and the factor adapts.

The factor is the loss scale: losses are multiplied by it, and gradients are divided by it before the update.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from headway.embedding import Constant, FeatureConfig, HashTableCollection, Sgd, TableConfig
from headway.embedding.process_groups import LOCAL
from headway.training import LossScaler, Trainer
from torch import nn
from training_cases import ExactModel, Run, make_config, make_folder, most_difference, train


def make_tables() -> HashTableCollection:
    return HashTableCollection(
        tables=[TableConfig("items", dim=2, optimizer=Sgd(lr=1.0), initializer=Constant(0.0))],
        features=[FeatureConfig("item", table="items", pooling=None)],
        gradient_reduction="sum",
        process_group=LOCAL,
    )


def pass_gradients(tables: HashTableCollection, weight: nn.Parameter, gradient: float) -> None:
    """Gives each element of row 7 this gradient, and each element of ``weight`` a gradient of 1."""
    rows = tables({"item": (torch.tensor([7]), torch.tensor([1]))})["item"]
    (rows.sum() * gradient + weight.sum()).backward()


def test_gradients_are_divided_and_clipped_by_the_norm_of_all() -> None:
    tables, weight, scaler = make_tables(), nn.Parameter(torch.zeros(2)), LossScaler(enabled=True, factor=8.0)
    pass_gradients(tables, weight, 8.0)
    weight.grad = torch.tensor([8.0, 8.0])
    assert scaler.prepare_update([weight], [tables], clip_norm=1.0)  # 8 / 8 four times: norm 2.
    tables.optimizer.step()
    assert weight.grad.tolist() == pytest.approx([0.5, 0.5])
    assert tables.rows("items")[1].tolist()[0] == pytest.approx([-0.5, -0.5])


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
@pytest.mark.parametrize("where", ["dense", "table"])
def test_a_gradient_that_is_not_finite_halves_the_factor(bad: float, where: str) -> None:
    tables, weight, scaler = make_tables(), nn.Parameter(torch.zeros(2)), LossScaler(enabled=True, factor=8.0)
    pass_gradients(tables, weight, bad if where == "table" else 1.0)
    if where == "dense":
        weight.grad = torch.tensor([bad, 1.0])
    assert not scaler.prepare_update([weight], [tables], clip_norm=0.0)
    assert scaler.factor == 4.0 and scaler.num_skipped == 1


def test_the_factor_doubles_after_good_steps_and_is_saved() -> None:
    tables, weight = make_tables(), nn.Parameter(torch.zeros(2))
    scaler = LossScaler(enabled=True, factor=8.0, growth_interval=2)
    for _ in range(3):
        pass_gradients(tables, weight, 1.0)
        assert scaler.prepare_update([weight], [tables], clip_norm=0.0)
        tables.optimizer.zero_grad()
    assert scaler.factor == 16.0
    later = LossScaler(enabled=True, growth_interval=2)
    later.load_state_dict(scaler.state_dict())
    assert later.state_dict() == scaler.state_dict()
    plain = LossScaler(enabled=False)
    plain.load_state_dict(scaler.state_dict())
    assert plain.factor == 1.0, "a training in another dtype is not scaled"


def set_factor(trainer: Trainer, factor: float) -> None:
    trainer._train_step.state.scaler.factor = factor


def test_ranks_skip_the_same_steps(tmp_path: Path) -> None:
    """With a factor of 2^127 gradients overflow even float32 in the first steps; the factor halves until they fit."""
    folder = make_folder(tmp_path / "log", targets=2)
    config = make_config(folder, run={"dtype": "float16"})
    plain, scaled = (
        Run(config=config, model=ExactModel, before=partial(set_factor, factor=f)) for f in (8.0, 2.0**127)
    )
    expected, found = train(2, plain, scaled)
    assert expected["step"] == found["step"] == 8
    assert 0 < most_difference(found, expected) < float("inf")


def test_a_model_trains_in_float16(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "log")
    exact = Run(config=make_config(folder))
    half = Run(config=make_config(folder, run={"dtype": "float16"}))
    in_float32, in_float16 = train(1, exact, half)
    assert in_float16["result"].losses == pytest.approx(in_float32["result"].losses, rel=0.05)
