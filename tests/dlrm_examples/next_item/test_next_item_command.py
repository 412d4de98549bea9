# SPDX-License-Identifier: Apache-2.0
"""The command line: training, printed and written results.

The "popularity" system ranks films by their number of ratings. The attention operator and its PyTorch reference must
train alike.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dlrm_examples.next_item.__main__ import main
from dlrm_examples.next_item.histories import read_histories
from dlrm_examples.next_item.model import NextItemModel
from dlrm_examples.next_item.settings import ModelSettings, TrainingSettings
from dlrm_examples.next_item.trainer import steps

CPU = torch.device("cpu")
SMALL = ["--dim", "16", "--length", "8", "--lr", "0.02", "--dropout", "0", "--negatives", "20", "--batch-size", "8"]


def test_all_models_learn_what_popularity_does_not_know(
    ratings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "results.jsonl"
    models = ["hstu", "hstu-no-time", "sasrec"]
    options = ["--model", *models, "--epochs", "6", "--out", str(out)]
    assert main(["--data", str(ratings), *SMALL, *options]) == 0

    table = capsys.readouterr().out.splitlines()[-5:]
    assert [line.split("  ")[0] for line in table] == ["system", "popularity", *models]
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["name"], row["system"], row["params"]["seed"]) for row in rows] == [
        ("next_item", "popularity", None),
        *(("next_item", model, 0) for model in models),
    ]
    popular, *trained = (row["quality"]["test"]["ndcg"] for row in rows)
    assert popular < 0.3 and min(trained) > 0.5
    assert all(len(row["epoch_losses"]) == 6 and row["epoch_losses"][-1] < row["epoch_losses"][0] for row in rows[1:])
    assert all(row["commit"] and "cores" in row["machine"] for row in rows)


@pytest.mark.parametrize("num_negatives", [0, 20])  # 0: a softmax over all items.
def test_the_operator_gives_the_training_curve_of_the_reference(ratings: Path, num_negatives: int) -> None:
    histories = read_histories(ratings)
    settings = ModelSettings(dim=16, max_length=8, dropout=0.1)
    training = TrainingSettings(epochs=1, batch_size=8, lr=0.01, num_negatives=num_negatives)
    curves: list[list[float]] = []
    for attention in ("kernel", "reference"):
        torch.manual_seed(0)
        model = NextItemModel("hstu", settings, num_items=histories.num_items, attention=attention)  # type: ignore[arg-type]
        (losses,) = steps(model, histories, settings, training, device=CPU, seed=0)
        curves.append(losses)
    kernel, reference = curves
    assert len(kernel) > 8 and kernel[-1] < kernel[0]
    assert kernel == pytest.approx(reference, rel=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "sasrec", "--attention", "reference"], "--attention is an option of hstu"),
        (["--heads", "3"], "dim a multiple of heads"),
        (["--lr", "0"], "lr above 0"),
        (["--device", "cuda:9"], "--device cuda:9"),
    ],
)
def test_options_that_do_not_fit_are_named(
    ratings: Path, options: list[Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--data", str(ratings), *options]) == 1
    assert message in capsys.readouterr().err
