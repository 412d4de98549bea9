# SPDX-License-Identifier: Apache-2.0
"""Training with batches up to a budget: every sample once, also across stops and with other numbers of ranks.

Each rank fills a batch with samples up to ``budget`` tokens, so numbers of samples and of steps vary. With the unit
"weight" a sample of L tokens counts as L + ``square_weight`` L^2, since attention grows with L^2.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from headway.training import ConfigError, Trainer
from headway.training.sample_cost import Pass, fit_cost
from training_cases import Run, make_config, make_folder, most_difference, same_bits, train


def budget_config(folder: Path, **sections: dict[str, Any]) -> Any:
    data = {"balance": "budget", "budget": 40} | sections.pop("data", {})
    return make_config(folder, data=data, **sections)


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_steps_in_flight_and_resumes_change_nothing(tmp_path: Path, num_ranks: int) -> None:
    folder = make_folder(tmp_path / "log")
    # Steps in flight are those whose lookups begin before they are due: ``steps_ahead``.
    runs = [Run(config=budget_config(folder, run={"steps_ahead": depth})) for depth in (0, 2)]
    stopped = Run(config=budget_config(folder, run={"max_steps": 3}), out=tmp_path / "out")
    resumed = Run(config=budget_config(folder), out=tmp_path / "out", resume=True)
    alone, ahead, _, later = train(num_ranks, *runs, stopped, resumed)
    assert same_bits(ahead, alone)
    assert later["step"] == alone["step"] > 3 and same_bits(later, alone)


def test_a_training_resumes_on_other_ranks(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "log")
    train(3, Run(config=budget_config(folder, run={"max_steps": 2}), out=tmp_path / "out"))
    (later,) = train(2, Run(config=budget_config(folder), out=tmp_path / "out", resume=True))
    assert later["step"] > 2


def test_a_budget_of_everything_is_one_step_of_the_whole_epoch(tmp_path: Path) -> None:
    """The gradients of a step do not depend on how its samples are divided."""
    folder = make_folder(tmp_path / "log")
    budget = Run(config=budget_config(folder, data={"budget": 100_000}))
    fixed = Run(config=make_config(folder, data={"global_batch": 64}))
    alone, reference = train(1, budget, fixed)
    (of_three,) = train(3, budget)
    assert alone["step"] == of_three["step"] == 2  # One step for each of two epochs.
    assert most_difference(alone, reference) < 1e-5 and most_difference(of_three, alone) < 1e-5


def test_the_fitted_weight_is_kept_in_the_checkpoint(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "log")
    by_weight = {"budget": 60, "budget_unit": "weight"}
    lines: list[str] = []
    config = budget_config(folder, data=by_weight, run={"max_steps": 2})
    result = Trainer(config, out=tmp_path, say=lines.append).run()
    assert "a sample of L tokens costs L + " in lines[0] and result.checkpoint is not None
    fitted = json.loads((result.checkpoint / "manifest.json").read_text())["square_weight"]
    lines.clear()
    later = Trainer(budget_config(folder, data=by_weight), out=tmp_path, say=lines.append)
    assert later.resume()
    later.run()
    assert later._division.square_weight == fitted and not any("costs" in line for line in lines)


@pytest.mark.parametrize(
    ("data", "line"),
    [
        # A sample has 6.1 tokens in the mean, one of them context.
        ({"budget": 61}, "about 10 samples a step, 6 steps an epoch: few to learn from; a smaller data.budget makes"),
        ({"budget": 1, "micro_batches": 2}, "about 2 samples a step, 32 steps an epoch: few to learn from"),
        ({"budget": 9000}, "about 64 samples a step, 1 step an epoch: few to learn from"),
    ],
)
def test_the_size_of_an_epoch_is_estimated(tmp_path: Path, data: dict[str, Any], line: str) -> None:
    lines: list[str] = []
    config = budget_config(make_folder(tmp_path / "log"), data=data, run={"max_steps": 1})
    Trainer(config, say=lines.append).run()
    assert any(each.startswith(line) for each in lines), lines


def passes_of(seconds: Callable[[int, int], float]) -> list[Pass]:
    return [
        Pass(tokens // length, length, seconds(tokens // length, length))
        for length in (200, 800, 1600, 3200)
        for tokens in (3200, 6400, 12800)
    ]


def test_the_cost_of_a_sample_is_found_from_times_of_passes() -> None:
    # The example of the module: 2 ms, and 1 us for a token with 0.0005 us more for each token of its sample.
    found = fit_cost(passes_of(lambda count, length: 2e-3 + 1e-6 * count * length * (1 + 5e-4 * length)))
    assert found.square == pytest.approx(0.0005) and found.square_error < 1e-9
    assert found.exponent == 1.25 and found.power_error == pytest.approx(0.064, abs=0.001)
    found = fit_cost(passes_of(lambda count, length: 1e-3 + 1e-7 * count * length**1.4))
    assert found.exponent == 1.4 and found.power_error < 1e-9 and found.square_error > 0.05
    for of_token in (0.0, -1e-9, 1e-18):  # Noise of short passes: weights stay far below 64 bits.
        found = fit_cost(
            passes_of(lambda count, length, of_token=of_token: 1e-3 + count * (of_token * length + 1e-9 * length**2))
        )
        assert found.square == 1 and found.square_error < 0.01
    cheaper = fit_cost(passes_of(lambda count, length: 1e-6 * count * length * (1 - 5e-5 * length)))
    assert cheaper.square == 0, "noise: long samples are cheaper"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"balance": "budget", "budget": -1}, "data.budget must be a finite number from 0"),
        ({"balance": "budget", "budget_memory": 1.5}, "data.budget_memory must be above 0 and at most 1"),
        ({"balance": "budget", "budget": 9, "global_batch": 16}, "global_batch contradicts"),
        ({"balance": "budget", "budget": 9, "order": "time"}, "data.order"),
        ({"balance": "budget", "budget": 9, "square_weight": 0.1}, "budget_unit"),
        ({"budget": 9}, 'need data.balance = "budget"'),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_config(tmp_path, data=data)


def test_a_decay_needs_a_last_step(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run\.max_steps"):
        budget_config(tmp_path, optimizer={"decay": "cosine"})
