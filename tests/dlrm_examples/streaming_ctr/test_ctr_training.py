# SPDX-License-Identifier: Apache-2.0
"""Training in time order improves the predictions, is reproducible, and never looks ahead."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from dlrm_examples.streaming_ctr.data.read_log import read_log
from dlrm_examples.streaming_ctr.dynamic_tables import DynamicTables
from dlrm_examples.streaming_ctr.evaluation import evaluate
from dlrm_examples.streaming_ctr.experiment import Kind, System
from dlrm_examples.streaming_ctr.model import SharedBottom
from dlrm_examples.streaming_ctr.smoothed_rates import smoothed_rates
from dlrm_examples.streaming_ctr.tables import TableSettings
from dlrm_examples.streaming_ctr.trainer import Trainer, TrainerSettings
from dlrm_examples.streaming_ctr.training_run import make_tables
from dlrm_examples.support.data.log import Log

KINDS: tuple[Kind, ...] = ("static", "dynamic")
SETTINGS = TrainerSettings(tables=TableSettings(dim=4, seed=1), batch_size=50, hidden=(8,))


@pytest.fixture(scope="module")
def log(kuairand_directory: Path) -> Log:
    return read_log(kuairand_directory, max_history=5)


def predict_after(log: Log, *parts: int, kind: Kind = "static", settings: TrainerSettings = SETTINGS) -> torch.Tensor:
    """Logits of the last day after training up to each of ``parts`` in turn: numbers of examples from the start."""
    tables = make_tables(log, System(kind=kind), settings.tables, None)
    trainer = Trainer(log, tables, settings, num_train=log.num_train)
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
def test_a_model_learns_which_videos_are_clicked(log: Log, kind: Kind) -> None:
    untrained, trained = predict_after(log, kind=kind), predict_after(log, 2 * log.num_train, kind=kind)  # Two epochs.
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
    end = log.num_train + 100  # Into the second epoch.
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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_in_half_precision_learns_beside_the_tables_with_loss_scaling(log: Log, dtype: torch.dtype) -> None:
    tables = DynamicTables(log.features, SETTINGS.tables)
    model = SharedBottom(log.features, num_labels=2, dim=4, hidden=(8,), seed=1)
    optimizers = (torch.optim.Adam(model.parameters(), lr=0.01), tables.collection.optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)  # float16 overflows at first.

    losses, scales = [], []
    for begin in range(0, 1600, 20):
        batch = log.batch(begin, begin + 20)
        with torch.autocast("cpu", dtype=dtype):
            logits = model(batch.features, tables)
        assert logits.dtype == dtype
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits.float(), batch.labels)
        for optimizer in optimizers:
            optimizer.zero_grad()
        scaler.scale(loss).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        scales.append(scaler.get_scale())

    skipped = sum(later < earlier for earlier, later in pairwise([2.0**24, *scales]))
    assert (skipped > 0) == (dtype == torch.float16)
    # A scaler looks at each optimizer separately, so tables may step when the other parameters do not.
    assert len(losses) - skipped <= tables.collection.step <= len(losses) - (skipped > 0)
    with torch.no_grad():
        assert all(bool(embeddings.isfinite().all()) for embeddings in tables(log.batch(0, 1600).features).values())
    assert sum(losses[-20:]) < sum(losses[:20]) - 0.5
