"""Training in time order: it learns, it repeats itself, it never looks ahead; and its command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dlrm_examples.dynamic_ctr.__main__ import KINDS, main, make_tables
from dlrm_examples.dynamic_ctr.evaluation import evaluate
from dlrm_examples.dynamic_ctr.log import Log
from dlrm_examples.dynamic_ctr.read_log import read_log
from dlrm_examples.dynamic_ctr.smoothed_rates import smoothed_rates
from dlrm_examples.dynamic_ctr.tables import TableSettings
from dlrm_examples.dynamic_ctr.trainer import Trainer, TrainerSettings

SETTINGS = TrainerSettings(tables=TableSettings(dim=4, seed=1), batch_size=50, hidden=(8,))


@pytest.fixture(scope="module")
def log(kuairand_directory: Path) -> Log:
    return read_log(kuairand_directory, max_history=5)


def predict_after(log: Log, *parts: int, kind: str = "static", settings: TrainerSettings = SETTINGS) -> torch.Tensor:
    """Logits of the last day by a model that stopped at each of ``parts`` on its way."""
    trainer = Trainer(log, make_tables(kind, log, settings.tables), settings, num_train=log.num_train)
    for part in parts:
        trainer.train_until(part)
    return trainer.predict(log.num_train, log.num_examples)


def test_the_log_is_cut_into_the_lists_of_its_examples(log: Log) -> None:
    batch = log.batch(700, 760)
    assert torch.equal(batch.labels, log.labels[700:760])
    for name, (values, lengths) in batch.features.items():
        whole = log.columns[name]
        expected = whole.values.split(whole.lengths.tolist())[700:760]
        assert lengths.tolist() == [len(part) for part in expected]
        assert values.tolist() == torch.cat(expected).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_learns_which_videos_are_clicked(log: Log, kind: str) -> None:
    untrained, trained = predict_after(log, kind=kind), predict_after(log, 2 * log.num_train, kind=kind)
    for label in log.label_names:
        assert evaluate(log, untrained)[label].auc < 0.6
        assert evaluate(log, trained)[label].auc > 0.65


def test_both_kinds_of_tables_give_the_same_predictions(log: Log) -> None:
    static, dynamic = (predict_after(log, log.num_train, kind=kind) for kind in KINDS)
    torch.testing.assert_close(static, dynamic, rtol=1e-3, atol=1e-4)


def test_a_seed_gives_the_same_bits_and_another_seed_others(log: Log) -> None:
    first = predict_after(log, 1000)
    assert torch.equal(first, predict_after(log, 1000))
    assert not torch.equal(first, predict_after(log, 1000, settings=replace(SETTINGS, tables=TableSettings(dim=4))))


def test_training_in_parts_is_training_at_once(log: Log) -> None:
    end = log.num_train + 100  # into the second epoch
    assert torch.equal(predict_after(log, end), predict_after(log, 50, 50, 1000, log.num_train, end))


def test_labels_of_the_last_day_change_no_prediction(log: Log) -> None:
    labels = log.labels.clone()
    labels[log.num_train :] = 1 - labels[log.num_train :]
    other = replace(log, labels=labels)

    assert torch.equal(predict_after(log, log.num_train), predict_after(other, log.num_train))
    assert torch.equal(smoothed_rates(log, num_train=log.num_train), smoothed_rates(other, num_train=log.num_train))


def test_training_does_not_go_back(log: Log) -> None:
    with pytest.raises(ValueError, match="cannot go back from 100 examples to 50"):
        predict_after(log, 100, 50)


def test_smoothed_rates_are_counts_and_a_prior(log: Log) -> None:
    scores = smoothed_rates(log, num_train=log.num_train, prior_examples=4.0)
    train, example = slice(log.num_train), log.num_train + 17
    common = log.labels[train, 0].double().mean()
    expected = torch.logit(common)
    for name in ("user_id", "video_id", "tab"):
        ids = log.columns[name].values
        same = log.labels[train, 0][ids[train] == ids[example]].double()
        expected = expected + torch.logit((same.sum() + 4 * common) / (len(same) + 4)) - torch.logit(common)

    assert scores[17, 0].item() == pytest.approx(expected.item(), abs=1e-9)


def test_a_label_that_never_changes_has_no_rates(log: Log) -> None:
    with pytest.raises(ValueError, match="'is_click' is the same in all of the first 5 examples"):
        smoothed_rates(replace(log, labels=torch.ones_like(log.labels)), num_train=5)


def test_the_command_prints_a_table_and_writes_a_line_for_each_run(
    kuairand_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "runs.jsonl"
    options = ["--seeds", "2", "--tables", "static", "dynamic", "--epochs", "2", "--dim", "4", "--out", str(out)]
    assert main(["--data", str(kuairand_directory), *options]) == 0

    printed = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in printed[1:]] == ["system", "smoothed rates", "static", "dynamic"]
    runs = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(run["system"], run["seed"]) for run in runs] == [
        ("smoothed rates", None),
        *((kind, seed) for kind in KINDS for seed in range(2)),
    ]
    assert all(run["quality"][label]["gauc"] > 0.6 for run in runs for label in ("is_click", "long_view"))
    assert runs[1]["params"]["epochs"] == 2


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--train-examples", "3000"], "leave nothing to learn or to test"),
        (["--table-lr", "-1"], "lr"),
        (["--dense-lr", "0"], "dense_lr"),
    ],
)
def test_the_command_says_in_one_line_what_is_wrong(
    kuairand_directory: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    assert main(["--data", str(kuairand_directory), *arguments]) == 1
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1


def test_a_path_that_is_not_there_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", str(tmp_path / "missing")]) == 1
    assert "missing: no such file or directory" in capsys.readouterr().err
