# SPDX-License-Identifier: Apache-2.0
"""Training with samples that move between ranks learns what it learns without, and refuses what would differ."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from headway.comm.rank_processes import run_ranks
from headway.data import SampleBatch
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


def test_lines_tell_how_even_the_ranks_are(tmp_path: Path) -> None:
    train(3, Run(config=balanced(make_folder(tmp_path / "log")), out=tmp_path / "out"))
    rows = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    last = [row for row in rows if row["kind"] == "progress"][-1]["balance"]
    assert last["planned_idle"] < last["unbalanced_idle"] < 1 and 0 < last["moved"] < 1
    assert {"idle_tokens", "idle_samples"} <= last.keys()
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


def differing(rank: int, send: Callable[[Any], None], *, folder: Path) -> None:
    config = balanced(folder) if rank == 0 else make_config(folder)
    try:
        Trainer(config, say=lambda line: None).run()
    except ConfigError as error:
        send(str(error))


def test_ranks_with_other_settings_are_refused(tmp_path: Path) -> None:
    found: list[str] = []
    work = partial(differing, folder=make_folder(tmp_path / "log"))
    run_ranks(work, num_ranks=2, timeout_s=60, backend="headway", on_message=found.append)
    assert len(found) == 2
    for message in found:
        assert "rank 0 has {'balance': 'fixed', 'scope': 'global'" in message
        assert "rank 1 has {'balance': 'none', 'scope': 'local'" in message


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"balance": "fixed"}, 'data.balance = "fixed" needs data.scope = "global"'),
        ({"scope": "global"}, 'data.balance = "none" needs data.scope = "local"'),
        ({"planner": "zigzag"}, "data.planner needs data.balance"),
        ({"max_tokens": 9}, "data.max_tokens needs data.scope"),
        ({"balance": "budget", "scope": "global"}, "data.budget must be a finite number from 1"),
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
    with pytest.raises(ValueError, match="no rank has room for sample"):
        Trainer(balanced(make_folder(tmp_path / "log"), data={"max_tokens": 20})).run()
