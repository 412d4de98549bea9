# SPDX-License-Identifier: Apache-2.0
"""Training with samples that move between ranks learns what it learns without, and refuses what would differ."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from headway.comm.rank_processes import run_ranks
from headway.data import SampleBatch
from headway.parallel.balance import BalanceError
from headway.training import ConfigError, Trainer, TrainingConfig
from torch import Tensor, nn
from training_cases import ExactModel, Run, make_config, make_folder, most_difference, same_bits, train


def balanced(
    folder: Path, mode: str = "fixed", *, data: dict[str, Any] | None = None, **sections: Any
) -> TrainingConfig:
    of_data = {"balance": mode, "scope": "global", "square_weight": 0.01, "global_batch": 16} | (data or {})
    return make_config(folder, data=of_data, **sections)


def test_exact_sums_have_the_same_bits_in_every_mode(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "log", targets=2)
    options: list[dict[str, Any]] = [
        {},
        {"planner": "zigzag", "micro_batches": 3},
        {"mode": "variable", "micro_batches": 2, "max_tokens": 64},
        {
            "mode": "variable",
            "planner": "segments",
            "weight_model": "power",
            "weight_exponent": 1.2,
            "square_weight": 0.0,
        },
    ]
    runs = [
        Run(config=balanced(folder, each.get("mode", "fixed"), data={k: v for k, v in each.items() if k != "mode"}),
            model=ExactModel)
        for each in options
    ]  # fmt: skip
    (alone,) = train(1, Run(config=make_config(folder), model=ExactModel))
    for num_ranks in (1, 3, 4):
        for other in train(num_ranks, *runs):
            assert same_bits(other, alone)


def test_a_model_learns_the_same_with_samples_that_move(tmp_path: Path) -> None:
    """With clipping and dropout, and a last step of fewer samples than ranks."""
    folder = make_folder(tmp_path / "log", 65)
    sections: dict[str, Any] = {"model": {"dropout": 0.3}, "optimizer": {"clip_norm": 0.5, "lr": 0.01}}
    (alone,) = train(1, Run(config=make_config(folder, **sections)))
    for other in train(
        3, Run(config=balanced(folder, **sections)), Run(config=balanced(folder, "variable", **sections))
    ):
        assert most_difference(other, alone) < 2e-4
        assert other["result"].losses == pytest.approx(alone["result"].losses, rel=1e-4)


def test_a_training_resumes_with_another_balance_and_other_ranks(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "log", targets=2)
    (whole,) = train(1, Run(config=make_config(folder), model=ExactModel))
    data = {"square_weight": 0.0}  # Measured, and kept in the checkpoint.
    train(3, Run(config=balanced(folder, data=data, run={"max_steps": 3}), out=tmp_path / "out", model=ExactModel))
    (manifest,) = (tmp_path / "out").glob("checkpoints/*/manifest.json")
    assert json.loads(manifest.read_text())["square_weight"] >= 0
    later = Run(config=balanced(folder, "variable", data=data), out=tmp_path / "out", resume=True, model=ExactModel)
    (resumed,) = train(2, later)
    assert same_bits(resumed, whole)


def by_budget(folder: Path, tokens: int = 150, **sections: Any) -> TrainingConfig:
    return make_config(folder, data={"balance": "budget", "scope": "global", "budget": tokens}, **sections)


def test_steps_of_a_budget_over_all_ranks_do_not_depend_on_their_number(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "log", targets=2)
    (alone,) = train(1, Run(config=by_budget(folder), model=ExactModel))
    assert alone["step"] > 4, "two epochs have several steps each"
    for num_ranks in (2, 4):
        (other,) = train(num_ranks, Run(config=by_budget(folder), model=ExactModel))
        assert same_bits(other, alone)


def test_a_training_with_a_budget_over_all_ranks_resumes_on_other_ranks(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "log", targets=2)
    (whole,) = train(1, Run(config=by_budget(folder), model=ExactModel))
    resumed: dict[str, Any] = {}
    for num_ranks, last in ((3, 1), (1, 3), (2, whole["step"] - 1), (4, 0)):  # The first one stops within an epoch.
        config = by_budget(folder, run={"max_steps": last})
        (resumed,) = train(num_ranks, Run(config=config, out=tmp_path / "out", resume=num_ranks != 3, model=ExactModel))
        assert resumed["step"] == (last or whole["step"])
    assert same_bits(resumed, whole)


def test_a_balance_may_end_at_a_resume(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "log", targets=2)
    (whole,) = train(1, Run(config=make_config(folder), model=ExactModel))
    train(1, Run(config=balanced(folder, run={"max_steps": 3}), out=tmp_path / "out", model=ExactModel))
    (later,) = train(1, Run(config=make_config(folder), out=tmp_path / "out", resume=True, model=ExactModel))
    assert same_bits(later, whole)


def test_any_seed_orders_the_samples_of_a_budget(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "log", targets=2)
    config = by_budget(folder, run={"seed": 20260101120000123})
    (found,) = train(1, Run(config=config, model=ExactModel))
    assert found["step"] > 4


def test_lines_tell_how_even_the_ranks_are(tmp_path: Path) -> None:
    train(3, Run(config=balanced(make_folder(tmp_path / "log")), out=tmp_path / "out"))
    rows = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    last = [row for row in rows if row["kind"] == "progress"][-1]["balance"]
    assert last["planned_idle"] < last["unbalanced_idle"] < 1 and 0 < last["moved"] < 1
    assert {"idle_tokens", "idle_samples"} <= last.keys() and 0 <= last["measured_idle"] < 1
    assert "planned idle" in (tmp_path / "out" / "report.html").read_text()


class WithNorm(ExactModel):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)


class MeanLoss(ExactModel):
    """Its loss is a mean over the batch."""

    def forward(self, batch: SampleBatch, *, seed: int, step: int) -> dict[str, Tensor]:
        return {name: total.abs() / max(batch.num_targets, 1) + 1 for name, total in super().forward(
            batch, seed=seed, step=step).items()}  # fmt: skip


class InBatchNegatives(ExactModel):
    """Each target is compared with all targets of its batch."""

    def forward(self, batch: SampleBatch, *, seed: int, step: int) -> dict[str, Tensor]:
        items = self.tables({"item": (batch.events["item"], batch.event_lengths)})["item"]
        rows = items[batch.event_lengths.cumsum(0) - 1] * self.weight  # The last target of each sample.
        losses = -torch.log_softmax(rows @ rows.T, 1).diagonal().sum()
        return dict.fromkeys(super().forward(batch, seed=seed, step=step), losses)


class MeanOfPositives(ExactModel):
    def forward(self, batch: SampleBatch, *, seed: int, step: int) -> dict[str, Tensor]:
        of_heads = super().forward(batch, seed=seed, step=step)
        return {name: total / batch.labels[name].sum() for name, total in of_heads.items()}


class OfLongest(ExactModel):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Identity()
        self.layer.config = type("Config", (), {"scale": "batch_length"})()  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (WithNorm, "norm normalises over its batch, so samples cannot move"),
        (MeanLoss, "the loss of click is .* it is no sum over samples"),
        (InBatchNegatives, "the loss of click is .* it is no sum over samples"),
        (MeanOfPositives, "the loss of click is .* it is no sum over samples"),
        (OfLongest, 'layer scales by the longest sample of its batch .scale="batch_length".'),
    ],
)
def test_models_that_depend_on_their_batch_are_refused(
    tmp_path: Path, model: Callable[[], nn.Module], message: str
) -> None:
    folder = make_folder(tmp_path / "log")
    with pytest.raises(ConfigError, match=message):
        Trainer(balanced(folder), model=model()).run()
    Trainer(make_config(folder, run={"max_steps": 1}), model=model()).run()  # Without moves it is allowed.


def differing(rank: int, send: Callable[[Any], None], *, first: TrainingConfig, second: TrainingConfig) -> None:
    try:
        Trainer(first if rank == 0 else second, say=lambda line: None).run()
    except ConfigError as error:
        send(str(error))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer": {"lr": 0.5}}, r"optimizer\.lr is 0\.5 at rank 1, and [0-9.]+ at rank 0"),
        ({"optimizer": {"clip_norm": 0.1}}, r"optimizer\.clip_norm is 0\.1 at rank 1, and 0\.0 at rank 0"),
        ({"run": {"seed": 5}, "checkpoint": {"every": 7}}, r"run\.seed is 5 at rank 1, .*; checkpoint\.every is 7"),
        ({"data": {"square_weight": 0.0}}, r"data\.square_weight is 0\.0 at rank 1, and 0\.01 at rank 0"),
        ({"staleness": 9}, r"staleness is 9 at rank 1, and 4 at rank 0"),
        (None, "rank 1 has other files in data.evaluation than rank 0; rank 1 has other files in data.train"),
    ],
)
def test_ranks_with_other_settings_are_refused(
    tmp_path: Path, changes: dict[str, Any] | None, message: str
) -> None:
    values = balanced(make_folder(tmp_path / "log")).as_dict()
    values["data"]["evaluation"] = values["data"]["train"]
    first = TrainingConfig.of(values)
    if changes is None:
        other = str(make_folder(tmp_path / "other", 20))
        second = TrainingConfig.of(values | {"data": values["data"] | {"train": other, "evaluation": other}})
    else:
        for name, of in changes.items():
            values[name] = values[name] | of if isinstance(of, dict) else of
        second = TrainingConfig.of(values)
    found: list[str] = []
    work = partial(differing, first=first, second=second)
    run_ranks(work, num_ranks=2, timeout_s=60, backend="headway", on_message=found.append)
    assert len(found) == 2
    for text in found:
        assert re.match(f"ranks were given different settings: .*{message}", text), text


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"balance": "fixed"}, 'data.balance = "fixed" needs data.scope = "global"'),
        ({"scope": "global"}, 'data.balance = "none" needs data.scope = "local"'),
        ({"planner": "zigzag"}, "data.planner needs data.balance"),
        ({"max_tokens": 9}, "data.max_tokens needs data.scope"),
        ({"balance": "budget", "scope": "global"}, 'data.budget must be set with data.scope = "global"'),
        ({"balance": "budget", "budget": 9, "budget_memory": 0.5}, "data.budget_memory needs"),
        ({"budget_memory": 0.5}, "data.budget_memory needs"),
        ({"balance": "budget", "scope": "global", "budget": 9, "planner": "zigzag"}, "data.planner needs data.balance"),
        (
            {"balance": "fixed", "scope": "global", "planner": "segments"},
            "segments does not make batches of fixed size",
        ),
        ({"balance": "variable", "scope": "global", "weight_exponent": 1.5}, 'needs data.weight_model = "power"'),
        (
            {"balance": "variable", "scope": "global", "weight_model": "power", "square_weight": 0.1},
            'needs data.weight_model = "square"',
        ),
        ({"balance": "fixed", "scope": "global", "budget": 9}, 'need data.balance = "budget"'),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_config(tmp_path, data=data)


def test_a_limit_that_no_plan_meets_is_an_error_of_all(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "log")
    with pytest.raises(
        BalanceError, match=r"16 samples of \d+ tokens, .* do not fit 1 x 1 micro-batches of at most 20"
    ):
        Trainer(balanced(folder, data={"max_tokens": 20})).run()
    with pytest.raises(
        ConfigError, match=r"data.max_tokens is 9, and a sample may have 16 tokens \(model.max_length\)"
    ):
        Trainer(balanced(folder, data={"max_tokens": 9}))
