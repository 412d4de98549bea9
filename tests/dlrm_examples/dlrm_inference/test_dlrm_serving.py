# SPDX-License-Identifier: Apache-2.0
"""An exported DLRM predicts what the model does, also when it is served by two ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from headway.cli.built_programs import program_path
from headway.serving import Bucket, Predictor, Request

from dlrm_examples.dlrm_inference.model import Dlrm, DlrmConfig, EmbeddingShard
from dlrm_examples.dlrm_inference.serving import DENSE, OUTPUT, export_dlrm, table_name

CONFIG = DlrmConfig(table_rows=(40, 7, 300, 1), num_dense=5, bottom_hidden=(8,), top_hidden=(16, 8))
BUCKET = Bucket(16)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dlrm") / "package"
    export_dlrm(folder, CONFIG, buckets=[BUCKET], version="v1")
    return folder


def draw(rows: int, generator: torch.Generator) -> Request:
    ones = torch.ones(rows, dtype=torch.int64)
    return Request(
        features={
            table_name(table): (torch.randint(0, size, (rows,), generator=generator), ones)
            for table, size in enumerate(CONFIG.table_rows)
        },
        dense={DENSE: torch.rand(rows, CONFIG.num_dense, generator=generator)},
    )


def expected(request: Request) -> torch.Tensor:
    """Predictions of the model itself."""
    model, shard = Dlrm(CONFIG), EmbeddingShard(CONFIG, range(CONFIG.num_tables))
    pooled = [
        shard.weight[shard.first_row[table] + request.features[table_name(table)][0]]
        for table in range(CONFIG.num_tables)
    ]
    return model.predict(model.bottom(request.dense[DENSE]), pooled)


def test_predictions_of_the_package_are_those_of_the_model(package: Path) -> None:
    predictor = Predictor(package)
    generator = torch.Generator().manual_seed(1)
    for rows in (1, 7, 16):
        request = draw(rows, generator)
        torch.testing.assert_close(predictor.predict(request)[OUTPUT], expected(request), rtol=1e-6, atol=1e-6)


@pytest.mark.skipif(not program_path("headway_serve").exists(), reason="headway_serve is not built")
def test_served_predictions_have_the_bits_of_the_package(package: Path, tmp_path: Path) -> None:
    pytest.importorskip("tritonclient.grpc")
    from served_package import predict, serve

    predictor = Predictor(package)
    generator = torch.Generator().manual_seed(2)
    with serve(package, tmp_path, ranks=2) as server:
        for number in range(10):
            request = draw(1 + number, generator)
            found = predict(server.clients[number % 2], request)[OUTPUT]
            assert torch.equal(found, predictor.predict(request)[OUTPUT])
            torch.testing.assert_close(found, expected(request), rtol=1e-6, atol=1e-6)
