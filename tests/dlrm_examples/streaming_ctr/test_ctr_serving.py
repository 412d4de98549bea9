# SPDX-License-Identifier: Apache-2.0
"""A trained click model is exported, and predicts what it does in evaluation."""

from __future__ import annotations

from pathlib import Path

import torch
from headway.serving import Bucket, Predictor, Request

from dlrm_examples.streaming_ctr.data.read_log import read_log
from dlrm_examples.streaming_ctr.dynamic_tables import DynamicTables
from dlrm_examples.streaming_ctr.serving import export_click_model
from dlrm_examples.streaming_ctr.tables import TableSettings
from dlrm_examples.streaming_ctr.trainer import Trainer, TrainerSettings


def test_a_package_predicts_what_the_model_does(kuairand_directory: Path, tmp_path: Path) -> None:
    log = read_log(kuairand_directory, max_history=5)
    settings = TrainerSettings(tables=TableSettings(dim=4, seed=1), batch_size=64, hidden=(8,))
    tables = DynamicTables(log.features, settings.tables)
    trainer = Trainer(log, tables, settings, num_train=log.num_train)
    trainer.train_until(log.num_train)
    begin, end = log.num_train, log.num_train + 64
    expected = trainer.predict(begin, end).sigmoid()

    manifest = export_click_model(
        tmp_path / "package", trainer._model, tables, log, buckets=[Bucket(64)], version="day 2"
    )
    assert manifest.outputs == ["is_click", "long_view"]
    predictor = Predictor(tmp_path / "package")
    features = {name: (values, lengths) for name, (values, lengths) in log.batch(begin, end).features.items()}
    found = predictor.predict(Request(features=features))
    for index, name in enumerate(log.label_names):
        torch.testing.assert_close(found[name], expected[:, index], rtol=1e-6, atol=1e-6)
